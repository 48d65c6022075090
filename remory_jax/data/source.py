"""`PreparedData`: a stage's data as part of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool

from remory_jax.data.batch import Batch
from remory_jax.data.buckets import Buckets, Lengths
from remory_jax.data.examples import EMPTY
from remory_jax.data.generations import GENERATIONS
from remory_jax.data.iteration import Batches
from remory_jax.data.pipeline import make_pipeline
from remory_jax.data.prepared import Prepared
from remory_jax.data.problems import OnProblem, Problems
from remory_jax.training.experiment import HeldOut, Request

__all__ = ["PreparedData"]


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """Prepared folders as a `BatchSource` of training (`remory_jax.training.experiment`).

    Attributes:
      folder: made by ``python -m launch.prepare_data``.
      replay: a folder of Stage I that is mixed in; empty for none.
      replay_share: of the batches (ours: 20%).
      buckets: widths.
      curriculum: 0 to 1, by length of the history; see `Plan`.
      curriculum_batches: where training ends before the first epoch does: the batches it stretches over.
      held_out_share: of the records, never trained on. A hash of a record's id decides, so that folders of the same
        records (Stage I and II of the same documents) hold out the same ones.
      summaries: ``ignored`` trains memory alone.
      longer: width in tokens of the longer summaries that held-out data are compared with; 0 for none.
      on_problem: examples that fit no bucket or have no summary are skipped (and counted), or fatal.
      threads, prefetch: batches read ahead.
    """

    folder: str
    replay: str = ""
    replay_share: float = 0.2
    buckets: Buckets = field(default_factory=Buckets)
    curriculum: float = 0.0
    curriculum_batches: int | None = None
    held_out_share: float = 0.05
    summaries: Literal["required", "ignored"] = "required"
    longer: int = 0
    on_problem: OnProblem = "skip"
    threads: int = 1
    prefetch: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share < 1:
            raise ValueError(f"held_out_share = {self.held_out_share}; use 0 (none) to below 1")

    def batches(self, request: Request, problems: Problems | None = None) -> Batches:
        """Endless batches of this process for training.

        Args:
          problems: told of each example that cannot be used; by default they are skipped or fatal as configured.
        """
        source = _opened(self.folder)
        replay = _opened(self.replay) if self.replay else None
        return make_pipeline(
            source,
            replay=replay,
            replay_share=self.replay_share,
            buckets=self.buckets,
            batch=request.batch,
            seed=request.seed,
            curriculum=self.curriculum,
            curriculum_batches=self.curriculum_batches,
            summaries=self.summaries,
            wanted=~self._held_out(source.lengths),
            replay_wanted=None if replay is None else ~self._held_out(replay.lengths),
            process_index=request.process_index,
            process_count=request.process_count,
            tau=request.objective.tau,
            floor=request.objective.floor,
            threads=self.threads,
            prefetch=self.prefetch,
            problems=problems or Problems(self.on_problem),
        )

    def held_out(self, request: Request, count: int | None = None) -> Iterator[HeldOut]:
        """Global batches of held-out records in a fixed order, once through, at most ``count``; which example is of
        which record comes with them.

        Their summary++ comes with them where `longer` is set and ``prepare_data summaries --kind longer`` has made one
        for each example of the batch.

        Raises:
          ValueError: nothing is held out.
        """
        source = _opened(self.folder)
        wanted = self._held_out(source.lengths)
        if not wanted.any():
            raise ValueError(
                f"held_out_share = {self.held_out_share} of {len(set(source.lengths.draw.tolist()))} records in "
                f"{self.folder} holds none of them out; raise it"
            )
        whole = make_pipeline(
            source,
            buckets=self.buckets,
            batch=request.batch,
            seed=0,
            shuffle=False,
            epochs=1,
            summaries=self.summaries,
            wanted=wanted,
            tau=request.objective.tau,
            floor=request.objective.floor,
            threads=0,
            problems=Problems(self.on_problem),
        )
        records = np.unique(source.lengths.draw, return_inverse=True)[1]  # one number is drawn for each record
        for number, found in enumerate(whole):
            if count is not None and number >= count:
                return
            of = np.where(found.index >= 0, records[found.index], -1)
            yield HeldOut(batch=found, longer=self._longer(source, found), records=of)

    def manifest(self) -> dict[str, Any]:
        """Files, sizes, hashes, hashes of tokenizer and template, of both folders."""
        folders = [self.folder, *([self.replay] if self.replay else [])]
        return {"prepared": [_opened(folder).describe() for folder in folders], "held_out_share": self.held_out_share}

    def _longer(self, source: Prepared, batch: Batch) -> tuple[np.ndarray, np.ndarray] | None:
        if not self.longer:
            return None
        ids = np.zeros((len(batch.index), self.longer), np.int32)
        lengths = np.zeros(len(batch.index), np.int32)
        for row, i in enumerate(batch.index.tolist()):
            found = source.longer_summary(i) if i >= 0 else EMPTY
            if found is None:
                return None
            lengths[row] = min(len(found), self.longer)
            ids[row, : lengths[row]] = found[: self.longer]
        return ids, lengths

    def _held_out(self, lengths: Lengths) -> Bool[np.ndarray, " n"]:
        return np.asarray(lengths.draw < self.held_out_share)


def _opened(folder: str) -> Prepared:
    generated = Path(folder) / GENERATIONS
    return _open(folder, generated.stat().st_size if generated.exists() else 0)


@cache
def _open(folder: str, generated: int) -> Prepared:
    """One folder is opened once, and again when more has been generated for it since."""
    return Prepared(folder)
