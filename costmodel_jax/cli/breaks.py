"""Where the prefix broke most, over runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from costmodel_jax.caching import CacheRule
from costmodel_jax.calls import RunBatch, pack
from costmodel_jax.counting import STATUS, Counts
from costmodel_jax.explain import CallExplanation, explanations
from costmodel_jax.grid import COUNTS, KEEP_ALL, Grid, RunCounts
from costmodel_jax.policies import AsRecorded, KeepAll
from costmodel_jax.pricing import Prices

__all__ = ["Break", "Breaks", "by_cause", "find_breaks"]

AS_RECORDED = "as-recorded"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Break:
    """A call that processed known positions again, and the run it belongs to."""

    run: str
    explanation: CallExplanation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breaks:
    """What some runs processed again.

    Attributes:
      policy, cache: under which it was looked at.
      explained: how many runs were looked at: those that processed most.
      processed: positions these runs processed in all.
      breaks: the largest first.
    """

    policy: str
    cache: str
    explained: int
    processed: int
    breaks: tuple[Break, ...]


def by_cause(calls: Iterable[CallExplanation]) -> list[tuple[str, int, int, float]]:
    """Cause, calls, positions processed again and their FLOPs; the largest first."""
    causes: dict[str, tuple[int, int, float]] = {}
    for call in calls:
        if call.recomputed:
            count, tokens, flops = causes.get(call.cause, (0, 0, 0.0))
            causes[call.cause] = (count + 1, tokens + call.recomputed, flops + (call.recomputed_flops or 0.0))
    return sorted(((cause, *sums) for cause, sums in causes.items()), key=lambda row: -row[2])


def find_breaks(grid: Grid, cache: str, prices: Prices, *, limit: int) -> Breaks:
    """Explain the runs that processed most, as they were recorded where that was counted, else when all is kept.

    Args:
      grid: counted runs.
      cache: name of the cache rule.
      prices: c and beta.
      limit: how many runs to explain.
    """
    recorded = AS_RECORDED in grid.policies and AS_RECORDED not in grid.idle
    name = AS_RECORDED if recorded else KEEP_ALL
    policy = AsRecorded() if recorded else KeepAll()
    cell = grid.cells[name, cache]
    dearest = [int(i) for i in np.argsort(-cell.totals("processed"), kind="stable") if cell.runs[i].ok][:limit]
    batch = pack([grid.runs[i] for i in dearest]) if dearest else None
    breaks = [
        Break(run=grid.runs[i].id, explanation=call)
        for row, i in enumerate(dearest)
        for call in _explain(batch, row, policy, grid.caches[cache], cell.runs[i], prices)
        if call.recomputed
    ]
    return Breaks(
        policy=name,
        cache=cache,
        explained=len(dearest),
        processed=sum(cell.runs[i].total("processed") for i in dearest),
        breaks=tuple(sorted(breaks, key=lambda found: -found.explanation.recomputed)),
    )


def _explain(
    batch: RunBatch | None, row: int, policy: AsRecorded | KeepAll, rule: CacheRule, counts: RunCounts, prices: Prices
) -> Sequence[CallExplanation]:
    """The explanation of a run that was counted already, from a batch, so that all runs share their shapes."""
    assert batch is not None
    missing = batch.calls - len(counts.call)
    again = Counts(
        **{name: np.pad(getattr(counts, name), (0, missing)) for name in (*COUNTS, "extra")},
        mask=np.arange(batch.calls) < len(counts.call),
        summary=np.zeros(batch.calls, bool),
        status=np.array(STATUS.index(counts.status), np.int8),
    )
    run = jax.tree.map(lambda leaf: leaf[row], batch)
    return explanations(run, policy, rule, again, prices)
