"""Evaluate a trained memory on held-out data: python -m launch.evaluate configs/ledger_cpu.py [--field value ...]

Prints the gap table, every condition beside its controls, and writes into the run's folder: evaluation.json, and
kl_by_position and training as figures with their tables.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import msgspec
from rich.console import Console

from costmodel_jax.errors import CostModelError
from costmodel_jax.figures import save
from launch.configs import read_experiment
from remory_jax.evaluation import evaluate, gap_rows, gap_table
from remory_jax.evaluation.figures import kl_by_position, training_curves
from remory_jax.evaluation.gap import shown
from remory_jax.training.experiment import Request
from remory_jax.training.export import load_trained, run_folder
from remory_jax.training.metrics import read_metrics
from remory_jax.training.placement import mesh_of, place_held_out


@dataclass(frozen=True, kw_only=True)
class Options:
    """Beside the experiment's own fields."""

    memory: Path | None = None  # a folder of the released format; by default the run's newest
    batches: int = 8  # held-out batches, at most
    batch: int = 128  # examples in each
    stage: int = -1  # whose held-out data: the last
    resamples: int = 2000  # of the bootstrap
    level: float = 0.95  # of the intervals
    out: Path | None = None  # the run's folder by default


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        experiment, options = read_experiment(given, Options(), prog="python -m launch.evaluate", text=__doc__)
        mesh = mesh_of(experiment.mesh)
        actor = experiment.actor.load(mesh)
        setting, params, buffers = load_trained(experiment, actor, mesh, options.memory)
        request = Request(
            batch=options.batch, seed=experiment.seed, template=experiment.template, objective=experiment.objective
        )
        stage = experiment.stages[options.stage]
        held_out = (place_held_out(item, mesh) for item in stage.data.held_out(request, options.batches))
        measured = evaluate(setting, params, buffers, actor, held_out)
        table = gap_table(measured, level=options.level, resamples=options.resamples)
        folder = options.out or run_folder(experiment)
        about = f"{experiment.name}, {len(measured.weights):,} held-out examples"
        figures = [save(*kl_by_position(measured, about), folder / "kl_by_position.png")[0]]
        if (run_folder(experiment) / "metrics.jsonl").is_file():
            lines = read_metrics(run_folder(experiment), kind=None)
            figures.append(save(*training_curves(lines, experiment.name), folder / "training.png")[0])
        result = {
            "experiment": experiment.name,
            "seed": experiment.seed,
            "examples": len(measured.weights),
            "level": options.level,
            "resamples": options.resamples,
            "platform": jax.default_backend(),
            "table": gap_rows(table),
        }
        (folder / "evaluation.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    except (CostModelError, ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{about}. q: the condition, p: the full context; nats.")
    print(f"closed = 1 - KL(q|p) / KL(q|p) of the summary, with its {options.level:.0%} paired bootstrap interval.\n")
    Console(width=max(80, Console().width), highlight=False).print(shown(table))
    print(f"written: {folder / 'evaluation.json'}, {', '.join(str(path) for path in figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
