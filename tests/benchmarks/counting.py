"""Time ``count`` against a NumPy loop and against brute force, on the same seeded runs, with equality asserted.

Usage: python tests/benchmarks/counting.py [--runs 2000] [--calls 64] [--quick]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import numpy_loop
from rich.console import Console
from rich.table import Table

import costmodel_jax as cm
from costmodel_jax.schema import Call, Run, Segment

NUMBERS = ("prompt", "reused", "generated", "processed", "pairs")
POLICIES: list[Any] = [cm.KeepAll(), cm.DropImmediately(), cm.KeepLatest(5), cm.ClearEvery(5), cm.DropAtUserTurn()]
RULES = {
    "none": cm.CacheRule(reuse="none"),
    "prompt": cm.CacheRule(reuse="prompt", block=16, full_hit="minus_token", last_token="skipped"),
    "prompt+generation": cm.CacheRule(
        reuse="prompt+generation", block=16, full_hit="minus_token", last_token="skipped"
    ),
    "checkpoint": cm.CacheRule(reuse="checkpoint", block=16, full_hit="minus_token", last_token="skipped"),
}
T = TypeVar("T")


def agent_runs(count: int, calls: int, seed: int = 0) -> list[Run]:
    """Runs with lengths like coding agents': log-normal, a heavy tail of tool results, a user message now and then."""
    rng = np.random.default_rng(seed)

    def length(median: float, spread: float) -> int:
        return int(median * np.exp(spread * rng.standard_normal())) + 1

    def segment(kind: Any, tokens: int) -> Segment:
        return Segment(kind=kind, tokens=tokens)

    runs = []
    for i in range(count):
        made = []
        for t in range(calls):
            if t == 0:
                new = [segment("system", length(3_000, 0.4)), segment("user", length(300, 0.8))]
            elif rng.random() < 0.06:
                new = [segment("user", length(60, 0.8))]
            else:
                new = [segment("tool", length(350, 1.1)) for _ in range(2 if rng.random() < 0.15 else 1)]
            out = [segment("assistant", length(80, 0.8))]
            if rng.random() < 0.85:
                out.insert(0, segment("reasoning", length(150, 0.9)))
            made.append(Call(input=tuple(new), output=tuple(out)))
        runs.append(Run(id=f"agent-{i}", calls=tuple(made)))
    return runs


def timed(work: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    start = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - start


def library(batch: cm.RunBatch, policy: Any, rule: cm.CacheRule, repeats: int) -> tuple[cm.Counts, float, float, float]:
    """Counts, seconds of the first call (compilation included), best and median of the following."""
    counts, first = timed(cm.count, batch, policy, rule)
    rest = [timed(cm.count, batch, policy, rule)[1] for _ in range(repeats)]
    return counts, first, min(rest), statistics.median(rest)


def assert_equal(counts: cm.Counts, other: Any, calls: int) -> None:
    for name, expected in zip(NUMBERS, other, strict=True):
        np.testing.assert_array_equal(
            np.asarray(getattr(counts, name))[: len(expected), :calls], expected, err_msg=name
        )


def brute_force(runs: list[Run], policy: Any, rule: cm.CacheRule) -> Any:
    sys.path.append(str(Path(__file__).parents[1]))
    import oracle

    entries = [oracle.count_run(run, policy, rule)[0] for run in runs]
    return [[[getattr(entry, name) for entry in row] for row in entries] for name in NUMBERS]


def compare(console: Console, runs: list[Run], calls: int, repeats: int, judged: int) -> None:
    batch, packing = timed(cm.pack, runs)
    columns, preparing = timed(lambda: [numpy_loop.columns(run) for run in runs])
    table = Table(title=f"{len(runs):,} runs of {calls} calls, seconds; equal in every cell, asserted in this run")
    for name in (
        "policy",
        "rule",
        "first call",
        "best",
        "median",
        "NumPy loop",
        "speed-up",
        "brute force*",
        "speed-up",
    ):
        table.add_column(name, justify="left" if name in ("policy", "rule") else "right")
    totals = np.zeros(4)
    for policy in POLICIES:
        for name, rule in RULES.items():
            counts, first, best, median = library(batch, policy, rule, repeats)
            looped, loop = timed(numpy_loop.count, columns, policy, rule)
            assert_equal(counts, looped, calls)
            forced, force = timed(brute_force, runs[:judged], policy, rule)
            assert_equal(counts, forced, calls)
            force *= len(runs) / judged
            totals += (first, median, loop, force)
            seconds = (f"{first:.2f}", f"{best:.3f}", f"{median:.3f}", f"{loop:.2f}")
            table.add_row(
                str(policy), name, *seconds, f"{loop / median:.0f}x", f"{force:,.0f}", f"{force / median:,.0f}x"
            )
    first, median, loop, force = totals
    table.add_row(
        "all", "", f"{first:.2f}", "", f"{median:.3f}", f"{loop:.2f}", f"{loop / median:.0f}x", f"{force:,.0f}",
        f"{force / median:,.0f}x", style="bold",
    )  # fmt: skip
    console.print(table)
    console.print(f"Packing once for all cells: {packing:.2f} s; the NumPy loop's own preparation: {preparing:.2f} s.")
    console.print(f"First call: compilation and one count. *Measured on {judged} runs and scaled to {len(runs):,}.")
    console.print(
        "Rules with reuse: blocks of 16, at least one prompt token computed, last sampled token not fed back.\n"
    )


def growth(console: Console, title: str, sizes: list[tuple[int, int]], repeats: int) -> None:
    """``count`` and the NumPy loop with growing runs or calls, under ClearEvery(5)."""
    table = Table(title=f"{title}, ClearEvery(5), seconds")
    headings = [f"{what} {name}" for name in ("prompt+generation", "checkpoint") for what in ("count", "loop")]
    for name in ("runs", "calls", "pack", *headings):
        table.add_column(name, justify="right")
    policy = cm.ClearEvery(5)
    for count, calls in sizes:
        runs = agent_runs(count, calls)
        batch, packing = timed(cm.pack, runs)
        columns = [numpy_loop.columns(run) for run in runs]
        cells = []
        for name in ("prompt+generation", "checkpoint"):
            counts, _, _, median = library(batch, policy, RULES[name], repeats)
            looped, loop = timed(numpy_loop.count, columns, policy, RULES[name])
            assert_equal(counts, looped, calls)
            cells += [f"{median:.3f}", f"{loop:.2f}"]
        table.add_row(f"{count:,}", str(calls), f"{packing:.2f}", *cells)
    console.print(table)


def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, NumPy {np.__version__}"
    return f"{model}, {os.cpu_count()} cores, {jax.default_backend()}, load {os.getloadavg()[0]:.1f}; {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the runs, no growth above 500 runs or 64 calls"
    )
    options = parser.parse_args()
    count = max(options.runs // 10, 2) if options.quick else options.runs
    repeats = 3 if options.quick else 5
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print("$ python " + " ".join(sys.argv))
    console.print(machine() + "\n")
    compare(console, agent_runs(count, options.calls), options.calls, repeats, judged=2)
    sizes = [250, 500] if options.quick else [250, 500, 1_000, 2_000, 4_000]
    growth(console, f"Growth with runs of {options.calls} calls", [(n, options.calls) for n in sizes], repeats)
    lengths = [16, 32, 64] if options.quick else [16, 32, 64, 128, 256]
    few = 100 if options.quick else 500
    growth(console, f"Growth with calls of {few} runs", [(few, n) for n in lengths], repeats)


if __name__ == "__main__":
    main()
