"""Time a sweep against a NumPy loop and brute force: python tests/benchmarks/sweep.py [--runs 10000] [--quick]

Runs of 16 to 112 calls (64 on average) under 5 policies, 4 cache rules, 12 architectures and 5 values of w. Sums of
both others equal the sweep's on the runs they are measured on, in this run; their times are scaled to all runs. Memory
is that of ``costmodel sweep`` in a process of its own, on files of growing length.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy_loop
from counting import POLICIES, RULES, agent_runs, brute_force, machine
from rich.console import Console
from rich.table import Table

import costmodel_jax as cm
from costmodel_jax.schema import Run, dump_runs

ARCHITECTURES = list(cm.architectures)[:12]
W = (1.0, 2.0, 3.0, 4.0, 5.0)
JUDGED = 40  # runs of the NumPy loop


def ragged_runs(count: int, mean: int = 64, seed: int = 0) -> list[Run]:
    """Like agents' runs, of a quarter to seven quarters of ``mean`` calls."""
    rng = np.random.default_rng(seed)
    whole = agent_runs(min(count, 1000), mean * 7 // 4, seed)  # calls of one run are drawn in order: a start is a run
    found = []
    for i in range(count):
        calls = whole[i % len(whole)].calls[: int(rng.integers(mean // 4, mean * 7 // 4 + 1))]
        found.append(Run(id=f"agent-{i}", calls=calls))
    return found


def swept(runs: list[Run], policies: list[Any], file: Path) -> tuple[cm.Sweep, float, float]:
    """The sweep, and the seconds of counting and of writing its table."""
    start = time.perf_counter()
    found = cm.sweep(runs, policies, RULES, ARCHITECTURES, W)
    counted = time.perf_counter()
    found.to_parquet(file)
    return found, counted - start, time.perf_counter() - counted


def looped(runs: list[Run], found: cm.Sweep) -> float:
    """Seconds of the NumPy loop with pricing, its sums compared with the sweep's."""
    start = time.perf_counter()
    columns = [numpy_loop.columns(run) for run in runs]
    prices = list(found.prices.values())
    for p, policy in enumerate(POLICIES):
        for c, rule in enumerate(RULES.values()):
            prompt, reused, generated, processed, pairs = numpy_loop.count(columns, policy, rule).sum(axis=2)
            priced = np.stack(
                [[each.linear * processed + (w - 1) * each.linear * generated + each.pair * pairs for w in W]
                 for each in prices]
            )  # fmt: skip
            part = slice(len(runs))
            for name, values in (("prompt", prompt), ("reused", reused)):
                np.testing.assert_array_equal(getattr(found.totals, name)[part, p, c], values, err_msg=name)
            for name, values in (("generated", generated), ("processed", processed), ("pairs", pairs)):
                np.testing.assert_array_equal(getattr(found.totals.measured, name)[part, p, c], values, err_msg=name)
            np.testing.assert_allclose(found.flops()[part, p, c], priced.transpose(2, 0, 1), rtol=1e-14)
    return time.perf_counter() - start


def forced(runs: list[Run], found: cm.Sweep) -> float:
    """Seconds of brute force, token by token, its pairs compared with the sweep's."""
    start = time.perf_counter()
    for p, policy in enumerate(POLICIES):
        for c, rule in enumerate(RULES.values()):
            pairs = [sum(row) for row in brute_force(runs, policy, rule)[4]]
            np.testing.assert_array_equal(found.totals.measured.pairs[: len(runs), p, c], pairs)
    return time.perf_counter() - start


def peak_of_command(runs: list[Run], folder: Path) -> tuple[float, int]:
    """Seconds and peak bytes of ``costmodel sweep`` on a file of runs."""
    dump_runs(runs, folder / "runs.jsonl")
    code = "import sys; from costmodel_jax.cli import main; sys.exit(main(sys.argv[1:]))"
    given = ["sweep", str(folder / "runs.jsonl"), "--out", str(folder / "out"), "--quiet"]
    given += [text for name in ("drop", "keep-latest:5", "clear-every:5") for text in ("--policy", name)]
    start = time.perf_counter()
    measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    measure += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", measure, sys.executable, "-c", code, *given], capture_output=True, text=True, check=True
    )
    return time.perf_counter() - start, int(done.stdout) * 1024


def growth(console: Console, title: str, cases: list[tuple[str, list[Run], list[Any]]], folder: Path) -> None:
    table = Table(title=f"Growth with {title}, seconds without compilation")
    for name in (title, "rows", "count", "write"):
        table.add_column(name, justify="right")
    for label, runs, policies in cases:
        swept(runs, policies, folder / "table.parquet")
        found, counting, writing = swept(runs, policies, folder / "table.parquet")
        table.add_row(label, f"{len(found):,}", f"{counting:.2f}", f"{writing:.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the runs")
    options = parser.parse_args()
    count = options.runs // 20 if options.quick else options.runs
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(machine() + "\n")
    runs = ragged_runs(count)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _, first, _ = swept(runs, POLICIES, folder / "table.parquet")
        found, counting, writing = swept(runs, POLICIES, folder / "table.parquet")
        numpy_seconds = looped(runs[:JUDGED], found) * count / JUDGED
        python_seconds = forced(runs[:1], found) * count
        calls = sum(len(run.calls) for run in runs)
        whole = counting + writing
        table = Table(title=f"{count:,} runs, {calls:,} calls, {len(found):,} rows in one table")
        for name in ("", "seconds", "rows/s"):
            table.add_column(name, justify="left" if not name else "right")
        table.add_row("sweep and table as Parquet", f"{whole:.2f}", f"{len(found) / whole:,.0f}")
        table.add_row("  of which counting", f"{counting:.2f}", "")
        table.add_row("  first counting, compilation included", f"{first:.2f}", "")
        table.add_row(f"NumPy loop*, no table ({numpy_seconds / counting:.0f}x counting)", f"{numpy_seconds:,.0f}", "")
        table.add_row(f"brute force*, no table ({python_seconds / counting:,.0f}x)", f"{python_seconds:,.0f}", "")
        console.print(table)
        console.print(
            f"*Measured on {JUDGED} runs and 1 run and scaled; equal there. Shapes compiled: "
            f"{len(found.shapes)}. "
            f"Parquet: {(folder / 'table.parquet').stat().st_size / 1e6:.0f} MB. Peak memory of this process: "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB.\n"
        )
        part = count // 4
        growth(console, "runs", [(f"{n:,}", runs[:n], POLICIES) for n in (part // 2, part, 2 * part)], folder)
        lengths = [(str(n), ragged_runs(part // 2, n), POLICIES) for n in (16, 64, 256)]
        growth(console, "calls", lengths, folder)
        growth(console, "policies", [(str(n), runs[:part], POLICIES[:n]) for n in (1, 3, 5)], folder)
        memory = Table(title="costmodel sweep, 3 policies x 4 rules, in a process of its own")
        for name in ("runs", "seconds, compilation included", "peak GiB"):
            memory.add_column(name, justify="right")
        for number in (part, 2 * part, 4 * part):
            (folder / str(number)).mkdir()
            seconds, peak = peak_of_command(runs[:number], folder / str(number))
            memory.add_row(f"{number:,}", f"{seconds:.1f}", f"{peak / 2**30:.2f}")
        console.print(memory)


if __name__ == "__main__":
    main()
