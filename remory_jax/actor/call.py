"""What one forward pass shares between layers: which tokens are real, where they stand, and what came before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor.attention.visibility import Tokens
from remory_jax.actor.config import ActorConfig, DeltaNet, LatentAttention, Rotary, SoftmaxAttention
from remory_jax.actor.rotary import Rotation, rotation
from remory_jax.actor.sharding import Sharding

__all__ = ["Call", "Places", "Ring", "begin", "columns"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Places:
    """The bookkeeping of a cache, shared by all its layers.

    Attributes:
      full: tokens in the slots of full attention; the first ``used`` were written, padding among them.
      rings: per sliding window, the row's last real tokens, right-aligned.
      recent: segments of the row's last real tokens, right-aligned, for short convolutions.
      segment_id: the caller's id of each row's last real token; 0 before the first.
      segment: the number of its segment, by which tokens know one another.
      rank: number of tokens of that segment so far.
      position: the position after that of the row's last real token.
      used: slots written.
    """

    full: Tokens
    rings: Mapping[int, Tokens]
    recent: Int[Array, "batch taps"]
    segment_id: Int[Array, " batch"]
    segment: Int[Array, " batch"]
    rank: Int[Array, " batch"]
    position: Int[Array, " batch"]
    used: Int[Array, ""]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A sliding window's tokens in this call: what the ring held, then the new ones; and what it holds afterwards."""

    keys: Tokens
    kept: Int[Array, "batch window"]  # columns of ``keys`` that stay
    tokens: Tokens

    def keep(self, values: Array) -> Array:
        """The columns of ``values`` [B, T, ...] that stay in the ring."""
        return columns(values, self.kept)


@dataclass(frozen=True, kw_only=True)
class Call:
    """The part of one forward pass that is the same for every layer."""

    tokens: Tokens  # the new columns
    keys: Tokens  # what full attention sees: the slots after this call's writes, or those before it and the new columns
    slot: Int[Array, ""] | None  # first slot written; None where no slots come in, or none go out
    rings: Mapping[int, Ring]
    rotations: Mapping[Rotary, Rotation]
    before: Places | None
    sharding: Sharding
    attention: str | None  # implementation, None for the best one
    delta: str | None

    @property
    def aligned(self) -> bool:
        """Whether the last keys are the new columns, in order, and the others came before them."""
        return self.slot is None


def columns(values: Array, index: Int[Array, "batch ..."]) -> Array:
    """``values[b, index[b]]`` of every row b: values [B, T, ...] and index [B, *n] give [B, *n, ...]."""
    rows = jnp.arange(len(values)).reshape(-1, *(1,) * (index.ndim - 1))
    return values[rows, index]


def concatenate(first: Tokens, second: Tokens) -> Tokens:
    """Columns side by side."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), first, second)


def empty_places(config: ActorConfig, batch: int, capacity: int) -> Places:
    """A cache's bookkeeping before the first token."""

    def tokens(count: int) -> Tokens:
        return Tokens(segments=jnp.zeros((batch, count), jnp.int32), ranks=jnp.zeros((batch, count), jnp.int32))

    nothing = jnp.zeros(batch, jnp.int32)
    return Places(
        full=tokens(capacity),
        rings={window: tokens(window) for window in windows(config)},
        recent=jnp.zeros((batch, taps(config)), jnp.int32),
        segment_id=nothing,
        segment=nothing,
        rank=nothing,
        position=nothing,
        used=jnp.zeros((), jnp.int32),
    )


def windows(config: ActorConfig) -> tuple[int, ...]:
    """Distinct sliding windows, ascending."""
    mixers = (layer.mixer for layer in config.layers)
    return tuple(
        sorted({mixer.window for mixer in mixers if isinstance(mixer, SoftmaxAttention) and mixer.window is not None})
    )


def taps(config: ActorConfig) -> int:
    """Past inputs the short convolutions need.

    Raises:
      ValueError: convolutions of different lengths, which would need a history each.
    """
    kernels = {layer.mixer.kernel for layer in config.layers if isinstance(layer.mixer, DeltaNet)}
    kernels |= {layer.convolution for layer in config.layers if layer.convolution}
    if len(kernels) > 1:
        raise ValueError(f"short convolutions of {sorted(kernels)} taps in one model; they must have the same number")
    return max(kernels, default=1) - 1


def rotaries(config: ActorConfig) -> frozenset[Rotary]:
    """Distinct rotations of the model's layers."""
    mixers = (layer.mixer for layer in config.layers)
    found = (mixer.rotary for mixer in mixers if isinstance(mixer, SoftmaxAttention | LatentAttention))
    return frozenset(rotary for rotary in found if rotary is not None)


def begin(
    config: ActorConfig,
    segment_ids: Int[Array, "batch length"],
    positions: Int[Array, "batch length"] | None,
    before: Places | None,
    *,
    sharding: Sharding,
    capacity: int,
    keep: bool = True,
    attention: str | None = None,
    delta: str | None = None,
) -> tuple[Call, Places]:
    """Place the new columns after what came before.

    Args:
      segment_ids: 0 for padding; a row may hold several segments, which do not see one another. A segment goes on
        for as long as its id does, into the next call too.
      positions: for the rotary angles; by default each segment counts from 0, on from the cache.
      before: the incoming cache's bookkeeping.
      capacity: slots of full attention in the cache that goes out, where none came in.
      keep: a cache goes out, and an incoming one has room for the new columns; else they are seen behind its slots.

    Returns:
      the call, and the bookkeeping after it.
    """
    batch, length = segment_ids.shape
    start = empty_places(config, batch, 0) if before is None else before
    real = segment_ids != 0  # [B, S]
    segments, ranks = _order(segment_ids, real, start)
    if positions is None:  # a segment that goes on does so after the last position it was given
        goes_on = segments == start.segment[:, None]
        positions = ranks + jnp.where(goes_on, (start.position - start.rank)[:, None], 0)
    tokens = Tokens(segments=segments, ranks=ranks)
    rings = {window: _ring(start.rings[window], tokens, window, fresh=before is None) for window in windows(config)}
    if before is None:
        full = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, capacity - length))), tokens)
    elif not keep:
        full = concatenate(before.full, tokens)
    else:
        full = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice(old, new, (0, before.used)), start.full, tokens
        )
    last = _last(real)
    exists = jnp.any(real, axis=1)

    def after(values: Int[Array, "batch length"], otherwise: Int[Array, " batch"]) -> Int[Array, " batch"]:
        return jnp.where(exists, columns(values, last[:, None])[:, 0], otherwise)

    call = Call(
        tokens=tokens,
        keys=tokens if before is None else full,
        slot=None if before is None or not keep else before.used,
        rings=rings,
        rotations={rotary: rotation(rotary, positions) for rotary in rotaries(config)},
        before=before,
        sharding=sharding,
        attention=attention,
        delta=delta,
    )
    recent = jnp.concatenate([start.recent, segments], axis=1)
    history = start.recent.shape[1]
    placed = Places(
        full=full,
        rings={window: ring.tokens for window, ring in rings.items()},
        recent=columns(recent, _latest(recent != 0, history)) if history else start.recent,
        segment_id=after(segment_ids, start.segment_id),
        segment=after(segments, start.segment),
        rank=after(ranks + 1, start.rank),
        position=after(positions + 1, start.position),
        used=start.used + length,
    )
    return call, placed


def _last(real: Bool[Array, "batch length"]) -> Int[Array, " batch"]:
    """Column of each row's last real token; 0 where there is none."""
    return jnp.max(jnp.where(real, jnp.arange(real.shape[1], dtype=jnp.int32)[None, :], 0), axis=1)


def _order(
    segment_ids: Int[Array, "batch length"], real: Bool[Array, "batch length"], start: Places
) -> tuple[Int[Array, "batch length"], Int[Array, "batch length"]]:
    """The segment each token belongs to, by number, and its rank there; both go on from the incoming cache.

    Segments are numbered from 1 as they come, so an id that returns after another is a segment of its own.
    """
    count = jnp.cumsum(real, axis=1, dtype=jnp.int32)  # real tokens up to and with this one
    at = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None, :]
    latest = jax.lax.cummax(jnp.where(real, at, -1), axis=1)  # last real column up to this one
    previous = jnp.pad(latest, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    before = jnp.where(previous < 0, start.segment_id[:, None], columns(segment_ids, jnp.maximum(previous, 0)))
    starts = real & (segment_ids != before)
    number = start.segment[:, None] + jnp.cumsum(starts, axis=1, dtype=jnp.int32)
    # real tokens before the start of the token's segment; those the cache holds count negative
    base = jax.lax.cummax(jnp.where(starts, count - 1, -(2**30)), axis=1)
    base = jnp.where(base < 0, -start.rank[:, None], base)
    return jnp.where(real, number, 0), jnp.maximum(count - 1 - base, 0)


def _latest(real: Bool[Array, "batch length"], count: int) -> Int[Array, "batch count"]:
    """Columns of each row's last ``count`` real tokens, right-aligned.

    Where there are fewer, columns without a real token fill the left: callers keep enough of them.
    """
    order = jnp.argsort(real, axis=1, stable=True)  # padding first, real tokens after it in order
    return order[:, -count:].astype(jnp.int32)


def _ring(ring: Tokens, tokens: Tokens, window: int, *, fresh: bool) -> Ring:
    keys = concatenate(ring, tokens)  # a fresh ring has ``window`` empty columns, so there are always enough
    kept = _latest(keys.segments != 0, window)
    after = Tokens(segments=columns(keys.segments, kept), ranks=columns(keys.ranks, kept))
    return Ring(keys=tokens if fresh else keys, kept=kept, tokens=after)
