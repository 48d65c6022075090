"""The ledger over seeds and variants: trains, evaluates, and prints the table. python tests/benchmarks/ledger.py c8 c16

Every cell is a run of ``launch.train`` and ``launch.evaluate`` on configs/ledger_cpu.py with the fields that its name
stands for. Results are appended to a JSON Lines file as they come, and cells that are there are not run again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jax
import msgspec
import tyro
from rich.console import Console
from rich.table import Table

from launch.configs import load_experiment
from remory_jax.evaluation import evaluate, gap_rows, gap_table
from remory_jax.ledger.actor import train_ledger_actor
from remory_jax.ledger.actor_config import LedgerActorConfig
from remory_jax.ledger.source import LedgerActor, LedgerData
from remory_jax.ledger.task import LedgerTask
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import Experiment, Request, Stage
from remory_jax.training.loop import train

ROOT = Path(__file__).resolve().parents[2]

CELLS: dict[str, dict[str, Any]] = {
    "c8": {"task": {}, "steps": 4000},
    "c16": {"task": {"slots": 16}, "steps": 3000},
    "c2": {"task": {"slots": 2}, "steps": 2000},
    "c4": {"task": {"slots": 4}, "steps": 2000},
    "c8-short": {"task": {}, "steps": 2000},
    "c8-long": {"task": {}, "steps": 8000},
    "c8-standard": {"task": {}, "steps": 2000, "memory": {"init": "standard"}},
    "c8-pooled": {"task": {}, "steps": 2000, "memory": {"query_init": "pooled"}},
    "c8-terse": {"task": {"terse": True}, "steps": 4000},
    "a8": {"task": {"variant": "A", "history": 48}, "steps": 3000},
    "b16": {"task": {"variant": "B", "slots": 16}, "steps": 3000},
    "c8x2": {"task": {"boundaries": 2}, "steps": 3000},
    "f16": {"task": {"facts": 16, "kept": 4, "history": 128, "slots": 16}, "steps": 3000},
}
"""Variant, rows, and what differs from the default ledger."""


def experiment_of(cell: str, seed: int, actor_seed: int | None, folder: Path) -> Experiment:
    """The configuration with a cell's changes."""
    base = load_experiment(ROOT / "configs" / "ledger_cpu.py")
    changes = CELLS[cell]
    task = LedgerTask(**changes["task"])
    actor: LedgerActor = replace(
        base.actor,
        config=LedgerActorConfig(task=task),
        seed=base.actor.seed if actor_seed is None else actor_seed,
        folder=str(folder / "actors"),
    )
    each = task.history // task.boundaries
    # What a later boundary reads: the summary and the memory before it with their markers, and the new history.
    source = each if task.boundaries == 1 else each + task.kept // 2 * task.fact_tokens + task.slots + 4
    ratio = each // task.slots
    block = -(-source // (ratio * task.slots)) * ratio * task.slots
    memory: MemoryConfig = replace(
        base.memory,
        compression_ratio=block // task.slots,
        block_tokens=block,
        memory_budget=task.slots,
        **changes.get("memory", {}),
    )
    (stage,) = base.stages
    stages = (Stage(name=stage.name, data=LedgerData(task=task), steps=changes["steps"], batch=stage.batch),)
    name = f"{cell}-actor{actor.seed}-seed{seed}"
    return replace(
        base, name=name, actor=actor, memory=memory, stages=stages, seed=seed, folder=str(folder), probe_every=0
    )


def run(experiment: Experiment, batches: int) -> dict[str, Any]:
    """Train and evaluate one cell."""
    actor: LedgerActor = experiment.actor
    _, report = train_ledger_actor(actor.config, actor.seed, folder=actor.folder)
    start = time.perf_counter()
    trained = train(replace(experiment, display="off"))
    seconds = time.perf_counter() - start
    request = Request(batch=256, seed=0, template=experiment.template, objective=experiment.objective)
    held_out = experiment.stages[-1].data.held_out(request, batches)
    measured = evaluate(trained.setting, trained.state.params, trained.state.buffers, trained.actor, held_out)
    rows = gap_rows(gap_table(measured))
    return {
        "cell": experiment.name.split("-actor")[0],
        "actor_seed": actor.seed,
        "seed": experiment.seed,
        "steps": experiment.stages[-1].steps,
        "actor_steps": report.steps,
        "actor_seconds": round(report.seconds, 1),
        "seconds": round(seconds, 1),
        "examples": len(measured.weights),
        "closed": {row["condition"]: round(float(row["closed"]), 4) for row in rows},
        "interval": {row["condition"]: [round(float(row["low"]), 4), round(float(row["high"]), 4)] for row in rows},
        "kl_summary": next(row["reverse_kl"] for row in rows if row["condition"] == "summary"),
    }


def main(
    cells: Annotated[tuple[str, ...], tyro.conf.Positional] = ("c8", "c16"),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    actor_seeds: tuple[int, ...] = (),
    batches: int = 8,
    out: Path = Path("out/ledger"),
) -> None:
    """Run the cells that are missing and print the table.

    Args:
      cells: names of `CELLS`.
      seeds: of the memory network.
      actor_seeds: of the actor; by default the one that the configuration declares.
      batches: held-out batches of 256 episodes.
      out: folder of the runs, with results.jsonl.
    """
    results = out / "results.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    done = [msgspec.json.decode(line) for line in results.read_bytes().splitlines()] if results.is_file() else []
    for cell in cells:
        for actor_seed in actor_seeds or (None,):
            for seed in seeds:
                experiment = experiment_of(cell, seed, actor_seed, out)
                key = (cell, experiment.actor.seed, seed, experiment.stages[-1].steps)
                if key in [(row["cell"], row["actor_seed"], row["seed"], row["steps"]) for row in done]:
                    continue
                row = run(experiment, batches)
                done.append(row)
                with results.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
    table = Table(box=None, pad_edge=False, title=f"gap closed, {jax.default_backend()}")
    for name in ("cell", "actor", "seed", "memory", "summary++", "shuffled", "zero", "steps", "seconds"):
        table.add_column(name, justify="left" if name == "cell" else "right")
    for row in sorted(done, key=lambda row: (row["cell"], row["actor_seed"], row["seed"])):
        closed = row["closed"]
        values = [closed[name] for name in ("summary + memory", "summary++", "shuffled memory", "zero memory")]
        numbers = [f"{value:.3f}" for value in values]
        table.add_row(
            row["cell"], str(row["actor_seed"]), str(row["seed"]), *numbers, str(row["steps"]), f"{row['seconds']:.0f}"
        )
    Console(width=80, highlight=False).print(table)


if __name__ == "__main__":
    tyro.cli(main)
