"""Which compacting policies do not fit their own window, with both numbers."""

from __future__ import annotations

import dataclasses

from costmodel_jax.compaction import Compact
from costmodel_jax.grid import Grid
from costmodel_jax.schema import Run

__all__ = ["Infeasible", "fixed_floor", "infeasible"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Infeasible:
    """A run that a policy would compact for ever: its ``floor`` does not fit the ``window``, both in tokens."""

    run: str
    policy: str
    floor: int
    window: int


def infeasible(grid: Grid) -> list[Infeasible]:
    """Every run and policy that do not go together."""
    return [
        Infeasible(run=run.id, policy=name, floor=fixed_floor(run, policy), window=int(policy.trigger))
        for name, policy in grid.policies.items()
        if isinstance(policy, Compact)
        for i, run in enumerate(grid.runs)
        if any(grid.cells[name, cache].runs[i].status == "infeasible" for cache in grid.caches)
    ]


def fixed_floor(run: Run, policy: Compact) -> int:
    """Tokens that a prompt holds right after compacting, before any new input: head, summary, memory, tail, reserve.

    The largest of the run's sessions.
    """
    heads = [0]
    total, leading, session = 0, True, run.calls[0].session
    for call in run.calls:
        if call.session is not None and call.session != session:
            session, total, leading = call.session, 0, True
        for segment in (*call.input, *call.output):
            total += segment.tokens
            leading = leading and (segment.kind in ("system", "tools") or not segment.tokens)
            if leading or total <= int(policy.keep_head):
                heads.append(total)
    rest = (policy.summary, getattr(policy, "slots", 0), policy.keep_tail, policy.reserve)
    return max(heads) + sum(int(part) for part in rest)
