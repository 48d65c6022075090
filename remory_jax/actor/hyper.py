"""Manifold-constrained hyper-connections: a residual of several streams (GLM-5.3; mHC)."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from remory_jax.actor.config import HyperConnections
from remory_jax.actor.norms import rms
from remory_jax.actor.parameters import Parameter, Stored

__all__ = ["collapse", "expand", "hyper_parameters"]


def hyper_parameters(hyper: HyperConnections, hidden: int, name: str) -> dict[str, Parameter]:
    """``mix`` [N D, 2N + N^2], ``base`` and ``scale``: all in float32, as every mixing weight follows from them."""
    streams = hyper.streams
    outputs, inputs = (2 + streams) * streams, streams * hidden

    def flat(part: str, size: int, init: str) -> Parameter:
        stored = Stored(name=f"hc_{name}_{part}", shape=(size,))
        return Parameter(shape=(size,), axes=(None,), stored=(stored,), init=init, exact=True)  # type: ignore[arg-type]

    return {
        "mix": Parameter(
            shape=(inputs, outputs),
            axes=(None, None),
            stored=(Stored(name=f"hc_{name}_fn", shape=(outputs, inputs), order=(1, 0)),),
            exact=True,
        ),
        "base": flat("base", outputs, "zeros"),
        "scale": flat("scale", 3, "ones"),
    }


def collapse(
    hyper: HyperConnections, weights: Mapping[str, Array], streams: Float[Array, "batch length n d"], eps: float
) -> tuple[Float[Array, "batch length d"], tuple[Float[Array, "batch length n"], Float[Array, "batch length n n"]]]:
    """A sublayer's input, and the weights with which `expand` puts its output back.

    The mixing matrix is made doubly stochastic by ``iterations`` Sinkhorn normalisations.
    """
    batch, length, n, d = streams.shape
    flat = rms(streams.reshape(batch, length, n * d), eps)
    m = flat @ weights["mix"]  # [B, S, 2N + N^2]
    base, scale = weights["base"][None, None], weights["scale"]
    pre = jax.nn.sigmoid(m[..., :n] * scale[0] + base[..., :n]) + hyper.eps
    post = 2 * jax.nn.sigmoid(m[..., n : 2 * n] * scale[1] + base[..., n : 2 * n])
    logits = m[..., 2 * n :] * scale[2] + base[..., 2 * n :]
    mix = jax.nn.softmax(logits.reshape(batch, length, n, n), axis=-1) + hyper.eps

    def normalise(mix: Array, axis: int) -> Array:
        return mix / (jnp.sum(mix, axis=axis, keepdims=True) + hyper.eps)

    def once(mix: Array, _: None) -> tuple[Array, None]:
        return normalise(normalise(mix, -1), -2), None

    mix, _ = jax.lax.scan(once, normalise(mix, -2), length=hyper.iterations - 1)
    x = jnp.sum(pre[..., None] * streams.astype(jnp.float32), axis=2)
    return x.astype(streams.dtype), (post, mix)


def expand(
    streams: Float[Array, "batch length n d"],
    y: Float[Array, "batch length d"],
    mixing: tuple[Float[Array, "batch length n"], Float[Array, "batch length n n"]],
) -> Float[Array, "batch length n d"]:
    """``out_j = post_j y + sum_i mix_ij stream_i``."""
    post, mix = mixing
    mixed = jnp.einsum("bsij,bsid->bsjd", mix, streams.astype(jnp.float32))
    return (post[..., None] * y.astype(jnp.float32)[:, :, None] + mixed).astype(streams.dtype)
