"""Softmax attention by blocks: a block of queries meets its keys chunk by chunk, under a running softmax.

Each block visits the chunks from the first to the last that any of its queries can see, read from the segments and
ranks at run time: causality, windows, padding, other segments and the unused end of a cache all cost nothing, and the
compiled program is one loop in one loop, whatever the length.

The backward pass recomputes the weights from the saved output and log-sum-exp (FlashAttention-2, Dao 2023, section
3.1): with ``p = exp(s - lse)`` and ``delta = sum(out * dout)``, ``ds = p * (dout v^T - delta)``. Query heads that share
a key head are folded into the rows of one product. Products that contract over queries take their left side transposed
in memory, [d, rows] by [rows, keys]: XLA's product on CPU runs that at twice the speed of the other orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from remory_jax.actor.attention.visibility import Tokens, visible
from remory_jax.mesh import platform

__all__ = ["blocked"]

HIDDEN = -1e30  # added to the scores of keys that are not visible: absorbs them, and stays finite
TILES = ((256, 256), (256, 128), (128, 128), (64, 64))
"""Queries in a block and keys in a chunk on CPU, in order of preference: XLA shares a product among threads only within
one matrix, and only a large one; but half of what lies on the diagonal is hidden, and caches are small."""
SCORES = 1_200_000  # most scores of a block and a chunk, over rows of the batch and heads
TILE_OF_ACCELERATORS = (512, 512)  # not measured


def blocked(
    q: Float[Array, "batch queries heads dim"],
    k: Float[Array, "batch keys kv_heads dim"],
    v: Float[Array, "batch keys kv_heads value_dim"],
    *,
    queries: Tokens,
    keys: Tokens,
    scale: float,
    window: int | None = None,
    sinks: Float[Array, " heads"] | None = None,
    selected: Bool[Array, "batch queries keys"] | None = None,
    aligned: bool = False,
    rows: int | None = None,
    columns: int | None = None,
) -> Float[Array, "batch queries heads value_dim"]:
    """Grouped-query attention without the scores in memory; the other arguments as in `attention`.

    Reverse-mode differentiable once, by its own rule: no ``jvp``, no second derivatives.

    Args:
      rows, columns: largest number of queries in a block and of keys in a chunk. Scores of a block and a chunk, for
        all rows of the batch and heads, are what is in memory at a time.
    """
    length, key_length = q.shape[1], k.shape[1]
    tile = _tile(length, q.shape[0] * q.shape[2])
    rows = _even(length, tile[0] if rows is None else rows)
    columns = _even(key_length, tile[1] if columns is None else columns)
    tall = partial(_pad, axis=1, after=-length % rows)  # padding has segment 0
    wide = partial(_pad, axis=1, after=-key_length % columns)
    if selected is not None:
        selected = _pad(tall(selected), axis=2, after=-key_length % columns)
    plan = _Plan(rows=rows, columns=columns, aligned=aligned and key_length == length, scale=scale, window=window)
    tokens = jax.tree.map(tall, queries), jax.tree.map(wide, keys)
    return _attend(plan, tall(q), wide(k), wide(v), sinks, *tokens, selected)[:, :length]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The static part of a call."""

    rows: int  # divides the padded number of queries
    columns: int  # divides the padded number of keys
    aligned: bool
    scale: float
    window: int | None


class _Block(NamedTuple):
    """A block of queries."""

    q: Array  # [B, H, n, d]
    tokens: Tokens  # [B, n]
    selected: Array | None  # [B, n, T]


class _Chunk(NamedTuple):
    """A chunk of keys."""

    k: Array  # [B, K, C, d]
    v: Array  # [B, K, C, dv]
    tokens: Tokens  # [B, C]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plan: _Plan,
    q: Array,
    k: Array,
    v: Array,
    sinks: Array | None,
    queries: Tokens,
    keys: Tokens,
    selected: Array | None,
) -> Array:
    return _forward(plan, q, k, v, sinks, queries, keys, selected)[0]


def _forward(
    plan: _Plan,
    q: Array,
    k: Array,
    v: Array,
    sinks: Array | None,
    queries: Tokens,
    keys: Tokens,
    selected: Array | None,
) -> tuple[Array, tuple[Any, ...]]:
    """Output [B, S, H, dv], and what the backward pass needs."""
    batch, length, heads, _ = q.shape
    line = (batch, heads, plan.rows, 1)
    block_at, chunk_at = _blocks(plan, q, queries, selected), _chunks(plan, length, k, v, keys)

    def block(carry: None, x: tuple[Array, tuple[Array, Array]]) -> tuple[None, tuple[Array, Array]]:
        index, (first, last) = x
        mine = block_at(index)

        def chunk(at: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, out = state
            theirs = chunk_at(at)
            scores = _scores(plan, at, mine, theirs)
            higher = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
            weights, shrink = jnp.exp(scores - higher), jnp.exp(top - higher)
            total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
            out = out * shrink + _by_head("bkrt,bktd->bkrd", weights.astype(v.dtype), theirs.v)
            return higher, total, out

        if sinks is None:
            # above HIDDEN, so that hidden keys weigh exp(HIDDEN - HIDDEN / 2) = 0 where nothing else was seen
            top, total = jnp.full(line, HIDDEN / 2, jnp.float32), jnp.zeros(line, jnp.float32)
        else:
            top = jnp.broadcast_to(sinks.astype(jnp.float32)[None, :, None, None], line)
            total = jnp.ones(line, jnp.float32)
        out = jnp.zeros((*line[:3], v.shape[3]), jnp.float32)
        top, total, out = jax.lax.fori_loop(first, last, chunk, (top, total, out))
        total = jnp.where(total == 0.0, 1.0, total)
        return carry, (_swap((out / total).astype(q.dtype)), _swap(top + jnp.log(total)))

    indices = jnp.arange(length // plan.rows, dtype=jnp.int32)
    _, results = jax.lax.scan(block, None, (indices, _bounds(plan, queries, keys)))
    out, lse = map(_join, results)
    return out, (q, k, v, sinks, queries, keys, selected, out, lse)


def _backward(plan: _Plan, residuals: tuple[Any, ...], dout: Array) -> tuple[Array | None, ...]:
    q, k, v, sinks, queries, keys, selected, out, lse = residuals
    batch, length = q.shape[:2]
    groups = k.shape[2]
    block_at, chunk_at = _blocks(plan, q, queries, selected), _chunks(plan, length, k, v, keys)
    delta = jnp.sum(out.astype(jnp.float32) * dout.astype(jnp.float32), axis=-1, keepdims=True)  # [B, S, H, 1]

    def block(carry: tuple[Array, Array], x: tuple[Array, tuple[Array, Array]]) -> tuple[tuple[Array, Array], Array]:
        index, (first, last) = x
        mine = block_at(index)
        mine_dout, mine_delta, mine_lse = (_swap(_take(x, index, plan.rows, axis=1)) for x in (dout, delta, lse))
        # outside the loop, so that they are written out
        q_t, dout_t = (x.reshape(batch, groups, -1, x.shape[3]).mT for x in (mine.q, mine_dout))  # [B, K, d, R]

        def chunk(at: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dq, dk, dv = state
            theirs = chunk_at(at)
            weights = jnp.exp(_scores(plan, at, mine, theirs) - mine_lse)
            dweights = _by_head("bkrd,bktd->bkrt", mine_dout, theirs.v)
            dscores = (weights * (dweights - mine_delta) * plan.scale).astype(q.dtype)
            dq = dq + _by_head("bkrt,bktd->bkrd", dscores, theirs.k)
            dk = _add(dk, _by_key(q_t, dscores), at)
            dv = _add(dv, _by_key(dout_t, weights.astype(q.dtype)), at)
            return dq, dk, dv

        dq, dk, dv = jax.lax.fori_loop(first, last, chunk, (jnp.zeros(mine.q.shape, jnp.float32), *carry))
        return (dk, dv), _swap(dq.astype(q.dtype))

    dk, dv = (jnp.zeros((batch, groups, x.shape[3], x.shape[1]), jnp.float32) for x in (k, v))  # [B, K, d, T]
    indices = jnp.arange(length // plan.rows, dtype=jnp.int32)
    (dk, dv), dq = jax.lax.scan(block, (dk, dv), (indices, _bounds(plan, queries, keys)))
    dk, dv = (x.transpose(0, 3, 1, 2) for x in (dk, dv))
    dsinks = None
    if sinks is not None:
        share = jnp.exp(sinks.astype(jnp.float32)[None, None, :, None] - lse)  # the sink's weight
        dsinks = -jnp.sum(share * delta, axis=(0, 1, 3)).astype(sinks.dtype)
    return _join(dq), dk.astype(k.dtype), dv.astype(v.dtype), dsinks, None, None, None


_attend.defvjp(_forward, _backward)


def _bounds(plan: _Plan, queries: Tokens, keys: Tokens) -> tuple[Int[Array, " blocks"], Int[Array, " blocks"]]:
    """Chunks [first, last) that hold every key that some query of a block sees."""
    far = jnp.int32(2**30)

    def extent(tokens: Tokens, size: int, axis: int) -> list[Array]:
        real = tokens.segments != 0
        found = []
        for x in (tokens.segments, tokens.ranks):
            low, high = (jnp.where(real, x.astype(jnp.int32), other) for other in (far, -far))
            found += [jnp.min(_cut(low, size), axis=2), jnp.max(_cut(high, size), axis=2)]
        return [jnp.expand_dims(x, axis) for x in found]

    low, high, early, late = extent(queries, plan.rows, 2)  # [B, N, 1]
    key_low, key_high, key_early, key_late = extent(keys, plan.columns, 1)  # [B, 1, M]
    live = (key_low <= high) & (key_high >= low) & (key_early <= late)
    if plan.window is not None:
        live = live & (key_late > early - plan.window)
    live = jnp.any(live, axis=0)  # [N, M]
    blocks, count = live.shape
    if plan.aligned:  # ranks that count anew in each segment bound causality less well than columns
        ends = (jnp.arange(blocks, dtype=jnp.int32) + 1) * plan.rows
        live = live & (jnp.arange(count, dtype=jnp.int32)[None, :] * plan.columns < ends[:, None])
    first = jnp.argmax(live, axis=1).astype(jnp.int32)
    last = count - jnp.argmax(live[:, ::-1], axis=1).astype(jnp.int32)
    return first, jnp.where(jnp.any(live, axis=1), last, first)


def _scores(plan: _Plan, at: Array, block: _Block, chunk: _Chunk) -> Float[Array, "batch heads rows columns"]:
    """Scaled scores of a block and a chunk; those of hidden keys are lowered to `HIDDEN`."""
    seen = visible(block.tokens, chunk.tokens, plan.window)
    if block.selected is not None:
        seen = seen & _take(block.selected, at, plan.columns, axis=2)
    mask = jnp.where(seen, 0.0, HIDDEN)[:, None]  # one for all heads: adding it is cheaper than selecting by it
    return _by_head("bkrd,bktd->bkrt", block.q, chunk.k) * plan.scale + mask


def _by_head(subscripts: str, x: Array, keys: Array) -> Array:
    """Product of [B, H, n, .] with keys or values [B, K, C, .], all queries of a key head at once."""
    batch, heads, rows, _ = x.shape
    lines = x.reshape(batch, keys.shape[1], -1, x.shape[3])
    return jnp.einsum(subscripts, lines, keys, preferred_element_type=jnp.float32).reshape(batch, heads, rows, -1)


def _by_key(transposed: Array, x: Array) -> Array:
    """Sum over queries of [B, K, d, R] times [B, H, n, C]: [B, K, d, C]."""
    batch, groups, _, lines = transposed.shape
    x = x.reshape(batch, groups, lines, -1)
    if platform() == "cpu":  # which has no bfloat16 product in the order that XLA makes of this one
        transposed, x = transposed.astype(jnp.float32), x.astype(jnp.float32)
    return jnp.einsum("bkdr,bkrt->bkdt", transposed, x, preferred_element_type=jnp.float32)


def _blocks(plan: _Plan, q: Array, queries: Tokens, selected: Array | None) -> Callable[[Array], _Block]:
    """Blocks by index."""

    def at(index: Array) -> _Block:
        take = partial(_take, index=index, size=plan.rows, axis=1)
        chosen = None if selected is None else take(selected)
        return _Block(_swap(take(q)), jax.tree.map(take, queries), chosen)

    return at


def _chunks(plan: _Plan, length: int, k: Array, v: Array, tokens: Tokens) -> Callable[[Array], _Chunk]:
    """Chunks by index, with heads before keys: reordered all at once where several blocks of queries meet them."""
    again = length > plan.rows
    if again:
        k, v = _swap(k), _swap(v)

    def at(index: Array) -> _Chunk:
        def take(x: Array) -> Array:
            if again:
                return _take(x, index, plan.columns, axis=2)
            return _swap(_take(x, index, plan.columns, axis=1))

        return _Chunk(take(k), take(v), jax.tree.map(lambda x: _take(x, index, plan.columns, axis=1), tokens))

    return at


def _take(x: Array, index: Array, size: int, axis: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(x, index * size, size, axis=axis)


def _add(total: Array, part: Array, index: Array) -> Array:
    """Add to the ``index``-th part of the last axis."""
    size = part.shape[-1]
    part = _take(total, index, size, axis=total.ndim - 1) + part
    return jax.lax.dynamic_update_slice_in_dim(total, part, index * size, axis=-1)


def _tile(length: int, lines: int) -> tuple[int, int]:
    """Default block and chunk for so many queries a row, and ``lines`` rows of the batch times heads."""
    if platform() != "cpu":
        return TILE_OF_ACCELERATORS
    fitting = (tile for tile in TILES if 2 * tile[0] <= length and lines * tile[0] * tile[1] <= SCORES)
    return next(fitting, TILES[-1])


def _even(length: int, most: int) -> int:
    """Size of the fewest equal parts of at most ``most``, so that padding is small; a multiple of 8 where it can be."""
    size = -(-length // -(-length // most))
    return min(-(-size // 8) * 8, most, length)


def _cut(x: Array, size: int) -> Array:
    """[B, S] -> [B, N, size]."""
    return x.reshape(x.shape[0], -1, size)


def _pad(x: Array, *, axis: int, after: int) -> Array:
    return x if after == 0 else jnp.pad(x, [(0, after if dim == axis else 0) for dim in range(x.ndim)])


def _swap(x: Array) -> Array:
    """[B, n, H, d] to [B, H, n, d], and back."""
    return x.transpose(0, 2, 1, 3)


def _join(x: Array) -> Array:
    """[N, B, rows, H, d] -> [B, S, H, d]."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])
