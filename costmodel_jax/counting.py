"""Exact counts of a run under a policy and a cache rule: P, R, G, N and Q as a scan over calls.

Counts are int64 whatever the caller's x64 setting. Source: *Think or Remember* (arXiv 2611.10982):
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

from costmodel_jax.caching import CacheRule, Earlier, Lowered, lower, reuse
from costmodel_jax.calls import Array, RunBatch, bucket
from costmodel_jax.changes import Changes, changes
from costmodel_jax.errors import CostModelError
from costmodel_jax.policies import OK, OVERFLOW, STATUS, Policy, View
from costmodel_jax.precision import exact, has_tracer
from costmodel_jax.prefix import AnyHistory, Lifetimes, Now, TokenIds, Tracker
from costmodel_jax.pytree import pytree

__all__ = ["STATUS", "Counts", "count", "count_view", "total", "work"]


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
        width = bucket(batch.longest + policy.added)
    return _count(batch, policy, rule, width=width)


def work(prompt: Array, reused: Array, generated: Array) -> tuple[Array, Array]:
    """N and Q of calls with int64 P, R and G: processed positions, and the keys they attend to."""
    new = prompt - reused
    # One of the two factors is even, so halving is exact.
    pairs = new * (prompt + reused + 1) // 2 + prompt * generated + generated * (generated + 1) // 2
    return new + generated, pairs


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
    # Two programs, so that policies share the second and rules of a family share both.
    view: View = _views(batch, policy)
    counts: Counts = _counts(view, batch.ids, lower(rule), nested=policy.nested, width=width)
    return counts


@jax.jit
def _views(batch: RunBatch, policy: Policy) -> View:
    return policy.view(batch) if batch.mask.ndim == 1 else jax.vmap(policy.view)(batch)


@functools.partial(jax.jit, static_argnames=("nested", "width"))
def _counts(view: View, ids: Array | None, rule: Lowered, *, nested: bool, width: int) -> Counts:
    def one(view: View, ids: Array | None) -> Counts:
        return count_view(view, changes(view), ids, rule, nested=nested, width=width)

    if view.mask.ndim == 1:
        return one(view, ids)
    if ids is None:
        return jax.vmap(lambda view: one(view, None))(view)
    counts: Counts = jax.lax.map(lambda run: one(*run), (view, ids))  # token buffers are large: one run at a time
    return counts


def count_view(view: View, found: Changes, ids: Array | None, rule: Lowered, *, nested: bool, width: int) -> Counts:
    """The counts of one run's view, traced in a 64-bit scope.

    Args:
      found: of `costmodel_jax.changes.changes`, which all rules share.
      ids: the run's token ids, if it has some.
      nested: of the policy.
      width: with ids, an upper bound on a prompt with its generation.
    """
    tracker: Tracker
    if ids is not None:
        tracker = TokenIds(view, ids, width)
    else:
        tracker = Lifetimes(found, rule.family == "latest") if nested else AnyHistory(view)
    prompt, generated = found.prompt.astype(jnp.int64), jnp.maximum(found.emitted.astype(jnp.int64) - rule.skipped, 0)
    prompt, generated = jnp.where(view.mask, prompt, 0), jnp.where(view.mask, generated, 0)
    reused = _reused(view, prompt, generated, tracker, rule)
    processed, pairs = work(prompt, reused, generated)
    fits = jnp.sum((prompt + generated).astype(jnp.float64) ** 2) < 2.0**63
    status = jnp.where(fits, view.status, jnp.int8(OVERFLOW))

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
        status=status,
    )


def _reused(view: View, prompts: Array, generated: Array, tracker: Tracker, rule: Lowered) -> Array:
    """R of every step."""
    steps = view.mask.shape[0]
    forget = view.opens | (view.idle > rule.ttl)
    keeps_points = rule.family != "latest"

    def visit(carry: tuple[Any, Earlier], step: jax.Array) -> tuple[tuple[Any, Earlier], jax.Array]:
        state, earlier = carry
        prompt, cached = prompts[step], view.cached[step]
        now = Now(step, forget[step], cached, prompt, prompt + generated[step])
        shared_prompt, shared_sequence, state = tracker.visit(state, now)
        reused, hit = reuse(rule, prompt, shared_prompt, shared_sequence, earlier)
        reused, hit = jnp.where(cached, reused, 0), jnp.where(cached, hit, 0)
        if keeps_points:
            mine = jnp.arange(steps, dtype=jnp.int32) == step
            left = Earlier(prompt, jnp.maximum(prompt - 1, 0) // rule.block * rule.block, hit)
            earlier = Earlier(*(jnp.where(mine, new, old) for new, old in zip(left, earlier, strict=True)))
        return (state, earlier), jnp.where(view.mask[step], reused, 0)

    nothing = jnp.zeros(steps if keeps_points else 0, jnp.int64)
    start = (tracker.start(), Earlier(nothing, nothing, nothing))
    return jax.lax.scan(visit, start, jnp.arange(steps, dtype=jnp.int32))[1]
