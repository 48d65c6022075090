"""The memory network as a pure function of its weights."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.layers import Summary, global_layer, local_layer, norm, rotary_table, table_cast
from remory_jax.memory.layout import Layout, global_mask, local_mask
from remory_jax.memory.parameters import Tree

__all__ = ["forward"]


def forward(
    config: MemoryConfig,
    weights: Tree,
    scale: Float[Array, ""],
    features: Float[Array, "batch source features"],
    places: Layout,
    summary: Summary | None,
    depth: Int[Array, "*batch"],
    *,
    dtype: Any = jnp.float32,
    remat: bool = False,
    collect: bool = False,
) -> tuple[Float[Array, "batch slots d"], dict[str, Any]]:
    """The network as a pure function of its weights; `MemoryNetwork` checks and calls it.

    Args:
      scale: root mean square of the rows.
      collect: also return what is inside.

    Returns:
      the rows [B, N, D]; and, where asked for, what recordings are compared with: ``source`` [B, T, D], and of the
      local layers, stacked, ``attention``, ``summary`` and ``hidden`` [L - 1, B, N, D], of the last ``last_attention``
      and ``last_hidden``.
    """
    batch, length = features.shape[:2]
    count, d, slots = len(config.target_layer_ids), config.hidden_size, places.slot_mask.shape[1]
    cast = functools.partial(jax.tree.map, lambda x: x.astype(dtype))
    top = cast({name: value for name, value in weights.items() if name not in ("local", "last")})
    taps = features.astype(dtype).reshape(batch, length, count, d)
    source = norm(config, top["hidden_norm"], jnp.einsum("btkd,kde->bte", taps, top["fc"]))  # [B, T, D]
    z = _start(config, top, source, places, depth)
    real = places.slot_mask
    slot_angles = rotary_table(config, places.slot_positions)
    seen: dict[str, Any] = {"source": source}

    if "local" in weights:
        angles = (rotary_table(config, places.source_positions), slot_angles)
        near = local_mask(places, config.local_window)
        if summary is not None:
            summary = Summary(states=summary.states.astype(dtype), mask=summary.mask)

        def body(z: Array, layer: Tree) -> tuple[Array, tuple[Array, Array, Array] | None]:
            z, (read, conditioned) = local_layer(config, cast(layer), z, source, summary, angles, near, real)
            return z, (read, conditioned, z) if collect else None

        step = jax.checkpoint(body, prevent_cse=False) if remat else body
        z, inside = jax.lax.scan(step, z, weights["local"])
        if collect:
            seen["attention"], seen["summary"], seen["hidden"] = inside
    z, seen["last_attention"] = global_layer(config, cast(weights["last"]), z, slot_angles, global_mask(places), real)
    seen["last_hidden"] = z
    rows = norm(config, top["norm"], z).astype(jnp.float32) * table_cast(config, scale)[None, None, None]
    assert rows.shape == (batch, slots, d)
    return jnp.where(real[..., None], rows, 0).astype(dtype), seen


def _start(
    config: MemoryConfig,
    top: Tree,
    source: Float[Array, "batch source d"],
    places: Layout,
    depth: Int[Array, "*batch"],
) -> Float[Array, "batch slots d"]:
    """The slots before the first layer."""
    batch, slots = places.slot_mask.shape
    z = jnp.broadcast_to(top["query"][None, None], (batch, slots, config.hidden_size))
    if "depth" in top:
        deep = top["depth"][jnp.broadcast_to(depth, (batch,))]
        z = z + deep[:, None]
    if "pool" in top:
        own = (places.source_positions // config.compression_ratio)[:, None, :] == places.slot_ids[:, :, None]
        own &= places.source_mask[:, None, :] & places.slot_mask[:, :, None]  # [B, N, T]
        share = own.astype(jnp.float32)
        share = share / jnp.maximum(jnp.sum(share, axis=2, keepdims=True), 1)
        z = z + jnp.einsum("bnt,btd->bnd", share.astype(z.dtype), source) @ top["pool"]
    return z
