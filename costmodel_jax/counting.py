"""Exact counts of a run under a policy and a cache rule: P, R, G, N and Q as a scan over calls.

Counts are int64 whatever the caller's x64 setting. Source: COST of *Think or Remember* (arXiv 2611.10982), section 2:
N = sum of P - R + G, Q = sum over processed positions of the keys each one attends to.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from costmodel_jax.caching import CacheRule, Earlier, reuse
from costmodel_jax.calls import Array, RunBatch
from costmodel_jax.errors import CostModelError
from costmodel_jax.policies import Policy, View, int64
from costmodel_jax.precision import exact, has_tracer
from costmodel_jax.prefix import AnyHistory, Lifetimes, Now, TokenIds, Tracker
from costmodel_jax.pytree import pytree

__all__ = ["STATUS", "Counts", "count", "total"]

STATUS = ("ok", "infeasible", "reasoning unknown", "beyond 64 bits")
OK, INFEASIBLE, UNKNOWN_REASONING, OVERFLOW = range(4)


@pytree()
@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts per call; a pytree of int64 arrays (NumPy when computed eagerly, so that sums stay exact).

    Under a compacting policy the calls axis alternates: the summary request before call t at ``2 t`` (absent ones are
    masked), call t at ``2 t + 1``. Every identity between the arrays holds for requests too, and sums include them.

    Attributes:
      prompt: P, prompt length.
      reused: R, leading prompt positions that come from the cache.
      generated: G, positions processed by generation.
      processed: N, ``prompt - reused + generated``.
      pairs: Q, query-key pairs.
      mask: calls that exist; all else is 0.
      summary: calls that are summary requests.
      extra: FLOPs outside the actor (a memory network's).
      status: per run, index into ``STATUS``; where it is not 0 every count of the run is -1.
    """

    prompt: Int[Array, "*runs calls"]
    reused: Int[Array, "*runs calls"]
    generated: Int[Array, "*runs calls"]
    processed: Int[Array, "*runs calls"]
    pairs: Int[Array, "*runs calls"]
    mask: Bool[Array, "*runs calls"]
    summary: Bool[Array, "*runs calls"]
    extra: Float[Array, "*runs calls"]
    status: Int[Array, "*runs"]

    @property
    def ok(self) -> Bool[Array, "*runs"]:
        """Runs whose counts are meaningful."""
        return self.status == np.int8(OK)


def count(batch: RunBatch, policy: Policy, rule: CacheRule) -> Counts:
    """Count what a policy costs under a cache rule.

    Works eagerly, inside ``jax.jit`` and under ``jax.vmap`` over parameters of the policy or the rule, or over runs.

    Args:
      batch: packed runs, or a single run (every leaf without its leading axis).
      policy: what the client shows.
      rule: what the server reuses.

    Returns:
      Counts with arrays of shape [runs, calls] (without ``runs`` for a single run).

    Raises:
      CostModelError: if the rule has a lifetime and a call has no time, or token ids meet traced summary lengths.
    """
    if rule.ttl is not None and not batch.has_time:
        raise CostModelError(
            f"CacheRule.ttl = {rule.ttl} needs the time of every call, and {_without_time(batch)}; "
            "use a rule without ttl"
        )
    width = 0
    if batch.ids is not None:
        if has_tracer(policy):
            raise CostModelError("runs with token ids need concrete policy parameters (no vmap or jit over them)")
        width = batch.longest + policy.added
    return _count(batch, policy, rule, width=width)


def total(values: Int[Array, "*runs calls"]) -> Int[Array, "*runs"]:
    """Sum counts over calls, exactly, also where the caller has x64 off."""
    return _total(values)


@exact
def _total(values: Array) -> Array:
    return jnp.sum(jnp.asarray(values), axis=-1, dtype=jnp.int64)


def _without_time(batch: RunBatch) -> str:
    if has_tracer(batch):
        return "some have none"
    missing = np.argwhere(np.isnan(np.asarray(batch.idle)))[0]
    return f"call {missing[-1]} has none" + (f" (run {missing[0]} of the batch)" if len(missing) == 2 else "")


@exact
def _count(batch: RunBatch, policy: Policy, rule: CacheRule, *, width: int) -> Counts:
    counts: Counts = _compiled(batch, policy, rule, width=width)
    return counts


@functools.partial(jax.jit, static_argnames=("width",))
def _compiled(batch: RunBatch, policy: Policy, rule: CacheRule, *, width: int) -> Counts:
    one = functools.partial(_count_run, policy=policy, rule=rule, width=width)
    if batch.mask.ndim == 1:
        return one(batch)
    # Token buffers are large: one run at a time.
    counts: Counts = jax.vmap(one)(batch) if batch.ids is None else jax.lax.map(one, batch)
    return counts


def _count_run(run: RunBatch, *, policy: Policy, rule: CacheRule, width: int) -> Counts:
    view = policy.view(run)
    prompt, reused, generated = _lengths(run, view, _tracker(run, policy, view, rule, width), rule)
    new = prompt - reused
    processed = new + generated
    # One of the two factors is even, so halving is exact.
    pairs = new * (prompt + reused + 1) // 2 + prompt * generated + generated * (generated + 1) // 2
    status = jnp.where(view.infeasible, INFEASIBLE, OK)
    if policy.needs_reasoning:
        status = jnp.where(run.reasoning_known, status, UNKNOWN_REASONING)
    status = jnp.where(jnp.sum((prompt + generated).astype(jnp.float64) ** 2) < 2.0**63, status, OVERFLOW)

    def settled(values: Array) -> jax.Array:
        return jnp.where(view.mask, jnp.where(status == OK, values, -1), 0)

    return Counts(
        prompt=settled(prompt),
        reused=settled(reused),
        generated=settled(generated),
        processed=settled(processed),
        pairs=settled(pairs),
        mask=view.mask,
        summary=view.summary,
        extra=view.extra,
        status=status.astype(jnp.int8),
    )


def _tracker(run: RunBatch, policy: Policy, view: View, rule: CacheRule, width: int) -> Tracker:
    if run.ids is not None:
        return TokenIds(view, run.ids, width)
    if not policy.nested:
        return AnyHistory(view)
    return Lifetimes(view, latest=not rule.needs_all)


def _lengths(run: RunBatch, view: View, tracker: Tracker, rule: CacheRule) -> tuple[Array, Array, Array]:
    """P, R and G of every step."""
    steps = view.mask.shape[0]
    idle = jnp.repeat(jnp.asarray(run.idle), steps // run.calls)
    expired = jnp.zeros(steps, bool) if rule.ttl is None else idle > jnp.asarray(rule.ttl, idle.dtype)
    if steps != run.calls:  # a request happens at the time of its call: the lifetime ends before whichever comes first
        later = jnp.arange(steps, dtype=jnp.int32) % 2 == 1
        expired &= ~(later & jnp.roll(view.mask, 1))

    def visit(carry: tuple[Any, Earlier], step: jax.Array) -> tuple[tuple[Any, Earlier], tuple[jax.Array, ...]]:
        state, earlier = carry
        shown = (view.birth <= step) & (step < view.death)
        prompt = jnp.sum(jnp.where(shown, view.tokens, 0), dtype=jnp.int64)
        emitted = jnp.sum(jnp.where(view.source == step, view.tokens, 0), dtype=jnp.int64)
        generated = jnp.maximum(emitted - int(rule.last_token == "skipped"), 0)
        mask, cached = view.mask[step], view.cached[step]
        now = Now(step, shown, view.opens[step] | expired[step], cached, prompt, prompt + generated)
        shared_prompt, shared_sequence, state = tracker.visit(state, now)
        reused, hit = reuse(rule, prompt, shared_prompt, shared_sequence, earlier)
        reused, hit = jnp.where(cached, reused, 0), jnp.where(cached, hit, 0)
        if rule.needs_all:
            mine = jnp.arange(steps, dtype=jnp.int32) == step
            block = int64(rule.block)
            end = jnp.maximum(prompt - 1, 0) // block * block
            left = Earlier(prompt, end, hit)
            earlier = Earlier(*(jnp.where(mine, new, old) for new, old in zip(left, earlier, strict=True)))
        return (state, earlier), tuple(jnp.where(mask, value, 0) for value in (prompt, reused, generated))

    nothing = jnp.zeros(steps if rule.needs_all else 0, jnp.int64)
    start = (tracker.start(), Earlier(nothing, nothing, nothing))
    _, (prompt, reused, generated) = jax.lax.scan(visit, start, jnp.arange(steps, dtype=jnp.int32))
    return prompt, reused, generated
