"""Softmax attention by `jax.nn.dot_product_attention`."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from remory_jax.actor.attention.visibility import Tokens, visible

__all__ = ["dot_product"]


def dot_product(
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
    kernel: Literal["xla", "cudnn"] = "xla",
) -> Float[Array, "batch queries heads value_dim"]:
    """Grouped-query attention with all scores in memory; the other arguments as in `attention`.

    Its gradient in bfloat16 needs JAX's standard dtype promotion, not the strict one.

    Args:
      kernel: that function's own implementation.

    Raises:
      ValueError: if values are not as wide as keys, which the function asks for.
    """
    del aligned
    if v.shape[3] != k.shape[3]:
        raise ValueError(
            f"dot_product needs values as wide as keys, and has value_dim = {v.shape[3]}, dim = {k.shape[3]}; "
            f"use implementation 'blocked' or 'reference'"
        )
    seen = visible(queries, keys, window)
    if selected is not None:
        seen = seen & selected
    mask, bias = seen[:, None], None  # [B, 1, S, T]
    if sinks is not None:
        # A sink is one more key, zero as are its value and its score but for the bias. (That function's log-sum-exp
        # would do for the output, but no gradient flows through it.)
        k, v = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (k, v))
        mask = jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=True)
        bias = jnp.pad(sinks.astype(jnp.float32)[None, :, None, None], ((0, 0), (0, 0), (0, 0), (k.shape[1] - 1, 0)))
    with jax.numpy_dtype_promotion("standard"):  # it promotes bfloat16 to float32 by itself
        out = jax.nn.dot_product_attention(q, k, v, bias, mask, scale=scale, implementation=kernel)
    return jnp.where(jnp.any(seen, axis=2)[:, :, None, None], out, jnp.zeros((), out.dtype))
