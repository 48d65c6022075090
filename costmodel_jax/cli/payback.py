"""When the edits that a policy made in a run have paid for themselves.

Every edit is priced by its closed form, with the prefix that the cache rule really kept. Without the edit the whole
history would have been reused, so the form holds under rules that find generated text again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from costmodel_jax.caching import CacheRule
from costmodel_jax.compaction import Compact
from costmodel_jax.exchange import calls_to_payback
from costmodel_jax.grid import KEEP_ALL, Grid, RunCounts
from costmodel_jax.policies import AsRecorded, ClearToolResults, Policy
from costmodel_jax.pricing import Prices
from costmodel_jax.rows import cost_of_calls
from costmodel_jax.schema import Run

__all__ = ["EDITING", "PaidEdit", "holds_under", "paid_edits"]

EDITING = (Compact, ClearToolResults, AsRecorded)
BAND = (10, 50, 90)  # percentiles of the positions a call processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaidEdit:
    """One edit of one run, and what it takes to pay for it.

    Attributes:
      run, policy, call: where it happened; ``call`` is the first one that no longer shows the old history.
      before, after: the history in tokens, without the call's own input.
      reused: the part of ``after`` that came from the cache; the rest was rebuilt.
      k_gen: FLOPs of the summary request and of a memory network; 0 where nothing was generated, or it is not known.
      break_even: positions processed later that pay for the edit; inf where none do.
      calls: the same in calls, if each processes as many positions as 90, 50 and 10 in 100 calls of the run exceed.
      later: positions processed after it in this run, up to the next edit.
      paid: whether these were enough.
    """

    run: str
    policy: str
    call: int
    before: int
    after: int
    reused: int
    k_gen: float
    break_even: float
    calls: tuple[float, float, float]
    later: int
    paid: bool


def holds_under(rule: CacheRule) -> bool:
    """Whether the closed form holds: the rule finds generated text again, for ever."""
    return rule.reuse == "prompt+generation" and rule.ttl is None


def paid_edits(grid: Grid, cache: str, prices: Prices, w: float = 1.0) -> list[PaidEdit]:
    """Every edit of every editing policy in a grid, run by run.

    Args:
      grid: counted runs.
      cache: name of a rule for which ``holds_under`` is true.
      prices: c and beta, without windows and ``pair_generated``, for which there is no closed form.
      w: price of a generated position relative to a prefilled one.
    """
    found: list[PaidEdit] = []
    for name, policy in grid.policies.items():
        if isinstance(policy, EDITING) and name not in grid.idle:
            edited, kept = grid.cells[name, cache].runs, grid.cells[KEEP_ALL, cache].runs
            stops = np.cumsum([len(counts.call) for counts in edited])
            flops = np.split(cost_of_calls(edited, prices, w), stops[:-1])
            for run, counts, before, spent in zip(grid.runs, edited, kept, flops, strict=True):
                if counts.ok and counts is not before:
                    found += _of_run(run, name, policy, counts, before, prices, spent)
    return found


def _of_run(
    run: Run, name: str, policy: Policy, counts: RunCounts, kept: RunCounts, prices: Prices, flops: np.ndarray
) -> Iterator[PaidEdit]:
    low, middle, high = (float(value) for value in np.percentile(kept.processed[kept.processed > 0], BAND))
    calls = np.flatnonzero(~counts.request)
    edits = list(_edits(run, policy, counts))
    for position, (t, before, after) in enumerate(edits):
        step = int(calls[t])
        request = step > 0 and bool(counts.request[step - 1])
        k_gen = float(flops[step - 1]) if request else 0.0
        reused = min(int(counts.reused[step]), after)
        until = int(calls[edits[position + 1][0]]) if position + 1 < len(edits) else len(counts.call)
        if until < len(counts.call) and counts.request[until - 1]:
            until -= 1
        later = int(counts.prompt[step]) - after + int(counts.generated[step])
        later += int(counts.processed[step + 1 : until].sum())
        payback = calls_to_payback(
            prices,
            H=reused,
            b=max(before - after, 0),
            s=0,
            tail=after - reused,
            k_gen=k_gen,
            positions_per_call=(low, middle, high),
        )
        break_even = float(payback.positions)
        yield PaidEdit(
            run=run.id,
            policy=name,
            call=t,
            before=before,
            after=after,
            reused=reused,
            k_gen=k_gen,
            break_even=break_even,
            calls=(float(payback.fewest), float(payback.expected), float(payback.most)),
            later=later,
            paid=later >= break_even,
        )


def _edits(run: Run, policy: Policy, counts: RunCounts) -> Iterator[tuple[int, int, int]]:
    """The calls before which the history changed, its length before, and after."""
    prompts = counts.prompt[~counts.request]
    fired = set(counts.call[counts.request].tolist())
    session = run.calls[0].session
    for t in range(1, len(run.calls)):
        call, previous = run.calls[t], run.calls[t - 1]
        opens = call.session is not None and call.session != session
        session = call.session if opens else session
        before = int(prompts[t - 1]) + sum(segment.tokens for segment in previous.output)
        after = max(int(prompts[t]) - sum(segment.tokens for segment in call.input), 0)
        edited = bool(call.edits) if isinstance(policy, AsRecorded) else t in fired or before != after
        if edited and not opens:
            yield t, before, after
