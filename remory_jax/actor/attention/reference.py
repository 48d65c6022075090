"""Softmax attention as it is defined: every score, a full mask, one softmax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from remory_jax.actor.attention.visibility import Tokens, visible

__all__ = ["reference"]


def reference(
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
) -> Float[Array, "batch queries heads value_dim"]:
    """Grouped-query attention with all scores in memory; arguments as in `attention`. ``aligned`` changes nothing."""
    del aligned
    batch, length, heads, dim = q.shape
    groups = k.shape[2]
    seen = visible(queries, keys, window)
    if selected is not None:
        seen = seen & selected
    seen = seen[:, None, None]  # [B, 1, 1, S, T]
    folded = q.reshape(batch, length, groups, heads // groups, dim)
    scores = jnp.einsum("bskgd,btkd->bkgst", folded, k, preferred_element_type=jnp.float32) * scale
    # the mask enters the maximum as well as the sum, so that a query that sees nothing divides zero by one
    top = jnp.max(scores, axis=-1, keepdims=True, where=seen, initial=-1e30)
    sink = None if sinks is None else sinks.astype(jnp.float32).reshape(1, groups, heads // groups, 1, 1)
    if sink is not None:
        top = jnp.maximum(top, sink)
    top = jax.lax.stop_gradient(top)  # the quotient does not depend on it
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, scores - top, 0.0)), 0.0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sink is not None:
        total = total + jnp.exp(sink - top)
    weights = (weights / jnp.where(total == 0.0, 1.0, total)).astype(v.dtype)
    out = jnp.einsum("bkgst,btkd->bskgd", weights, v, preferred_element_type=jnp.float32)
    return out.reshape(batch, length, heads, v.shape[-1]).astype(q.dtype)
