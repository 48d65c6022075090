"""The longest common prefix of a prompt with what earlier calls left, three ways.

All walk over the steps with a small state and give, for each step, the tokens shared with earlier prompts p_j and with
earlier sequences p_j g_j (0 where step j is not usable).

- ``Lifetimes``: from what changes between steps, for policies under which nothing hidden ever comes back.
- ``AnyHistory``: slot by slot against every earlier call, for histories in which a segment can come back.
- ``TokenIds``: over token ids, across segment borders.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from costmodel_jax.calls import Array
from costmodel_jax.changes import Changes
from costmodel_jax.policies import View

__all__ = ["AnyHistory", "Lifetimes", "Now", "TokenIds", "Tracker"]

State = Any


@dataclasses.dataclass(frozen=True)
class Now:
    """The step being looked at.

    Attributes:
      step: its index.
      forget: nothing earlier can be used any more (a new session, or the cache's lifetime is over).
      cached: the step leaves something for later ones.
      prompt: P, its prompt length.
      left: length of the sequence it leaves, prompt and generation.
    """

    step: Int[Array, ""]
    forget: Bool[Array, ""]
    cached: Bool[Array, ""]
    prompt: Int[Array, ""]
    left: Int[Array, ""]


def _first(differs: Array) -> jax.Array:
    """Index of the first true entry; the length where there is none."""
    index = jnp.arange(differs.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where(differs, index, differs.shape[-1]), axis=-1)


@dataclasses.dataclass(frozen=True)
class Lifetimes:
    """Follows what changed from step to step, for policies under which nothing hidden ever comes back.

    As long as no slot within the common prefix of p_j and the current prompt changes, that prefix keeps its length;
    the first slot that does change cuts it there. So one number per earlier step suffices.

    Attributes:
      changes: what changes at each step.
      latest: keep the latest cached step only; under these policies it shares the longest prefix.
    """

    changes: Changes
    latest: bool

    def start(self) -> State:
        entries = 1 if self.latest else self.changes.kept.shape[0]
        return jnp.zeros(entries, jnp.int64), jnp.zeros(entries, jnp.int64), jnp.full(entries, -2, jnp.int32)

    def visit(self, state: State, now: Now) -> tuple[jax.Array, jax.Array, State]:
        prompt, sequence, made = state
        kept = self.changes.kept[now.step].astype(jnp.int64)
        prompt = jnp.where(now.forget, 0, jnp.minimum(prompt, kept))
        after = jnp.where(made == now.step - 1, self.changes.kept_written[now.step].astype(jnp.int64), kept)
        sequence = jnp.where(now.forget, 0, jnp.minimum(sequence, after))
        fresh = now.cached & (self.latest | (jnp.arange(made.shape[0], dtype=jnp.int32) == now.step))
        state = (
            jnp.where(fresh, now.prompt, prompt),
            jnp.where(fresh, now.left, sequence),
            jnp.where(fresh, now.step, made),
        )
        return prompt, sequence, state


@dataclasses.dataclass(frozen=True)
class AnyHistory:
    """Compares what is shown now with what every earlier step showed, slot by slot."""

    view: View

    def start(self) -> State:
        steps = self.view.mask.shape[0]
        return jnp.zeros(steps, bool), jnp.zeros(steps, jnp.int64)

    def visit(self, state: State, now: Now) -> tuple[jax.Array, jax.Array, State]:
        usable, left = state
        shown = self.view.shown(now.step)
        index = jnp.arange(usable.shape[0], dtype=jnp.int32)
        usable = usable & ~now.forget
        filled = (self.view.tokens > 0)[None, :]
        steps = index[:, None]
        before = (self.view.birth[None, :] <= steps) & (steps < self.view.death[None, :])
        written = before | (self.view.source[None, :] == steps)
        total = jnp.cumsum(jnp.where(shown, self.view.tokens, 0).astype(jnp.int64))
        tokens = jnp.concatenate([jnp.zeros(1, jnp.int64), total])
        shared_prompt = tokens[_first((before ^ shown[None, :]) & filled)]
        shared_sequence = jnp.minimum(tokens[_first((written ^ shown[None, :]) & filled)], left)
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
        shown = self.view.shown(now.step)
        mine = self._render(shown)
        position = jnp.arange(self.width, dtype=jnp.int32)
        agree = jnp.min(jnp.where(sequences != mine[None, :], position, self.width), axis=1).astype(jnp.int64)
        agree = jnp.minimum(agree, now.prompt)
        shared = jnp.minimum(agree, prompts), jnp.minimum(agree, left)
        fresh = now.cached & (jnp.arange(prompts.shape[0], dtype=jnp.int32) == now.step)
        written = self._render(shown | (self.view.source == now.step))
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


Tracker = Lifetimes | AnyHistory | TokenIds
"""``start() -> state`` and ``visit(state, now) -> (shared with prompts, shared with sequences, state)``."""
