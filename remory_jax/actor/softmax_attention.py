"""Softmax attention layers: grouped queries, full or sliding, with norms, gates, biases and sinks as the family has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from remory_jax.actor.attention import attention
from remory_jax.actor.attention.visibility import Tokens
from remory_jax.actor.cache import Memory, layer_of, lengthen, store
from remory_jax.actor.call import Call
from remory_jax.actor.config import Norm, SoftmaxAttention
from remory_jax.actor.norms import rms_norm
from remory_jax.actor.parameters import Parameter, projection, vector
from remory_jax.actor.rotary import rotate

__all__ = ["softmax_attention", "softmax_attention_parameters"]


def softmax_attention_parameters(mixer: SoftmaxAttention, hidden: int, norm: Norm) -> dict[str, Parameter]:
    """q [D, H, d] (2d with a gate, gate last), k and v [D, K, d], o [H, d, D]; biases, head norms and sinks if any."""
    embed = (("embed", hidden),)
    query = (("heads", mixer.heads), (None, mixer.head_dim * (2 if mixer.gated else 1)))
    value = (("kv_heads", mixer.kv_heads), (None, mixer.head_dim))
    out = (("heads", mixer.heads), (None, mixer.head_dim))
    found = {
        "q": projection("self_attn.q_proj.weight", embed, query),
        "k": projection("self_attn.k_proj.weight", embed, value),
        "v": projection("self_attn.v_proj.weight", embed, value),
        "o": projection("self_attn.o_proj.weight", out, embed),
    }
    if mixer.bias:
        found |= {
            f"{name}_bias": vector(f"self_attn.{name}_proj.bias", *dims, init="zeros")
            for name, dims in (("q", query), ("k", value), ("v", value), ("o", embed))
        }
    if mixer.qk_norm:
        neutral: Literal["zeros", "ones"] = "zeros" if norm.zero_centred else "ones"
        found |= {
            f"{name}_norm": vector(f"self_attn.{name}_norm.weight", (None, mixer.head_dim), init=neutral)
            for name in ("q", "k")
        }
    if mixer.sinks:
        found["sinks"] = vector("self_attn.sinks", ("heads", mixer.heads), init="zeros")
    return found


def softmax_attention(
    mixer: SoftmaxAttention,
    norm: Norm,
    weights: Mapping[str, Array],
    x: Float[Array, "batch length d"],
    call: Call,
    memory: Memory | None,
    layer: Array | int,
) -> tuple[Float[Array, "batch length d"], Memory]:
    """One layer's mixer.

    Args:
      memory: the stacked buffers of an incoming cache, k and v [R, B, slots, K, d], or None.
      layer: which of the R this is.

    Returns:
      the output, and the stacked buffers with this layer's written; without an incoming cache this layer's own
      k and v, unstacked.
    """
    q, k, v = (_project(weights, name, x) for name in ("q", "k", "v"))
    gate = None
    if mixer.gated:
        q, gate = jnp.split(q, 2, axis=-1)
    if mixer.qk_norm:
        q, k = rms_norm(q, weights["q_norm"], norm), rms_norm(k, weights["k_norm"], norm)
    angles = call.rotations[mixer.rotary]
    q = rotate(q, angles, mixer.rotary)
    now = {"k": rotate(k, angles, mixer.rotary), "v": v}
    keys, seen, after = (_slide if mixer.window else _extend)(mixer, now, call, memory, layer)
    out = attention(
        q,
        seen["k"],
        seen["v"],
        queries=call.tokens,
        keys=keys,
        scale=mixer.head_dim**-0.5,
        window=mixer.window,
        sinks=weights.get("sinks"),
        aligned=call.aligned,
        implementation=call.attention,
    )
    if gate is not None:
        out = out * jax.nn.sigmoid(gate)
    y = jnp.einsum("bshk,hkd->bsd", out, weights["o"])
    return (y + weights["o_bias"][None, None] if mixer.bias else y), after


def _project(
    weights: Mapping[str, Array], name: str, x: Float[Array, "batch length d"]
) -> Float[Array, "batch length heads k"]:
    y = jnp.einsum("bsd,dhk->bshk", x, weights[name])
    bias = weights.get(f"{name}_bias")
    return y if bias is None else y + bias[None, None]


_Seen = tuple[Tokens, Memory, Memory]


def _extend(mixer: SoftmaxAttention, now: Memory, call: Call, memory: Memory | None, layer: Array | int) -> _Seen:
    """Full attention: what is seen, and the buffers afterwards."""
    return call.keys, *lengthen(memory, layer, call.slot, now)


def _slide(mixer: SoftmaxAttention, now: Memory, call: Call, memory: Memory | None, layer: Array | int) -> _Seen:
    """A sliding window: the ring's columns and the new ones are seen; the last ``window`` real ones are kept."""
    assert mixer.window is not None
    ring = call.rings[mixer.window]
    if memory is None:
        fresh = {name: jnp.zeros((len(new), mixer.window, *new.shape[2:]), new.dtype) for name, new in now.items()}
    else:
        fresh = {name: layer_of(memory[f"ring_{name}"], layer) for name in now}
    wide = {name: jnp.concatenate([fresh[name], new], axis=1) for name, new in now.items()}
    kept = {f"ring_{name}": ring.keep(wide[name]) for name in now}
    if memory is None:
        return ring.keys, now, kept
    return ring.keys, wide, {name: store(memory[name], layer, value) for name, value in kept.items()}
