"""Which keys a query may see: its own segment's, not later than itself, within the window."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from costmodel_jax.pytree import pytree

__all__ = ["Tokens", "columnar", "visible"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What attention must know of a batch's tokens.

    Attributes:
      segments: which sequence of the row a token belongs to; 0 is padding, which nothing sees and which sees nothing.
      ranks: order among the real tokens; rises strictly along the columns of each segment. Gaps are allowed, and ranks
        may count through the row or anew in each segment. Decides causality and windows; padding's ranks are ignored.
    """

    segments: Int[Array, "batch length"]
    ranks: Int[Array, "batch length"]


def visible(queries: Tokens, keys: Tokens, window: int | None) -> Bool[Array, "batch queries keys"]:
    """The definition: same segment, not padding, ``rank_k <= rank_q`` and, with a window, ``rank_q - rank_k < window``.

    Args:
      window: number of ranks a query sees, its own included; None for all before it.
    """
    mine, theirs = queries.segments[:, :, None], keys.segments[:, None, :]
    distance = queries.ranks[:, :, None] - keys.ranks[:, None, :]  # [B, S, T]
    seen = (mine == theirs) & (mine != 0) & (distance >= 0)
    return seen if window is None else seen & (distance < window)


def columnar(tokens: Tokens) -> Bool[Array, ""]:
    """Whether tokens of one segment are never further apart in columns than in ranks, in any row of the batch.

    Then a window by columns holds every key of the window by ranks. True of rows padded left, right or between
    segments that come in ascending order; false of rows with padding inside a segment.
    """
    segments, ranks = tokens.segments, tokens.ranks.astype(jnp.int32)
    columns = jnp.arange(segments.shape[1], dtype=jnp.int32)[None, :]
    latest = jax.lax.cummax(jnp.where(segments != 0, columns, -1), axis=1)  # last real column up to this one
    highest = jax.lax.cummax(segments, axis=1)
    before = jnp.pad(latest, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]  # last real column before this one
    at = jnp.maximum(before, 0)
    segment_before, rank_before, highest_before = (
        jnp.take_along_axis(values, at, axis=1) for values in (segments, ranks, highest)
    )
    continues = (segments == segment_before) & (ranks - rank_before >= columns - before)
    starts = segments > highest_before
    return jnp.all((segments == 0) | (before < 0) | continues | starts)
