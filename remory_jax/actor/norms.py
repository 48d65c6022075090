"""Root-mean-square norms, always computed in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from remory_jax.actor.config import Norm

__all__ = ["l2_normalise", "layer_norm", "rms", "rms_norm"]


def rms(x: Float[Array, "... d"], eps: float) -> Float[Array, "... d"]:
    """``x / sqrt(mean(x^2) + eps)`` over the last dimension, in float32."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x: Float[Array, "... d"], weight: Float[Array, " d"], norm: Norm) -> Float[Array, "... d"]:
    """`rms` times a weight, in the order of casts and with the offset that ``norm`` says; in the dtype of ``x``."""
    dtype = x.dtype
    weight = _broadcast(weight, x.ndim)
    if norm.zero_centred:
        return (rms(x, norm.eps) * (1.0 + weight.astype(jnp.float32))).astype(dtype)
    if norm.late_cast:
        return (rms(x, norm.eps) * weight.astype(jnp.float32)).astype(dtype)
    return rms(x, norm.eps).astype(dtype) * weight.astype(dtype)


def layer_norm(
    x: Float[Array, "... d"], weight: Float[Array, " d"], bias: Float[Array, " d"], eps: float
) -> Float[Array, "... d"]:
    """Mean and variance normalisation with weight and bias; in the dtype of ``x``."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    weight, bias = (_broadcast(value.astype(jnp.float32), x.ndim) for value in (weight, bias))
    return (normal * weight + bias).astype(x.dtype)


def l2_normalise(x: Float[Array, "... d"], eps: float = 1e-6) -> Float[Array, "... d"]:
    """``x / sqrt(sum(x^2) + eps)`` over the last dimension, in float32; the eps is inside, so zero stays zero."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


def _broadcast(weight: Array, rank: int) -> Array:
    return weight.reshape((1,) * (rank - weight.ndim) + weight.shape)
