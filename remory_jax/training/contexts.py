"""Sequences that grow piece by piece from shared caches, so that what several have in common is run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor import Actor, Cache
from remory_jax.actor.call import columns
from remory_jax.data.batch import Ids, Lengths

__all__ = [
    "Context",
    "Piece",
    "adjacent",
    "begin",
    "extend",
    "judged",
    "marker",
    "pieces",
    "repeated",
    "rows",
    "sequence",
    "tokens",
]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows in the actor's input-embedding space, some of them padding.

    Attributes:
      embeddings: [B, S, D].
      mask: which rows are real [B, S].
    """

    embeddings: Float[Array, "batch length d"]
    mask: Bool[Array, "batch length"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Context:
    """A sequence so far.

    Attributes:
      cache: of the actor; None before the first row.
      last: final-norm hidden state of each row's last real token [B, D], which predicts what comes next.
    """

    cache: Cache | None
    last: Float[Array, "batch d"]


def begin(actor: Actor, batch: int) -> Context:
    """The empty sequence."""
    return Context(cache=None, last=jnp.zeros((batch, actor.config.hidden), actor.dtype))


def tokens(actor: Actor, ids: Ids, lengths: Lengths) -> Piece:
    """Token ids, padded on the right, as a piece."""
    return Piece(embeddings=actor.embed(ids), mask=_real(ids, lengths))


def marker(actor: Actor, ids: Sequence[int], batch: int) -> Piece:
    """The same ids in every row."""
    return tokens(actor, *repeated(ids, batch))


def repeated(ids: Sequence[int], batch: int) -> tuple[Ids, Lengths]:
    """The same ids in every row, and their lengths."""
    rows = jnp.broadcast_to(jnp.asarray(ids, jnp.int32)[None, :], (batch, len(ids)))
    return rows, jnp.full(batch, len(ids), jnp.int32)


def sequence(actor: Actor, *parts: tuple[Ids, Lengths]) -> tuple[Piece, Int[Array, "batch length"]]:
    """Token ids one part after another, each padded on the right, as a piece whose real rows are adjacent.

    Returns:
      the piece, padded on the left, and the number of the part that each of its rows is of.
    """
    mask = jnp.concatenate([_real(ids, lengths) for ids, lengths in parts], axis=1)
    ids = jnp.concatenate([jnp.asarray(ids, jnp.int32) for ids, _ in parts], axis=1)
    part = jnp.concatenate([jnp.full(ids.shape, number, jnp.int32) for number, (ids, _) in enumerate(parts)], axis=1)
    mask, (ids, part) = adjacent(mask, (ids, part))
    return Piece(embeddings=actor.embed(ids), mask=mask), part


def adjacent(mask: Bool[Array, "batch length"], values: Any) -> tuple[Bool[Array, "batch length"], Any]:
    """Move all padding to the left.

    Attention does not care where padding stands; short convolutions and recurrent states do not reach across it.

    Args:
      values: a tree of arrays [B, S, ...].
    """
    order = jnp.argsort(mask, axis=1, stable=True)

    def moved(value: Array) -> Array:
        return jnp.take_along_axis(value, order.reshape(*order.shape, *(1,) * (value.ndim - 2)), axis=1)

    return moved(mask), jax.tree.map(moved, values)


def _real(ids: Ids, lengths: Lengths) -> Bool[Array, "batch length"]:
    return jnp.arange(ids.shape[1], dtype=jnp.int32)[None, :] < jnp.asarray(lengths)[:, None]


def rows(actor: Actor, soft: Float[Array, "batch length d"], mask: Bool[Array, "batch length"]) -> Piece:
    """Soft rows as a piece. Masked rows are zero, so that nothing in them, not even NaN, reaches a gradient."""
    return Piece(embeddings=jnp.where(mask[..., None], soft, 0).astype(actor.dtype), mask=mask)


def pieces(*parts: Piece) -> Piece:
    """Pieces one after another."""
    return Piece(
        embeddings=jnp.concatenate([part.embeddings for part in parts], axis=1),
        mask=jnp.concatenate([part.mask for part in parts], axis=1),
    )


def extend(
    actor: Actor, context: Context, piece: Piece, *, taps: Sequence[int] = (), stop: int | None = None, **options: Any
) -> tuple[Context, Float[Array, "batch length d"] | None, Float[Array, "taps batch length d"]]:
    """Run the actor over a piece that follows a context, which can be used again.

    Args:
      piece: may be padded on both sides; see `adjacent` for what stands between real rows.
      taps, stop: as ``taps`` and ``stop_after_layer`` of `Actor`.
      options: further arguments of `Actor`.

    Returns:
      the longer context, the final-norm hidden states at the piece [B, S, D] (None with ``stop``), and its taps.
    """
    length = piece.mask.shape[1]
    if length == 0:
        empty = piece.embeddings
        return context, None if stop is not None else empty, jnp.zeros((len(taps), *empty.shape), empty.dtype)
    cache = context.cache
    capacity = None if cache is None else cache.capacity + length
    out = actor(
        embeddings=piece.embeddings,
        segment_ids=piece.mask.astype(jnp.int32),
        cache=cache,
        capacity=capacity,
        taps=tuple(taps),
        stop_after_layer=stop,
        **options,
    )
    if out.hidden is None:
        return context, None, out.taps
    last = jnp.where(jnp.any(piece.mask, axis=1)[:, None], _last_of(out.hidden, piece.mask), context.last)
    return Context(cache=out.cache, last=last), out.hidden, out.taps


def _last_of(hidden: Float[Array, "batch length d"], mask: Bool[Array, "batch length"]) -> Float[Array, "batch d"]:
    at = jnp.arange(mask.shape[1], dtype=jnp.int32)[None, :]
    return columns(hidden, jnp.max(jnp.where(mask, at, 0), axis=1)[:, None])[:, 0]


def judged(
    before: Context, hidden: Float[Array, "batch length d"], mask: Bool[Array, "batch length"], width: int
) -> Float[Array, "batch width d"]:
    """The hidden states that predict the last ``width`` columns of a piece: each is that of the real token before.

    Args:
      before: the context the piece followed.
      hidden, mask: of the piece; the response is its last ``width`` columns, and nothing pads within it.
    """
    start = hidden.shape[1] - width
    lead = hidden[:, :start], mask[:, :start]
    first = before.last
    if start:
        first = jnp.where(jnp.any(lead[1], axis=1)[:, None], _last_of(*lead), first)
    return jnp.concatenate([first[:, None], hidden[:, start : start + width - 1]], axis=1)
