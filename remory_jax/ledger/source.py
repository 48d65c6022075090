"""The ledger as an experiment's data and actor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import grain
from jax.sharding import Mesh

from remory_jax.actor import Actor
from remory_jax.data.batch import Batch
from remory_jax.ledger.actor import LedgerActorReport, train_ledger_actor
from remory_jax.ledger.actor_config import LedgerActorConfig
from remory_jax.ledger.episodes import draw_episodes
from remory_jax.ledger.task import LedgerTask
from remory_jax.training.experiment import HeldOut, Request

__all__ = ["LedgerActor", "LedgerData"]

_SAID = 100  # steps between lines about the actor's training
_ENDLESS = 2**40  # batches; an episode is made when it is asked for


@dataclass(frozen=True, kw_only=True)
class LedgerData:
    """Batches of fresh episodes; the held-out ones are of another stream of random numbers."""

    task: LedgerTask

    def batches(self, request: Request) -> Any:
        """A Grain dataset of this process's episodes of each global batch."""
        if request.batch % request.process_count:
            raise ValueError(f"batch = {request.batch} is not divided by {request.process_count} processes")
        return grain.MapDataset.source(_Share(task=self.task, request=request)).to_iter_dataset()

    def held_out(self, request: Request, count: int) -> Iterator[HeldOut]:
        """Episodes that no training ever draws, and their summary++."""
        for number in range(count):
            episodes = draw_episodes(self.task, 0, "held_out", number * request.batch, request.batch)
            plus = episodes.batch(plus=True)
            yield HeldOut(batch=episodes.batch(), longer=(plus.summaries[-1], plus.summary_lengths[-1]))

    def manifest(self) -> dict[str, Any]:
        """What decides every episode."""
        return {"source": "ledger", "task": asdict(self.task)}


@dataclass(frozen=True, kw_only=True)
class _Share:
    """One process's rows of each batch, as a random-access source."""

    task: LedgerTask
    request: Request

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, index: int) -> Batch:
        request = self.request
        rows = request.batch // request.process_count
        first = int(index) * request.batch + request.process_index * rows
        return draw_episodes(self.task, request.seed, "train", first, rows).batch()


@dataclass(frozen=True, kw_only=True)
class LedgerActor:
    """The tiny actor, trained by the command itself the first time and kept in a folder."""

    config: LedgerActorConfig
    seed: int
    folder: str = "out/ledger-actors"

    def load(self, mesh: Mesh | None) -> Actor:
        """Train it, or load what was trained before."""
        actor, _ = train_ledger_actor(self.config, self.seed, folder=self.folder, on_check=_say)
        return actor


def _say(report: LedgerActorReport) -> None:
    if report.steps % _SAID == 0:
        print(f"actor: step {report.steps}, {report.full:.2f} nats a value", file=sys.stderr, flush=True)
