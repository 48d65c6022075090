"""What the prompt of every step holds, and how much of it stands as it stood a step before.

A prompt is the sum of the slots alive at its step, and the common prefix with the step before ends at the first slot
that came or went in between. Looking at every slot in every step would cost steps x slots; so slots are taken in blocks
whose live tokens at every step are known from what comes and goes, and only the block of the first change is looked
into.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Int

from costmodel_jax.calls import Array
from costmodel_jax.policies import View
from costmodel_jax.pytree import pytree

__all__ = ["Changes", "changes"]

BLOCK = 16  # slots


@pytree()
@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """Tokens by step, of the type of the view's.

    Attributes:
      prompt: shown.
      emitted: generated.
      kept: shown before the first slot that the step before did not show, or that it showed and that is gone.
      kept_written: the same against what the step before showed and generated.
    """

    prompt: Int[Array, "steps"]
    emitted: Int[Array, "steps"]
    kept: Int[Array, "steps"]
    kept_written: Int[Array, "steps"]


def changes(view: View) -> Changes:
    """Of one run's view."""
    steps, slots = view.mask.shape[0], view.tokens.shape[0]
    blocks = -(-slots // BLOCK)
    index = jnp.arange(slots, dtype=jnp.int32)
    filled = view.tokens > 0
    lives = filled & (view.birth < view.death)
    birth, death = (jnp.clip(at, 0, steps) for at in (view.birth, view.death))
    tokens = jnp.where(lives, view.tokens, 0)
    came = jnp.zeros((blocks, steps + 1), tokens.dtype)
    came = came.at[index // BLOCK, birth].add(tokens).at[index // BLOCK, death].add(-tokens)
    alive = jnp.cumsum(came[:, :steps], axis=1, dtype=tokens.dtype)  # of a block, at a step
    before = jnp.concatenate([jnp.zeros((1, steps), tokens.dtype), jnp.cumsum(alive, axis=0, dtype=tokens.dtype)])

    written = jnp.where(filled & (view.source >= 0), jnp.clip(view.source + 1, 0, steps), steps)
    stays = lives & (view.birth <= written) & (written < view.death)  # after what generated it

    def first(*found: tuple[Array, Array]) -> Array:
        least = jnp.full(steps + 1, slots, jnp.int32)
        for at, which in found:
            least = least.at[at].min(jnp.where(which, index, slots))
        return least[:steps]

    gone = death, lives
    kept = first((birth, lives), gone)
    new = birth, lives & ~(stays & (birth == written))
    kept_written = first(new, gone, (written, filled & ~stays))

    def upto(slot: Array) -> Array:
        """Tokens alive at each step in the slots before ``slot``."""
        block = slot // BLOCK
        inside = jnp.minimum(block[:, None] * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)[None], slots - 1)
        step = jnp.arange(steps, dtype=jnp.int32)
        own = (inside < slot[:, None]) & (birth[inside] <= step[:, None]) & (step[:, None] < death[inside])
        return before[block, step] + jnp.sum(jnp.where(own, tokens[inside], 0), axis=1, dtype=tokens.dtype)

    return Changes(
        prompt=before[-1],
        emitted=jnp.zeros(steps + 1, tokens.dtype)
        .at[jnp.where(view.source >= 0, jnp.clip(view.source, 0, steps), steps)]
        .add(view.tokens)[:steps],
        kept=upto(kept),
        kept_written=upto(kept_written),
    )
