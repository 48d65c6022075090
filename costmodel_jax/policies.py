"""Context policies: what the client shows.

A policy maps the segments of a run to the step at which each stops being shown; a step is a model call, or with a
compacting policy also the summary request that may precede it. Policies are frozen dataclasses and pytrees: their
integer parameters can be traced, so ``jax.vmap`` sweeps them without compiling again.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from costmodel_jax.calls import Array, RunBatch
from costmodel_jax.errors import CostModelError
from costmodel_jax.pytree import pytree

__all__ = [
    "STATUS",
    "AsRecorded",
    "ClearEvery",
    "ClearToolResults",
    "DropAtUserTurn",
    "DropImmediately",
    "KeepAll",
    "KeepLatest",
    "Policy",
    "View",
]

Number = int | np.integer[Any] | Array
T = TypeVar("T")

STATUS = ("ok", "infeasible", "reasoning unknown", "beyond 64 bits")
"""Why a run has no counts: the policy's fixed floor does not fit its window; the policy hides reasoning and the log
does not say how long it is; the counts would not fit int64."""
OK, INFEASIBLE, UNKNOWN_REASONING, OVERFLOW = range(len(STATUS))


@pytree()
@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """What one run shows under a policy: slots in rendered order, and steps.

    Slot ``s`` is in the prompt of step ``i`` when ``birth[s] <= i < death[s]``.

    Attributes:
      tokens: length of each slot; of a type that holds the sum of all of them.
      birth, death: steps from which it is and is no longer shown.
      source: the step that generated it; -1 for what nobody generated.
      offset: start of its token ids in the batch; -1 where every token is unique.
      kind, call: what it is (index into ``schema.KINDS``) and which call brought or generated it.
      mask: which steps really happen.
      summary: which of them are summary requests.
      cached: which of them leave something that a later step could reuse.
      extra: FLOPs outside the actor, by step (the memory network's).
      opens: steps that start a session.
      idle: seconds since the step before (NaN where unknown).
      status: index into ``STATUS``.
    """

    tokens: Int[Array, "slots"]
    birth: Int[Array, "slots"]
    death: Int[Array, "slots"]
    source: Int[Array, "slots"]
    offset: Int[Array, "slots"]
    kind: Int[Array, "slots"]
    call: Int[Array, "slots"]
    mask: Bool[Array, "steps"]
    summary: Bool[Array, "steps"]
    cached: Bool[Array, "steps"]
    extra: Float[Array, "steps"]
    opens: Bool[Array, "steps"]
    idle: Float[Array, "steps"]
    status: Int[Array, ""]

    def shown(self, step: Int[Array, ""]) -> Bool[Array, "slots"]:
        """Which slots of one run's view the prompt of a step shows."""
        return (self.birth <= step) & (step < self.death)


class Policy(abc.ABC):
    """Base of all policies.

    Attributes:
      needs_reasoning: not computable for runs whose reasoning lengths are unknown.
      nested: of two earlier calls the later one always shares the longer prefix with a prompt, because a segment that
        was hidden never comes back.
      steps_per_call: 2 where a summary request may precede each call.
    """

    needs_reasoning: ClassVar[bool] = False
    nested: ClassVar[bool] = True
    steps_per_call: ClassVar[int] = 1

    @abc.abstractmethod
    def view(self, run: RunBatch) -> View:
        """What one run (a batch without its leading axis) shows, and when."""

    @property
    def added(self) -> int:
        """Upper bound on the tokens a prompt can hold beyond the run's own; needs concrete parameters."""
        return 0


class HidingPolicy(Policy):
    """Base of the policies that only hide recorded segments, one step a call."""

    def view(self, run: RunBatch) -> View:
        return lifetimes(run, self.deaths(run), needs_reasoning=self.needs_reasoning)

    @abc.abstractmethod
    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        """The call from which each segment is no longer shown."""


@dataclass_transform(frozen_default=True)
def policy(*, static: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass and a pytree; fields named ``static`` are part of the compiled program."""

    def decorate(cls: type[T]) -> type[T]:
        return pytree(static=static)(dataclasses.dataclass(frozen=True)(cls))

    return decorate


def check_count(policy: object, minimum: int = 0, **values: Number | None) -> None:
    """Refuse concrete parameters that are not integers of at least ``minimum``; traced ones pass."""
    for name, value in values.items():
        if isinstance(value, (bool, float)):
            raise CostModelError(f"{type(policy).__name__}.{name} = {value!r} must be an integer")
        if isinstance(value, (int, np.integer)) and value < minimum:
            raise CostModelError(f"{type(policy).__name__}.{name} = {value} must be at least {minimum}")


def lifetimes(run: RunBatch, death: Int[Array, "segments"], *, needs_reasoning: bool) -> View:
    """The view of a policy that only hides recorded segments: one step a call."""
    steps = jnp.arange(run.calls, dtype=jnp.int32)
    return View(
        tokens=jnp.asarray(run.tokens),
        birth=jnp.asarray(run.birth),
        death=jnp.minimum(death, run.end),
        source=jnp.where(run.output, run.call, -1),
        offset=jnp.full(run.tokens.shape, -1, jnp.int32) if run.offset is None else jnp.asarray(run.offset),
        kind=jnp.asarray(run.kind),
        call=jnp.asarray(run.call),
        mask=jnp.asarray(run.mask),
        summary=jnp.zeros(run.calls, bool),
        cached=jnp.asarray(run.mask),
        extra=jnp.zeros(run.calls, jnp.float64),
        opens=steps == run.first,
        idle=jnp.asarray(run.idle),
        status=jnp.where(run.reasoning_known | (not needs_reasoning), OK, UNKNOWN_REASONING).astype(jnp.int8),
    )


def recorded(run: RunBatch) -> Int[Array, "segments"]:
    """Deaths when nothing recorded is ever hidden: the end of the session; replacements are never shown."""
    return jnp.where(run.inserted, 0, run.end)


def next_call(marked: Bool[Array, "calls"]) -> Int[Array, "calls"]:
    """For each call the first later call that is marked; past the end where there is none."""
    calls = marked.shape[0]
    marks = jnp.where(marked, jnp.arange(calls, dtype=jnp.int32), jnp.int32(calls))
    return jnp.concatenate([jax.lax.cummin(marks, reverse=True)[1:], jnp.full(1, calls, jnp.int32)])


def int64(value: Number) -> Int[Array, "*shape"]:
    """A count or a parameter as int64, which only a 64-bit scope keeps."""
    return jnp.asarray(value).astype(jnp.int64)


def clipped(value: Number, upper: int) -> Int[Array, ""]:
    """A parameter as int32; beyond ``upper`` it makes no difference."""
    return jnp.clip(int64(value), 0, upper).astype(jnp.int32)


@policy()
class KeepAll(HidingPolicy):
    """Nothing is ever hidden."""

    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        return recorded(run)


@policy()
class DropImmediately(HidingPolicy):
    """Reasoning of earlier calls is never shown."""

    needs_reasoning: ClassVar[bool] = True

    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        return jnp.where(run.reasoning, 0, recorded(run))


@policy()
class KeepLatest(HidingPolicy):
    """Call t shows the reasoning of calls t-k to t-1.

    Attributes:
      k: how many calls' reasoning stays; 0 equals ``DropImmediately``.
    """

    k: Number
    needs_reasoning: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count(self, k=self.k)

    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        return jnp.where(run.reasoning, run.call + 1 + clipped(self.k, run.calls), recorded(run))


@policy()
class ClearEvery(HidingPolicy):
    """Reasoning goes in batches: call t shows that of calls from k * floor(t / k) on, counted from 0 in a session.

    Attributes:
      k: calls between two clearings.
    """

    k: Number
    needs_reasoning: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count(self, 1, k=self.k)

    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        k = jnp.maximum(clipped(self.k, run.calls), 1)
        first = jnp.asarray(run.first)[run.call]
        return jnp.where(run.reasoning, first + k * ((run.call - first) // k + 1), recorded(run))


@policy()
class DropAtUserTurn(HidingPolicy):
    """Reasoning goes when the next user message arrives, as the templates of Qwen and gpt-oss and hosted APIs do."""

    needs_reasoning: ClassVar[bool] = True

    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        return jnp.where(run.reasoning, next_call(run.user & run.mask)[run.call], recorded(run))


@policy()
class ClearToolResults(HidingPolicy):
    """Tool results go in batches when the prompt grows past a trigger, as hosted context editing does.

    Before a call whose prompt (earlier clearings applied) exceeds ``trigger``, all visible tool results but the latest
    ``keep`` are cleared for good, unless together they hold fewer than ``clear_at_least`` tokens.

    Attributes:
      trigger: prompt length in tokens.
      keep: tool results that stay.
      clear_at_least: tokens that a clearing must free to be worth breaking the prefix.
    """

    trigger: Number
    keep: Number = 3
    clear_at_least: Number = 0

    def __post_init__(self) -> None:
        check_count(self, trigger=self.trigger, keep=self.keep, clear_at_least=self.clear_at_least)

    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        tokens = int64(run.tokens)
        results = run.of_kind("tool") & (tokens > 0)

        def clear(death: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
            shown = (run.birth <= step) & (step < death)
            rank = jnp.cumsum(int64((shown & results)[::-1]))[::-1]  # of a result from the end, counting from 1
            candidates = shown & results & (rank > int64(self.keep))
            freed = jnp.sum(jnp.where(candidates, tokens, 0))
            fires = jnp.sum(jnp.where(shown, tokens, 0)) > int64(self.trigger)
            fires &= freed >= jnp.maximum(int64(self.clear_at_least), 1)
            return jnp.where(fires & candidates, step, death), None

        steps = jnp.arange(run.calls, dtype=jnp.int32)
        return jax.lax.scan(clear, jnp.asarray(recorded(run)), steps)[0]


@policy()
class AsRecorded(HidingPolicy):
    """What the log says the client did: its edits replayed."""

    nested: ClassVar[bool] = False  # a rewind brings back what an earlier call showed

    def deaths(self, run: RunBatch) -> Int[Array, "segments"]:
        return jnp.asarray(run.recorded_end)
