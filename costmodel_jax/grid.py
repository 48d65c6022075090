"""Every run counted once per policy and cache rule.

Compiling costs more than counting, so runs of similar shape share a program, and a policy is counted only for runs in
which it can change anything: for all others its counts are those of keeping everything.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from costmodel_jax.caching import CacheRule
from costmodel_jax.calls import pack
from costmodel_jax.compaction import Compact
from costmodel_jax.counting import STATUS, Counts, count, work
from costmodel_jax.groups import Group, grouped
from costmodel_jax.policies import AsRecorded, ClearToolResults, KeepAll, Policy
from costmodel_jax.schema import Run

__all__ = [
    "COUNTS",
    "KEEP_ALL",
    "Cell",
    "Grid",
    "RunCounts",
    "changes",
    "count_grid",
    "longest_prompt",
    "measured_counts",
]

KEEP_ALL = "keep-all"
COUNTS = ("prompt", "reused", "generated", "processed", "pairs")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RunCounts:
    """The calls of one run under one policy and cache rule, padding removed.

    Attributes:
      call: index of the recorded call; a summary request has that of the call it precedes.
      request: whether it is a summary request.
      prompt, reused, generated, processed, pairs: int64 counts per call.
      extra: FLOPs outside the actor.
      status: ``ok``, or why there are no calls.
    """

    call: np.ndarray
    request: np.ndarray
    prompt: np.ndarray
    reused: np.ndarray
    generated: np.ndarray
    processed: np.ndarray
    pairs: np.ndarray
    extra: np.ndarray
    status: str = "ok"

    @property
    def ok(self) -> bool:
        """Whether there are numbers."""
        return self.status == "ok"

    def total(self, name: str) -> int:
        """A count summed over calls."""
        return int(getattr(self, name).sum())

    @classmethod
    def of(cls, counts: Counts, run: int, steps_per_call: int) -> RunCounts:
        """One run of a counted batch."""
        status = STATUS[int(counts.status[run])]
        steps = np.flatnonzero(counts.mask[run]) if status == "ok" else np.zeros(0, np.int64)
        return cls(
            call=steps // steps_per_call,
            status=status,
            **{
                name: np.asarray(getattr(counts, field)[run])[steps]
                for name, field in {"request": "summary", "extra": "extra", **{n: n for n in COUNTS}}.items()
            },
        )

    @classmethod
    def of_lengths(cls, prompt: Sequence[int], reused: Sequence[int], generated: Sequence[int]) -> RunCounts:
        """N and Q of calls whose P, R and G are known."""
        p, r, g = (np.asarray(values, np.int64) for values in (prompt, reused, generated))
        processed, pairs = work(p, r, g)
        return cls(
            call=np.arange(len(p)),
            request=np.zeros(len(p), bool),
            prompt=p,
            reused=r,
            generated=g,
            processed=np.asarray(processed),
            pairs=np.asarray(pairs),
            extra=np.zeros(len(p)),
        )

    @classmethod
    def nothing(cls, status: str) -> RunCounts:
        """No numbers, and why."""
        return dataclasses.replace(cls.of_lengths((), (), ()), status=status)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """All runs under one policy and one cache rule."""

    policy: str
    cache: str
    runs: tuple[RunCounts, ...]

    @property
    def ok(self) -> np.ndarray:
        """Bool [runs]: where there are numbers."""
        return np.array([run.ok for run in self.runs])

    def totals(self, name: str) -> np.ndarray:
        """Int64 [runs]: a count summed over calls; 0 where there are no numbers."""
        return np.array([run.total(name) for run in self.runs], np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Cells by policy and cache name; those of ``keep-all`` are always there, for comparison.

    Attributes:
      runs: the runs that were counted.
      policies, caches: what was asked for, by name.
      cells: by policy and cache name.
      idle: names of policies that change nothing in any run.
    """

    runs: Sequence[Run]
    policies: Mapping[str, Policy]
    caches: Mapping[str, CacheRule]
    cells: Mapping[tuple[str, str], Cell]
    idle: frozenset[str]

    def shown(self, *, with_baseline: bool = False) -> Iterator[Cell]:
        """The cells that were asked for, cache by cache; on demand the one they are compared with, too."""
        names = dict.fromkeys([*([KEEP_ALL] if with_baseline else []), *self.policies])
        if KEEP_ALL in self.policies:
            names = dict.fromkeys(self.policies)
        return (self.cells[policy, cache] for cache in self.caches for policy in names)


def longest_prompt(run: Run) -> int:
    """The longest prompt when nothing is hidden, in tokens."""
    longest = shown = 0
    session = run.calls[0].session
    for call in run.calls:
        if call.session is not None and call.session != session:
            session, shown = call.session, 0
        shown += sum(segment.tokens for segment in call.input)
        longest = max(longest, shown)
        shown += sum(segment.tokens for segment in call.output)
    return longest


def changes(run: Run, policy: Policy) -> bool:
    """False where the policy surely shows what keeping everything shows."""
    if policy.needs_reasoning:
        return run.evidence.reasoning == "unknown" or any(
            segment.kind == "reasoning" and segment.tokens for call in run.calls for segment in call.output
        )
    if isinstance(policy, AsRecorded):
        return any(call.edits for call in run.calls)
    if isinstance(policy, (Compact, ClearToolResults)):
        return longest_prompt(run) > int(policy.trigger)
    return not isinstance(policy, KeepAll)


def count_grid(
    runs: Sequence[Run],
    policies: Mapping[str, Policy],
    caches: Mapping[str, CacheRule],
    *,
    advance: Callable[[], None] = lambda: None,
) -> Grid:
    """Count every run under every policy and cache rule.

    Args:
      runs, policies, caches: what to count.
      advance: called once per policy and cache rule.
    """
    everything: dict[str, Policy] = {KEEP_ALL: KeepAll(), **policies}
    touched = {name: {i for i, run in enumerate(runs) if changes(run, p)} for name, p in everything.items()}
    touched[KEEP_ALL] = set(range(len(runs)))
    jobs = [(policy, cache) for cache in caches for policy in everything]
    groups = grouped(runs, range(len(runs)))
    timed = [i for i in range(len(runs)) if pack([runs[i]]).has_time] if any(map(_lives, caches.values())) else []
    timed_groups = groups if len(timed) == len(runs) else grouped(runs, timed)

    def work(job: tuple[str, str]) -> dict[int, RunCounts]:
        policy, cache = job
        rule = caches[cache]
        counted: dict[int, RunCounts] = {}
        for group in timed_groups if _lives(rule) else groups:
            if touched[policy].intersection(group.runs):
                counted |= _count(runs, group, everything[policy], rule)
        advance()
        return counted

    # XLA compiles outside the interpreter lock.
    with ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
        results = dict(zip(jobs, pool.map(work, jobs), strict=True))
    cells = {
        (policy, cache): Cell(
            policy=policy,
            cache=cache,
            runs=tuple(
                (counted if i in touched[policy] else results[KEEP_ALL, cache]).get(i, RunCounts.nothing("no times"))
                for i in range(len(runs))
            ),
        )
        for (policy, cache), counted in results.items()
    }
    idle = frozenset(name for name in policies if not touched[name] or name == KEEP_ALL)
    return Grid(runs=runs, policies=policies, caches=caches, cells=cells, idle=idle)


def measured_counts(run: Run) -> RunCounts:
    """What the server measured, for a run all of whose calls have a measured prompt, hit and output."""
    usages = [call.usage for call in run.calls]
    measured = [
        (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
        for usage in usages
        if usage is not None and None not in (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
    ]
    if len(measured) < len(usages):
        return RunCounts.nothing("not measured")
    columns: Any = zip(*measured, strict=True)
    return RunCounts.of_lengths(*columns)


def _lives(rule: CacheRule) -> bool:
    return rule.ttl is not None


def _count(runs: Sequence[Run], group: Group, policy: Policy, rule: CacheRule) -> dict[int, RunCounts]:
    """The counts of a group, by index of the run."""
    batch = pack([runs[i] for i in group.runs], calls=group.calls, segments=group.segments)
    counts = jax.tree.map(np.asarray, count(batch, policy, rule))
    return {i: RunCounts.of(counts, row, policy.steps_per_call) for row, i in enumerate(group.runs)}
