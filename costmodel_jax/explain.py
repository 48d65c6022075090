"""Why the prefix broke, call by call, and what it cost.

Every prompt is split into parts that add up to it: reused (from the cache), recomputed (shown before, processed again)
and new. The cause says which rule or edit stood between the prompt and a full hit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from costmodel_jax.caching import CacheRule
from costmodel_jax.calls import RunBatch, pack
from costmodel_jax.counting import Counts, count
from costmodel_jax.errors import CostModelError, InfeasibleError
from costmodel_jax.exchange import rebuild_cost
from costmodel_jax.policies import INFEASIBLE, STATUS, KeepAll, Policy, View
from costmodel_jax.precision import exact
from costmodel_jax.pricing import Prices, cost, cost_per_call
from costmodel_jax.schema import KINDS, Run

__all__ = ["CAUSES", "CallExplanation", "Explanation", "explain", "explanations"]

CAUSES = {
    "start": "the first call of the run",
    "session": "the first call of a new session",
    "append": "the prompt only grew, and everything known was reused",
    "reasoning hidden": "reasoning that an earlier prompt or generation held is no longer shown",
    "tool results cleared": "tool results that an earlier prompt held are no longer shown",
    "compaction": "a summary took the place of a part of the history",
    "edit": "the client changed its history",
    "idle": "the cache's lifetime was over",
    "generation not reused": "the rule never finds generated text again",
    "checkpoint": "no resume point or kept window lies deeper",
    "block rounding": "a hit is a whole number of blocks, and an engine leaves at least one token to compute",
    "below a block": "the common prefix is shorter than a block",
    "below the minimum": "the hit is shorter than the rule's minimum",
    "no reuse": "the rule reuses nothing, or the request does not share the prefix",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallExplanation:
    """One call. ``prompt = reused + recomputed + new``.

    Attributes:
      call: index of the recorded call (a summary request has that of the call it precedes).
      summary: whether it is a summary request.
      prompt, reused, generated, pairs: P, R, G and Q of the call.
      shared: longest common prefix with what earlier calls of the session left, in tokens, before the rule rounds it.
      recomputed: positions that were shown or generated before and are processed again.
      new: positions never processed before.
      cause: a key of ``CAUSES``.
      where: the first segment that differs, such as ``call 3 reasoning``; empty where nothing does.
      flops: of the whole call; ``None`` without prices.
      recomputed_flops: of the recomputed positions alone.
    """

    call: int
    summary: bool
    prompt: int
    reused: int
    shared: int
    recomputed: int
    new: int
    generated: int
    pairs: int
    cause: str
    where: str
    flops: float | None
    recomputed_flops: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """All calls of a run under a policy and a cache rule.

    Attributes:
      run: id of the run.
      calls: one entry per call and summary request, in order.
      shrank_but_dearer: the policy shows fewer prompt tokens than keeping everything and costs more (by FLOPs with
        prices, by processed positions without).
    """

    run: str
    calls: tuple[CallExplanation, ...]
    shrank_but_dearer: bool

    @property
    def breaks(self) -> list[CallExplanation]:
        """Calls that processed known positions again, the largest first."""
        return sorted((c for c in self.calls if c.recomputed), key=lambda c: -c.recomputed)

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat row per call, ready for a table."""
        return [{"run": self.run, **dataclasses.asdict(call)} for call in self.calls]


def explain(run: Run, policy: Policy, cache: CacheRule, prices: Prices | None = None) -> Explanation:
    """Say, call by call, what was reused, what was processed again and why.

    Args:
      run: one run.
      policy: what the client shows.
      cache: what the server reuses.
      prices: adds FLOPs.

    Raises:
      InfeasibleError: if the policy's floor does not fit its window for this run.
      CostModelError: if the policy is not computable for the run.
    """
    batch = pack([run])
    counts = count(batch, policy, cache)
    _refuse(run, policy, counts)
    single = jax.tree.map(lambda leaf: leaf[0], batch)
    calls = explanations(single, policy, cache, jax.tree.map(lambda leaf: leaf[0], counts), prices)
    return Explanation(run=run.id, calls=calls, shrank_but_dearer=_shrank_but_dearer(batch, counts, cache, prices))


def explanations(
    run: RunBatch, policy: Policy, cache: CacheRule, counts: Counts, prices: Prices | None
) -> tuple[CallExplanation, ...]:
    """The entries of an ``Explanation`` for a single packed run whose counts are known."""
    history = _History(run, policy, cache)
    flops = None if prices is None else np.asarray(cost_per_call(_with_runs_axis(counts), prices))[0]
    entries = []
    for index in np.flatnonzero(counts.mask):
        prompt, reused = int(counts.prompt[index]), int(counts.reused[index])
        step = history.visit(int(index), prompt, reused)
        recomputed = prompt - reused - step.new
        entries.append(
            CallExplanation(
                call=int(index) // policy.steps_per_call,
                summary=bool(counts.summary[index]),
                prompt=prompt,
                reused=reused,
                shared=step.shared,
                recomputed=recomputed,
                new=step.new,
                generated=int(counts.generated[index]),
                pairs=int(counts.pairs[index]),
                cause=history.cause(step),
                where=history.where(step),
                flops=None if flops is None else float(flops[index]),
                recomputed_flops=None if prices is None else float(rebuild_cost(prices, H=reused, n=recomputed)),
            )
        )
    return tuple(entries)


def _with_runs_axis(counts: Counts) -> Counts:
    return dataclasses.replace(
        counts, **{field.name: np.asarray(getattr(counts, field.name))[None] for field in dataclasses.fields(counts)}
    )


def _refuse(run: Run, policy: Policy, counts: Counts) -> None:
    status = int(counts.status[0])
    name = type(policy).__name__
    if status == INFEASIBLE:
        raise InfeasibleError(
            f"{name} is infeasible for run {run.id!r}: head, summary, memory, tail and reserve together exceed the "
            "trigger, so it would compact at every call; raise the trigger or keep less"
        )
    if status:
        raise CostModelError(f"{name} is not computable for run {run.id!r}: {STATUS[status]}")


def _shrank_but_dearer(batch: RunBatch, counts: Counts, cache: CacheRule, prices: Prices | None) -> bool:
    kept = count(batch, KeepAll(), cache)
    shrank = counts.prompt[~counts.summary].sum() < kept.prompt.sum()
    if prices is None:
        return bool(shrank and counts.processed.sum() > kept.processed.sum())
    return bool(shrank and float(cost(counts, prices)[0]) > float(cost(kept, prices)[0]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step:
    """What one step shows, against what earlier steps left."""

    index: int
    prompt: int
    reused: int
    new: int
    shared: int
    shared_prompt: int
    differs: int | None
    idle: bool


class _History:
    """Walks over the steps of one run on the host, remembering which slots earlier steps left behind."""

    def __init__(self, run: RunBatch, policy: Policy, cache: CacheRule) -> None:
        self.run, self.cache = run, cache
        self.view: View = jax.tree.map(np.asarray, exact(policy.view)(run))
        self.only_latest = policy.nested and run.ids is None
        self.requests = policy.steps_per_call == 2
        self.tokens = self.view.tokens.astype(np.int64)
        self.known = np.zeros(len(self.tokens), bool)
        self.left: list[tuple[np.ndarray, np.ndarray, int]] = []  # prompt, sequence, length of the sequence

    def visit(self, index: int, prompt: int, reused: int) -> _Step:
        """Compare the step with the past, then let it join the past."""
        view = self.view
        shown = (view.birth <= index) & (index < view.death) & (self.tokens > 0)
        generated = (view.source == index) & (self.tokens > 0)
        if view.opens[index]:
            self.left, self.known = [], np.zeros_like(self.known)
        idle = bool(self.left) and self._idle(index)
        if idle:
            self.left = []
        shared, differs = 0, None
        for _, sequence, length in self.left:
            candidate = min(self._common(sequence, shown, prompt), length)
            if candidate >= shared:
                # New input behind everything known is no difference; a segment that is gone, or came back, is.
                changed = np.flatnonzero(sequence & ~shown), np.flatnonzero(self.known & shown & ~sequence)
                shared, differs = candidate, next((int(slots[0]) for slots in changed if len(slots)), None)
        step = _Step(
            index=index,
            prompt=prompt,
            reused=reused,
            new=min(int(self.tokens[shown & ~self.known].sum()), prompt - reused),
            shared=shared,
            shared_prompt=max((self._common(earlier, shown, prompt) for earlier, _, _ in self.left), default=0),
            differs=differs,
            idle=idle,
        )
        self.known |= shown | generated
        if view.cached[index]:
            emitted = int(self.tokens[generated].sum())
            length = prompt + max(emitted - (self.cache.last_token == "skipped"), 0)
            self.left = [*([] if self.only_latest else self.left), (shown, shown | generated, length)]
        return step

    def cause(self, step: _Step) -> str:
        """A key of ``CAUSES``."""
        block = int(self.cache.block)
        limit = step.shared_prompt if self.cache.reuse == "prompt" else step.shared
        known = step.prompt - step.new
        if self.view.opens[step.index]:
            return "start" if not np.any(self.view.opens[: step.index]) else "session"
        if step.reused == known:
            return "append"
        if self.cache.reuse == "none" or not self.view.cached[step.index]:
            return "no reuse"
        if step.idle:
            return "idle"
        if step.differs is not None and step.shared < known:
            return self._edit(step.index, step.differs)
        if self.cache.reuse == "prompt" and limit < known:
            return "generation not reused"
        if limit < block:
            return "below a block"
        if not step.reused and limit // block * block < int(self.cache.min_tokens):
            return "below the minimum"
        if self.cache.reuse in ("checkpoint", "window") and step.reused + block <= limit // block * block:
            return "checkpoint"
        return "block rounding"

    def where(self, step: _Step) -> str:
        """The first slot that differs, in words."""
        if step.differs is None or step.shared >= step.prompt - step.new:
            return ""
        return f"call {self.view.call[step.differs]} {KINDS[self.view.kind[step.differs]]}"

    def _edit(self, index: int, differs: int) -> str:
        kind = KINDS[self.view.kind[differs]]
        after_request = self.requests and index % 2 == 1 and bool(self.view.mask[index - 1])
        if after_request or kind in ("summary", "memory"):
            return "compaction"
        return {"reasoning": "reasoning hidden", "tool": "tool results cleared"}.get(kind, "edit")

    def _idle(self, index: int) -> bool:
        return self.cache.ttl is not None and bool(self.view.idle[index] > float(self.cache.ttl))

    def _common(self, left: np.ndarray, shown: np.ndarray, prompt: int) -> int:
        """Tokens shared with something left behind."""
        changed = np.flatnonzero(left ^ shown)
        if not len(changed):
            return prompt
        if self.run.ids is not None:
            mine, theirs = self._ids(shown), self._ids(left)
            size = min(len(mine), len(theirs))
            differ = np.flatnonzero(mine[:size] != theirs[:size])
            return int(differ[0]) if len(differ) else size
        return int(self.tokens[: changed[0]][shown[: changed[0]]].sum())

    def _ids(self, shown: np.ndarray) -> np.ndarray:
        """The token at every position; tokens without an id get a negative one of their own."""
        own = np.cumsum(self.tokens) - self.tokens
        return np.concatenate(
            [np.zeros(0, np.int64)]
            + [
                np.asarray(self.run.ids)[start : start + self.tokens[slot]]
                if (start := self.view.offset[slot]) >= 0
                else -1 - own[slot] - np.arange(self.tokens[slot])
                for slot in np.flatnonzero(shown)
            ]
        )
