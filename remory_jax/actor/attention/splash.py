"""Softmax attention by the TPU splash kernel of JAX, on each device's own rows and heads.

The kernel skips what causality or a window hides, takes segment ids as the padding mask and differentiates sinks.
Keys may begin before the queries, as with a cache. Lengths are padded to whole tiles.

Its window counts columns; a batch whose columns do not count like ranks (see `columnar`) goes to `blocked` instead, at
run time, and so does a window beside a cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float

from remory_jax.actor.attention.blocked import blocked
from remory_jax.actor.attention.visibility import Tokens, columnar

__all__ = ["obstacle", "splash"]

DIMS = ((64, 64), (128, 128), (256, 256), (192, 128))  # (keys', values') head widths known to compile
BLOCKS = (512, 256, 128)  # rows and columns of the kernel's tiles, the largest that divides the lengths
SPEC: Callable[..., PartitionSpec] = PartitionSpec  # its constructor has no types
BATCH_AXES = ("data", "fsdp")
HEAD_AXIS = "tensor"


def obstacle(dim: int, value_dim: int, *, aligned: bool, selected: bool) -> str | None:
    """Why the kernel cannot take a call of this kind; None where it can."""
    if not aligned:
        return "its last keys are not the queries' own tokens (aligned = False)"
    if selected:
        return "it has a selection of keys"
    if (dim, value_dim) not in DIMS:
        return f"its head widths (dim, value_dim) = {(dim, value_dim)} are none of {', '.join(map(str, DIMS))}"
    return None


def splash(
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
    interpret: bool = False,
) -> Float[Array, "batch queries heads value_dim"]:
    """Grouped-query attention on TPU; the other arguments as in `attention`.

    Where a mesh is set (`jax.set_mesh`), rows are split over its axes ``data`` and ``fsdp`` and heads over ``tensor``,
    each where it divides them; what it does not divide is computed by every device. Without one, the call is one
    device's.

    Args:
      interpret: emulate the kernel, on any backend; for tests.

    Raises:
      ValueError: for a call the kernel cannot take, see `obstacle`.
    """
    length, dim, value_dim = q.shape[1], q.shape[3], v.shape[3]
    reason = obstacle(dim, value_dim, aligned=aligned, selected=selected is not None)
    if reason is not None:
        raise ValueError(f"splash cannot take this call: {reason}; use implementation 'blocked'")
    before = k.shape[1] - length
    if window is not None and window >= k.shape[1]:
        window = None
    if window is not None and before:
        return blocked(
            q, k, v, queries=queries, keys=keys, scale=scale, window=window, sinks=sinks, selected=None, aligned=True
        )
    kernel = functools.partial(_sharded, scale=scale, window=window, interpret=interpret)
    if window is None:
        return kernel(q, k, v, queries, keys, sinks)

    def masked(q: Array, k: Array, v: Array, tokens: Tokens, sinks: Array | None) -> Array:
        return blocked(q, k, v, queries=tokens, keys=tokens, scale=scale, window=window, sinks=sinks, aligned=True)

    def plain(q: Array, k: Array, v: Array, tokens: Tokens, sinks: Array | None) -> Array:
        return kernel(q, k, v, tokens, tokens, sinks)

    out: Array = jax.lax.cond(columnar(queries), plain, masked, q, k, v, queries, sinks)
    return out


def _sharded(
    q: Array,
    k: Array,
    v: Array,
    queries: Tokens,
    keys: Tokens,
    sinks: Array | None,
    *,
    scale: float,
    window: int | None,
    interpret: bool,
) -> Array:
    local = functools.partial(_local, scale=scale, window=window, interpret=interpret)
    mesh = jax.sharding.get_abstract_mesh()
    # inside a caller's own shard_map its axes are manual, and the arrays are a device's already
    free = [name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind != AxisType.Manual]
    rows = tuple(name for name in BATCH_AXES if name in free)
    if q.shape[0] % math.prod(mesh.shape[name] for name in rows):
        rows = ()
    heads = HEAD_AXIS if HEAD_AXIS in free and k.shape[2] % mesh.shape[HEAD_AXIS] == 0 else None
    if not rows and heads is None:
        return local(q, k, v, queries.segments, keys.segments, sinks)
    spec = SPEC(rows, None, heads, None)
    return jax.shard_map(
        local,
        in_specs=(spec, spec, spec, SPEC(rows, None), SPEC(rows, None), None if sinks is None else SPEC(heads)),
        out_specs=spec,
        check_vma=False,  # the kernel does not say over which axes its results vary
    )(q, k, v, queries.segments, keys.segments, sinks)


def _local(
    q: Array,
    k: Array,
    v: Array,
    segments: Array,
    key_segments: Array,
    sinks: Array | None,
    *,
    scale: float,
    window: int | None,
    interpret: bool,
) -> Array:
    length, tile = q.shape[1], BLOCKS[-1]
    after, before = -length % tile, -(k.shape[1] - length) % tile  # padding keeps the queries' own keys last
    q, segments = (_pad(x, 0, after) for x in (q, segments))
    k, v, key_segments = (_pad(x, before, after) for x in (k, v, key_segments))
    kernel = _kernel(q.shape[2], q.shape[1], k.shape[1], window, interpret)
    q = (q.astype(jnp.float32) * scale).astype(q.dtype)
    sinks = None if sinks is None else sinks.astype(q.dtype)  # the kernel gives their gradient in q's dtype

    def row(q: Array, k: Array, v: Array, segments: Array, key_segments: Array) -> Array:
        ids = splash_attention_kernel.SegmentIds(q=segments, kv=key_segments)
        out: Array = kernel(q, k, v, segment_ids=ids, sinks=sinks)  # [H, S, dv]
        return out

    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    out = jax.vmap(row)(q, k, v, segments, key_segments).transpose(0, 2, 1, 3)
    out = jnp.where((segments != 0)[:, :, None, None], out, jnp.zeros((), out.dtype))  # padding sees padding
    return out[:, :length]


def _pad(x: Array, before: int, after: int) -> Array:
    return jnp.pad(x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))


@functools.lru_cache(maxsize=64)
def _kernel(heads: int, length: int, keys: int, window: int | None, interpret: bool) -> Any:
    """The kernel for one device's heads. Its mask tables are made once, outside whatever is being traced."""
    shape = (length, keys)
    mask = (
        splash_attention_mask.CausalMask(shape, offset=keys - length)
        if window is None
        else splash_attention_mask.LocalMask(shape, window_size=(window - 1, 0), offset=0)
    )
    size = next(size for size in BLOCKS if length % size == 0 and keys % size == 0)
    with jax.ensure_compile_time_eval():
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask([mask] * heads),
            block_sizes=splash_attention_kernel.BlockSizes(
                block_q=size,
                block_kv=size,
                block_kv_compute=size,
                block_q_dkv=size,
                block_kv_dkv=size,
                block_kv_dkv_compute=size,
                block_q_dq=size,
                block_kv_dq=size,
            ),
            head_shards=1,
            q_seq_shards=1,
            interpret=interpret,
        )
        return jax.tree.map(np.asarray, kernel)  # of no device and no mesh
