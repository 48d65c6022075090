"""Train a memory network on a frozen actor: python -m launch.train configs/ledger_cpu.py [--field value ...]

The run goes to the experiment's folder (out/train/NAME): metrics.jsonl, timing.jsonl, tensorboard/, checkpoints/, and
at its end memory/, the network in the released format. Run the same command again after a kill: it goes on from the
last good checkpoint. On several hosts run it on each, with --cluster.coordinator HOST:PORT --cluster.processes N
--cluster.process I; on TPU pods --cluster.auto is enough.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field

from costmodel_jax.errors import CostModelError
from launch.cluster import Cluster
from launch.configs import read_experiment
from remory_jax.ledger.actor import LevelNotReachedError
from remory_jax.training.checkpointing import CheckpointError
from remory_jax.training.export import export_memory
from remory_jax.training.loop import train


@dataclass(frozen=True, kw_only=True)
class Options:
    """Beside the experiment's own fields."""

    cluster: Cluster = field(default_factory=Cluster)
    fresh: bool = False  # refuse to go on from a checkpoint


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        experiment, options = read_experiment(given, Options(), prog="python -m launch.train", text=__doc__)
        options.cluster.connect()
        trained = train(experiment, resume=not options.fresh)
        folder = export_memory(trained)
    except (CostModelError, CheckpointError, LevelNotReachedError, ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{trained.folder}: {int(trained.state.step)} steps; the network is in {folder}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
