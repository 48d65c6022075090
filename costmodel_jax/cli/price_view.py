"""What ``costmodel price`` shows a person, at 80 columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from costmodel_jax.cli.floors import Infeasible
from costmodel_jax.cli.reading import Loaded
from costmodel_jax.cli.screen import Screen, table
from costmodel_jax.cli.wording import describe_rule, folded, of, short_ids
from costmodel_jax.compaction import Compact
from costmodel_jax.grid import KEEP_ALL, Grid, longest_prompt
from costmodel_jax.policies import AsRecorded, ClearToolResults
from costmodel_jax.rows import MEASURED, Priced
from costmodel_jax.specs import MEMORY_FLOPS
from costmodel_jax.tables import compact_number, flops_unit

__all__ = [
    "show_idle",
    "show_infeasible",
    "show_loaded",
    "show_runs",
    "show_totals",
]

PAPER: Mapping[str, tuple[float, float, float]] = {
    "drop": (0.983, 0.955, 0.946),
    "keep-latest:1": (1.861, 1.809, 0.949),
    "keep-latest:5": (4.542, 4.416, 0.960),
    "clear-every:5": (1.598, 1.560, 0.948),
}
"""The paper's fixed continuations (132 runs, 16-token blocks), relative to keeping all, by cache rule below."""
PAPER_CACHES = ("paper-16", "prompt:block=16", "none")
PAPER_ARCHITECTURE = "Qwen3.6-27B"
SHOWN = 5


def show_loaded(screen: Screen, loaded: Loaded) -> None:
    """What was read, and what is known about it."""
    account = loaded.to_dict()
    formats = ", ".join(f"{name} {count}" for name, count in account["formats"].items())
    screen.say(f"{of(account['runs'], 'run')}, {of(account['calls'], 'call')} ({formats})")
    for field, meaning in (
        ("lengths", "token lengths"),
        ("cached", "cache hits"),
        ("reasoning", "reasoning lengths"),
    ):
        counts = ", ".join(f"{word} in {of(count, 'run')}" for word, count in account["evidence"][field].items())
        screen.say(f"{meaning}: {counts}", 2)
    notes = list(account["notes"].items())
    for note, count in notes[:SHOWN]:
        screen.say(f"note ({of(count, 'run')}): {note}", 2)
    if len(notes) > SHOWN:
        screen.say(f"... and {len(notes) - SHOWN} more notes in --json", 2)
    if account["passed_over"]:
        screen.say(f"passed over: {of(len(account['passed_over']), 'file or record', 'files or records')}", 2)
    screen.say()


def show_totals(screen: Screen, part: Priced, entries: Sequence[Mapping[str, Any]], *, all_rows: bool) -> None:
    """One table per cache rule.

    Args:
      screen: where to.
      part: what was priced.
      entries: of ``Priced.totals``.
      all_rows: also rows that say nothing because their policy changed nothing or is not computable.
    """
    unit = flops_unit(entry["flops"] for entry in entries if entry["flops"])
    extensions = f" with {part.prices.label}" if part.prices.label else ""
    screen.say(f"Totals for {part.architecture}{extensions}, w = {part.w:g}, {unit[0]} in all")
    total = len(part.grid.runs)
    for entry in entries:
        if entry["cache"] == MEASURED:
            screen.say(
                f"measured by the server ({_share(entry['runs'], total)}): {of(entry['calls'], 'call')}, "
                f"P {compact_number(entry['prompt'])}, N {compact_number(entry['processed'])}, "
                f"Q {compact_number(entry['pairs'])}, {entry['flops'] / unit[1]:,.2f} {unit[0]}"
            )
    headers: set[Any] = set()
    sections = {}
    for cache in part.grid.caches:
        rows = [entry for entry in entries if entry["cache"] == cache]
        if not all_rows:
            rows = [e for e in rows if e["policy"] == KEEP_ALL or (e["runs"] and e["policy"] not in part.grid.idle)]
        sections[cache] = rows
    if all(len(rows) == 1 for rows in sections.values()):
        screen.show(
            "keep-all by cache rule", _totals_table(part, [*itertools.chain(*sections.values())], unit, "cache")
        )
        sections = {}
    for cache, rows in sections.items():
        made = _totals_table(part, rows, unit, "policy")
        headers |= {column.header for column in made.columns}
        screen.show(f"cache {cache}: {describe_rule(part.grid.caches[cache])}", made)
    screen.say("P prompt tokens shown, N processed positions, Q query-key pairs, ratio to keep-all.")
    if any(entry["cheapest"] for entry in entries):
        among = ", of the policies that every run has the facts for" if "runs" in headers else ""
        screen.say(f"* cheapest under this rule{among}.")
    if any(entry["shrank_but_dearer"] for entry in entries):
        screen.say("! fewer prompt tokens than keep-all and yet dearer: what was hidden breaks the prefix.")
    if "paper" in headers:
        screen.say("paper: the same ratio in arXiv 2611.10982, over its 132 runs with fixed continuations.")
    memory = [p for p in part.grid.policies.values() if getattr(p, "memory_flops", 0.0) == MEMORY_FLOPS]
    if memory and any(entry["requests"] and "memory" in entry["policy"] for entry in entries):
        screen.say(
            f"Memory network: {MEMORY_FLOPS / 1e9:.2f} GFLOP per replaced position, an upper bound for one of "
            "1.94 billion weights (memory_flops=...)."
        )
    screen.say()


def _totals_table(part: Priced, rows: Sequence[Mapping[str, Any]], unit: tuple[str, float], first: str) -> Table:
    """Rows of ``Priced.totals``, named by their field ``first``."""
    total = len(part.grid.runs)
    partial = any(entry["runs"] < total for entry in rows)
    intervals = any(entry.get("interval") for entry in rows)
    paper = not intervals and not partial and _like_the_paper(part, rows)
    counts = ("prompt", "processed", "pairs") if not (partial and intervals) else ("processed", "pairs")
    columns = [first, *(["runs"] if partial else []), *([] if intervals else ["calls"])]  # 80 columns hold no more
    columns += [*("PNQ" if len(counts) == 3 else "NQ"), unit[0], "ratio"]
    columns += ["95%"] if intervals else ["paper"] if paper else []
    made = table(*columns, left=(first,), least=19)
    for entry in rows:
        cells = [folded(str(entry[first]))]
        if partial:
            cells.append(f"{entry['runs']}/{total}")
        if not entry["runs"]:
            cells[0] += f"\n {next(iter(entry['without']), '')}"  # the word, where there is no number
            made.add_row(*cells, *["-"] * (len(columns) - len(cells)))
            continue
        mark = "*" if entry["cheapest"] else "!" if entry["shrank_but_dearer"] else " "
        ratio = "-" if entry["vs_keep_all"] is None else f"{entry['vs_keep_all']:.3f}"
        cells += [] if intervals else [f"{entry['calls']:,}"]
        cells += [compact_number(entry[name]) for name in counts]
        cells += [f"{entry['flops'] / unit[1]:,.2f}", f"{ratio} {mark}"]
        if intervals:
            interval = entry.get("interval")
            cells.append(f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "")
        elif paper:
            value = PAPER.get(entry["policy"])
            cells.append(f"{value[PAPER_CACHES.index(entry['cache'])]:.3f}" if value else "")
        made.add_row(*cells)
    return made


def _like_the_paper(part: Priced, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the paper's table is about the same thing: its rules, model and w, and runs that reason."""
    same = part.architecture == PAPER_ARCHITECTURE and part.w == 1.0 and not part.prices.label
    hiding = any(row["policy"] in PAPER and row["policy"] not in part.grid.idle for row in rows)
    return same and hiding and all(row["cache"] in PAPER_CACHES for row in rows)


def show_idle(screen: Screen, grid: Grid) -> None:
    """Policies that changed nothing, and policies that no run has the facts for."""
    reasons: dict[str, list[str]] = {}
    for name, policy in grid.policies.items():
        if name not in grid.idle or name == KEEP_ALL:
            continue
        if isinstance(policy, (Compact, ClearToolResults)):
            longest = max(map(longest_prompt, grid.runs))
            reason = f"no prompt passed the trigger of {int(policy.trigger):,} tokens (longest {longest:,})"
        elif isinstance(policy, AsRecorded):
            reason = "no run records an edit of its history"
        else:
            reason = "no run has reasoning in its output"
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        screen.say(f"The same as keep-all: {', '.join(names)} ({reason}).")
    shares: dict[str, list[str]] = {}
    for name in grid.policies:
        if unknown := max(_count(grid, name, cache, "reasoning unknown") for cache in grid.caches):
            shares.setdefault(_share(unknown, len(grid.runs)), []).append(name)
    for share, names in shares.items():
        screen.say(
            f"Not computable for {share}: {', '.join(names)}: the log does not say how long the reasoning is, and "
            "it is never taken for 0."
        )
    for cache in grid.caches:
        if timeless := _count(grid, KEEP_ALL, cache, "no times"):
            share = _share(timeless, len(grid.runs))
            screen.say(
                f"Not computable for {share} under {cache}: its lifetime needs the time of every call (ttl=none)."
            )


def _count(grid: Grid, policy: str, cache: str, status: str) -> int:
    return sum(counts.status == status for counts in grid.cells[policy, cache].runs)


def show_infeasible(screen: Screen, refused: Sequence[Infeasible]) -> None:
    """Policies whose floor does not fit."""
    for one in refused[:SHOWN]:
        screen.say(
            f"Infeasible: {one.policy} for run {one.run}: head, summary, memory, tail and reserve hold {one.floor:,} "
            f"tokens, the trigger is {one.window:,}; raise the trigger or keep less."
        )
    if len(refused) > SHOWN:
        screen.say(f"... and {len(refused) - SHOWN} more infeasible runs in --json")


def show_runs(screen: Screen, part: Priced, limit: int) -> None:
    """One line per run, under the first cache rule."""
    grid, cache = part.grid, next(iter(part.grid.caches))
    if len(grid.runs) < 2:
        return
    unit, flops = flops_unit(part.flops[KEEP_ALL, cache])
    made = table("run", "calls", "P", unit, "cheapest", "x", left=("run", "cheapest"))
    ids = short_ids(grid.runs)
    names = [KEEP_ALL, *(name for name in grid.policies if name != KEEP_ALL)]
    ratios = {name: part.ratio(grid.cells[name, cache]) for name in names}
    kept = grid.cells[KEEP_ALL, cache]
    for i, run in enumerate(grid.runs[: limit or None]):
        counts, spent = kept.runs[i], part.flops[KEEP_ALL, cache][i]
        known = {name: float(ratio[i]) for name, ratio in ratios.items() if math.isfinite(ratio[i])}
        best = min(known, key=lambda name: known[name], default="-")
        made.add_row(
            ids[run.id],
            f"{len(run.calls):,}",
            compact_number(counts.total("prompt")) if counts.ok else counts.status,
            f"{spent / flops:,.2f}" if counts.ok else "-",
            folded(best),
            f"{known[best]:.3f}" if best in known else "-",
        )
    screen.show(f"Runs under {cache}: {unit} of keeping all, and the cheapest policy", made)
    if limit and len(grid.runs) > limit:
        screen.say(f"... and {len(grid.runs) - limit} more (--runs 0 lists all)")
        screen.say()


def _share(some: int, total: int) -> str:
    return of(total, "run") if some == total else f"{some:,} of {of(total, 'run')}"
