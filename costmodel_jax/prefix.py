"""The longest common prefix of a prompt with what earlier calls left, three ways.

All walk over the steps with a small state and give, for each step, the tokens shared with every earlier prompt p_j and
with every earlier sequence p_j g_j (0 where step j is not usable).

- ``LatestCall``: one number, for policies that only ever hide: then the latest call shares the longest prefix.
- ``EveryCall``: a number per earlier call, from lifetimes alone, for the same policies.
- ``AnyHistory``: a number per earlier call, for histories in which a segment can come back.
- ``TokenIds``: a number per earlier call, over token ids, across segment borders.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from costmodel_jax.calls import Array
from costmodel_jax.policies import View

__all__ = ["AnyHistory", "EveryCall", "LatestCall", "Now", "TokenIds", "Tracker"]

State = Any


@dataclasses.dataclass(frozen=True)
class Now:
    """The step being looked at.

    Attributes:
      step: its index.
      shown: which slots its prompt shows.
      forget: nothing earlier can be used any more (a new session, or the cache's lifetime is over).
      cached: the step leaves something for later ones.
      prompt: P, its prompt length.
      left: length of the sequence it leaves, prompt and generation.
    """

    step: Int[Array, ""]
    shown: Bool[Array, "slots"]
    forget: Bool[Array, ""]
    cached: Bool[Array, ""]
    prompt: Int[Array, ""]
    left: Int[Array, ""]


class Tracker(Protocol):
    """A way to find common prefixes."""

    def start(self) -> State:
        """The state before the first step."""

    def visit(self, state: State, now: Now) -> tuple[jax.Array, jax.Array, State]:
        """Tokens shared with each earlier prompt and sequence, and the next state."""


def _first(differs: Array) -> jax.Array:
    """Index of the first true entry; the length where there is none."""
    index = jnp.arange(differs.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where(differs, index, differs.shape[-1]), axis=-1)


def _tokens_before(view: View, shown: Array) -> jax.Array:
    """Shown tokens before each slot, and all of them as the last entry."""
    total = jnp.cumsum(jnp.where(shown, view.tokens, 0).astype(jnp.int64))
    return jnp.concatenate([jnp.zeros(1, jnp.int64), total])


def _generated(view: View, step: Array) -> jax.Array:
    return jnp.asarray(view.source == step)


def _shown(view: View, step: Array) -> jax.Array:
    return jnp.asarray((view.birth <= step) & (step < view.death))


@dataclasses.dataclass(frozen=True)
class LatestCall:
    """The first slot at which anything changed since the latest cached step, for its prompt and for its sequence."""

    view: View

    def start(self) -> State:
        return jnp.int32(0), jnp.int32(0), jnp.zeros((), bool), jnp.int64(0)

    def visit(self, state: State, now: Now) -> tuple[jax.Array, jax.Array, State]:
        prompt, sequence, was_cached, left = state
        filled = self.view.tokens > 0
        before = _shown(self.view, now.step - 1)
        written = before | (_generated(self.view, now.step - 1) & was_cached)
        prompt = jnp.where(now.forget, 0, jnp.minimum(prompt, _first((before ^ now.shown) & filled)))
        sequence = jnp.where(now.forget, 0, jnp.minimum(sequence, _first((written ^ now.shown) & filled)))
        slot = jnp.arange(self.view.tokens.shape[0], dtype=jnp.int32)
        shared_prompt, shared_sequence = (
            jnp.sum(jnp.where(now.shown & (slot < changed), self.view.tokens, 0), dtype=jnp.int64)
            for changed in (prompt, sequence)
        )
        shared = shared_prompt[None], jnp.minimum(shared_sequence, left)[None]
        untouched = jnp.int32(self.view.tokens.shape[0])
        state = (
            jnp.where(now.cached, untouched, prompt),
            jnp.where(now.cached, untouched, sequence),
            now.cached,
            jnp.where(now.cached, now.left, left),
        )
        return *shared, state


@dataclasses.dataclass(frozen=True)
class EveryCall:
    """As ``LatestCall``, with one entry for every earlier step."""

    view: View

    def start(self) -> State:
        steps = self.view.mask.shape[0]
        return jnp.zeros(steps, jnp.int32), jnp.zeros(steps, jnp.int32), jnp.zeros(steps, jnp.int64)

    def visit(self, state: State, now: Now) -> tuple[jax.Array, jax.Array, State]:
        prompt, sequence, left = state
        index = jnp.arange(prompt.shape[0], dtype=jnp.int32)
        filled = self.view.tokens > 0
        before = _shown(self.view, now.step - 1)
        changed = _first((before ^ now.shown) & filled)
        written = before | _generated(self.view, now.step - 1)
        changed_after_latest = jnp.where(index == now.step - 1, _first((written ^ now.shown) & filled), changed)
        prompt = jnp.where(now.forget, 0, jnp.minimum(prompt, changed))
        sequence = jnp.where(now.forget, 0, jnp.minimum(sequence, changed_after_latest))
        tokens = _tokens_before(self.view, now.shown)
        shared = tokens[prompt], jnp.minimum(tokens[sequence], left)
        fresh = now.cached & (index == now.step)
        untouched = jnp.int32(self.view.tokens.shape[0])
        state = (
            jnp.where(fresh, untouched, prompt),
            jnp.where(fresh, untouched, sequence),
            jnp.where(fresh, now.left, left),
        )
        return *shared, state


@dataclasses.dataclass(frozen=True)
class AnyHistory:
    """Compares what is shown now with what every earlier step showed, slot by slot."""

    view: View

    def start(self) -> State:
        steps = self.view.mask.shape[0]
        return jnp.zeros(steps, bool), jnp.zeros(steps, jnp.int64)

    def visit(self, state: State, now: Now) -> tuple[jax.Array, jax.Array, State]:
        usable, left = state
        index = jnp.arange(usable.shape[0], dtype=jnp.int32)
        usable = usable & ~now.forget
        filled = self.view.tokens > 0
        before = (self.view.birth <= index[:, None]) & (index[:, None] < self.view.death)
        written = before | (self.view.source == index[:, None])
        tokens = _tokens_before(self.view, now.shown)
        shared_prompt = tokens[_first((before ^ now.shown[None, :]) & filled)]
        shared_sequence = jnp.minimum(tokens[_first((written ^ now.shown[None, :]) & filled)], left)
        fresh = now.cached & (index == now.step)
        shared = jnp.where(usable, shared_prompt, 0), jnp.where(usable, shared_sequence, 0)
        return *shared, (usable | fresh, jnp.where(fresh, now.left, left))


@dataclasses.dataclass(frozen=True)
class TokenIds:
    """Compares token ids of rendered prompts, so that equal text in different segments is found too.

    Attributes:
      view: the run's view.
      ids: token ids that ``view.offset`` points into.
      width: upper bound on the length of a prompt with its generation.
    """

    view: View
    ids: Int[Array, "ids"]
    width: int

    def start(self) -> State:
        steps = self.view.mask.shape[0]
        return (
            jnp.zeros((steps, self.width), jnp.int32),
            jnp.zeros(steps, jnp.int64),
            jnp.zeros(steps, jnp.int64),
        )

    def visit(self, state: State, now: Now) -> tuple[jax.Array, jax.Array, State]:
        sequences, prompts, left = state
        prompts, left = jnp.where(now.forget, 0, prompts), jnp.where(now.forget, 0, left)
        mine = self._render(now.shown)
        position = jnp.arange(self.width, dtype=jnp.int32)
        agree = jnp.min(jnp.where(sequences != mine[None, :], position, self.width), axis=1).astype(jnp.int64)
        agree = jnp.minimum(agree, now.prompt)
        shared = jnp.minimum(agree, prompts), jnp.minimum(agree, left)
        fresh = now.cached & (jnp.arange(prompts.shape[0], dtype=jnp.int32) == now.step)
        written = self._render(now.shown | _generated(self.view, now.step))
        state = (
            jnp.where(fresh[:, None], written[None, :], sequences),
            jnp.where(fresh, now.prompt, prompts),
            jnp.where(fresh, now.left, left),
        )
        return *shared, state

    def _render(self, shown: Array) -> jax.Array:
        """The token at every position; tokens without an id get a negative one of their own."""
        ends = jnp.cumsum(jnp.where(shown, self.view.tokens, 0).astype(jnp.int32))
        position = jnp.arange(self.width, dtype=jnp.int32)
        slot = jnp.minimum(jnp.searchsorted(ends, position, side="right"), ends.shape[0] - 1)
        within = position - (ends - jnp.where(shown, self.view.tokens, 0).astype(jnp.int32))[slot]
        own = jnp.cumsum(self.view.tokens.astype(jnp.int32)) - self.view.tokens.astype(jnp.int32)
        offset = self.view.offset[slot]
        return jnp.where(offset >= 0, self.ids[offset + within], -1 - own[slot] - within)
