"""``costmodel sweep``: any number of runs under everything, as a folder of Parquet parts."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

from costmodel_jax.cli.options import Axes, Output, Reading, Weights, arg, configuration
from costmodel_jax.cli.reading import count_tokens
from costmodel_jax.cli.screen import Screen, table
from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options
from costmodel_jax.sweep import Axes as SweepAxes
from costmodel_jax.sweeps.folder import Progress, sweep_to_folder
from costmodel_jax.sweeps.records import open_records
from costmodel_jax.sweeps.summary import summarise_folder
from costmodel_jax.tables import compact_number

__all__ = ["HELP", "Command"]

HELP = """Files are streamed: agent-run/1 as JSON Lines, Parquet or ArrayRecord, and logs.

A sweep that was stopped goes on when the same command is run again.

Example:
  costmodel sweep runs/ --out swept --arch Qwen3-8B --w 1 --w 3

Policies, cache rules and architectures: see costmodel price --help."""

_EVERY = 30.0  # seconds between lines of progress where there is no terminal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output, Weights, Axes, Reading):
    """Options of ``costmodel sweep``."""

    out: Annotated[Path, arg(metavar="DIR", help="Folder of the parts; new, empty, or of this sweep.")]
    chunk: Annotated[int, arg(metavar="N", help="Records of a part.")] = 1024
    share: Annotated[str, arg(metavar="I/N", help="Make every N-th part from the I-th on, counted from 0.")] = "0/1"

    def run(self) -> int:
        """Sweep, and return the exit code."""
        return self.sweep(self._share())

    def sweep(self, process: tuple[int, int] | None) -> int:
        """Sweep this process's share; None for that of `jax.distributed`."""
        screen = Screen(json=self.json, quiet=self.quiet)
        if not self.paths:
            raise InputError("name files or folders of runs")
        if self.chunk < 1:
            raise InputError(f"--chunk {self.chunk}: give at least 1")
        prices = {name: self.prices(architecture) for name, architecture in self.architectures().items()}
        axes = SweepAxes.of(self.policies(), self.caches(), prices, self.weights())
        options = Options(
            lenient=self.lenient, count_tokens=None if self.tokenizer is None else count_tokens(self.tokenizer)
        )
        records = open_records(self.paths, self.format, options)
        start, said = time.perf_counter(), [0.0]

        def on_part(progress: Progress) -> None:
            spent = time.perf_counter() - start
            if spent - said[0] < _EVERY and progress.done < progress.parts:
                return
            said[0] = spent
            left = spent / max(progress.done - progress.kept, 1) * (progress.parts - progress.done)
            screen.note(
                f"{progress.done:,} of {progress.parts:,} parts, {progress.rows / spent:,.0f} rows/s, "
                f"{left:,.0f} s left, {progress.programs} shapes compiled"
            )

        progress = sweep_to_folder(records, self.out, axes, chunk=self.chunk, process=process, on_part=on_part)
        for problem in options.problems[:5]:
            screen.note(f"passed over: {problem.message}")
        if len(options.problems) > 5:
            screen.note(f"... and {len(options.problems) - 5:,} more passed over")
        parts = -(-len(records) // self.chunk)
        there = len(list(self.out.glob("part-*.parquet")))
        whole = there == parts
        entries = summarise_folder(self.out) if whole else []
        screen.answer(
            {
                "command": "sweep",
                "configuration": configuration(self),
                "records": len(records),
                "parts": parts,
                "made": progress.done - progress.kept,
                "seconds": time.perf_counter() - start,
                "passed_over": len(options.problems),
                "complete": whole,
                "totals": entries,
            }
        )
        if not whole:
            screen.line(f"{self.out}: {there:,} of {parts:,} parts; the others are made by other shares")
            return 0
        self._show(screen, entries)
        screen.line(f"{self.out}: {parts:,} parts of {len(records):,} records")
        return 0

    def _share(self) -> tuple[int, int]:
        index, _, count = self.share.partition("/")
        if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
            raise InputError(f"--share {self.share}: give I/N with I below N, such as 0/4")
        return int(index), int(count)

    def _show(self, screen: Screen, entries: list[dict[str, Any]]) -> None:
        for architecture, w in dict.fromkeys((entry["architecture"], entry["w"]) for entry in entries):
            shown = table("policy", "cache", "runs", "P", "N", "Q", "FLOP", "ratio", left=("policy", "cache"))
            for entry in entries:
                if (entry["architecture"], entry["w"]) != (architecture, w):
                    continue
                ratio = entry["vs_keep_all"]
                numbers = [compact_number(entry[name]) for name in ("prompt", "processed", "pairs", "flops")]
                shown.add_row(
                    entry["policy"],
                    entry["cache"],
                    f"{entry['runs']:,}",
                    *numbers,
                    "-" if ratio is None else f"{ratio:.3f}",
                )
            screen.show(f"{architecture}, w = {w:g}", shown)
