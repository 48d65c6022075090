"""Linear-attention layers: Gated DeltaNet (Qwen3-Next, Qwen3.5) and Kimi Delta Attention (GLM-5.3)."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from remory_jax.actor.cache import Memory, layer_of, store
from remory_jax.actor.call import Call
from remory_jax.actor.config import DeltaNet, Norm
from remory_jax.actor.delta import gated_delta_rule, short_convolution
from remory_jax.actor.norms import l2_normalise, rms
from remory_jax.actor.parameters import Parameter, Stored, projection, vector

__all__ = ["delta_net", "delta_net_parameters"]


def delta_net_parameters(mixer: DeltaNet, hidden: int) -> dict[str, Parameter]:
    """Projections to heads, short convolutions [heads, d, taps], decay, write strength, output gate, norm and output.

    Queries, keys and values are kept apart whatever the checkpoint does, so that each splits over heads.
    """
    return _kimi_parameters(mixer, hidden) if mixer.kimi else _gated_parameters(mixer, hidden)


def _sizes(mixer: DeltaNet) -> dict[str, tuple[int, int]]:
    key, value = (mixer.key_heads, mixer.key_dim), (mixer.value_heads, mixer.value_dim)
    return {"q": key, "k": key, "v": value}


def _gated_parameters(mixer: DeltaNet, hidden: int) -> dict[str, Parameter]:
    sizes = _sizes(mixer)
    rows = {name: heads * width for name, (heads, width) in sizes.items()}
    ends = {"q": rows["q"], "k": 2 * rows["q"], "v": 2 * rows["q"] + rows["v"]}
    found: dict[str, Parameter] = {}
    for name, (heads, width) in sizes.items():
        start, stop = ends[name] - rows[name], ends[name]
        found[f"{name}_conv"] = Parameter(
            shape=(heads, width, mixer.kernel),
            axes=("heads", None, None),
            stored=(
                Stored(name="linear_attn.conv1d.weight", shape=(ends["v"], 1, mixer.kernel), pick=(0, start, stop)),
            ),
        )
    for name, (heads, width), stored in _inputs(mixer, hidden):
        dims, axes = ((heads, width), ("heads", None)) if width else ((heads,), ("heads",))
        found[name] = Parameter(shape=(hidden, *dims), axes=("embed", *axes), stored=(stored,), outputs=len(dims))
    value_heads = ("heads", mixer.value_heads)
    return found | {
        "decay": vector("linear_attn.A_log", value_heads, init="zeros", exact=True),
        "decay_bias": vector("linear_attn.dt_bias", value_heads, init="ones", exact=True),
        "norm": vector("linear_attn.norm.weight", (None, mixer.value_dim), init="ones"),
        "o": projection("linear_attn.out_proj.weight", (value_heads, (None, mixer.value_dim)), (("embed", hidden),)),
    }


def _inputs(mixer: DeltaNet, hidden: int) -> list[tuple[str, tuple[int, int], Stored]]:
    """(name, (heads, width or 0), where) of q, k, v, the gate z, and per head the write strength b and the decay a."""
    groups, key, ratio = mixer.key_heads, mixer.key_dim, mixer.value_heads // mixer.key_heads
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    key_size, value_size, scalar = (mixer.key_heads, key), (mixer.value_heads, mixer.value_dim), (mixer.value_heads, 0)
    if mixer.stored == "flat":

        def flat(name: str, rows: int, start: int = 0, stop: int | None = None) -> Stored:
            pick = (0, start, rows if stop is None else stop)
            return Stored(name=f"linear_attn.{name}.weight", shape=(rows, hidden), pick=pick, order=(1, 0))

        mixed = 2 * keys + values
        return [
            ("q", key_size, flat("in_proj_qkv", mixed, 0, keys)),
            ("k", key_size, flat("in_proj_qkv", mixed, keys, 2 * keys)),
            ("v", value_size, flat("in_proj_qkv", mixed, 2 * keys, mixed)),
            ("z", value_size, flat("in_proj_z", values)),
            ("b", scalar, flat("in_proj_b", mixer.value_heads)),
            ("a", scalar, flat("in_proj_a", mixer.value_heads)),
        ]

    def grouped(name: str, width: int, start: int, stop: int) -> Stored:
        """A range of the rows that belong to each key head."""
        return Stored(
            name=f"linear_attn.{name}.weight",
            shape=(groups * width, hidden),
            split=(groups, width, hidden),
            pick=(1, start, stop),
            order=(2, 0, 1),
        )

    block = ratio * mixer.value_dim
    width = 2 * key + 2 * block
    return [
        ("q", key_size, grouped("in_proj_qkvz", width, 0, key)),
        ("k", key_size, grouped("in_proj_qkvz", width, key, 2 * key)),
        ("v", value_size, grouped("in_proj_qkvz", width, 2 * key, 2 * key + block)),
        ("z", value_size, grouped("in_proj_qkvz", width, 2 * key + block, width)),
        ("b", scalar, grouped("in_proj_ba", 2 * ratio, 0, ratio)),
        ("a", scalar, grouped("in_proj_ba", 2 * ratio, ratio, 2 * ratio)),
    ]


def _kimi_parameters(mixer: DeltaNet, hidden: int) -> dict[str, Parameter]:
    embed, heads = (("embed", hidden),), ("heads", mixer.key_heads)
    wide, low = (heads, (None, mixer.key_dim)), (("rank", mixer.gate_rank),)
    rows = mixer.key_heads * mixer.key_dim
    found: dict[str, Parameter] = {}
    for name in ("q", "k", "v"):
        found[name] = projection(f"self_attn.{name}_proj.weight", embed, wide)
        found[f"{name}_conv"] = Parameter(
            shape=(mixer.key_heads, mixer.key_dim, mixer.kernel),
            axes=("heads", None, None),
            stored=(Stored(name=f"self_attn.{name}_conv1d.weight", shape=(rows, 1, mixer.kernel)),),
        )
    return found | {
        "a_down": projection("self_attn.f_a_proj.weight", embed, low),
        "a_up": projection("self_attn.f_b_proj.weight", low, wide),
        "z_down": projection("self_attn.g_a_proj.weight", embed, low),
        "z_up": projection("self_attn.g_b_proj.weight", low, wide),
        "b": projection("self_attn.b_proj.weight", embed, (heads,)),
        "decay": vector("self_attn.A_log", heads, init="zeros", exact=True),
        "decay_bias": vector("self_attn.dt_bias", *wide, init="ones", exact=True),
        "norm": vector("self_attn.o_norm.weight", (None, mixer.value_dim), init="ones"),
        "o": projection("self_attn.o_proj.weight", wide, embed),
    }


def delta_net(
    mixer: DeltaNet,
    norm: Norm,
    weights: Mapping[str, Array],
    x: Float[Array, "batch length d"],
    call: Call,
    memory: Memory | None,
    layer: Array | int,
) -> tuple[Float[Array, "batch length d"], Memory]:
    """One layer's mixer; buffers are the last inputs of the convolutions and the state [R, B, H, dk, dv] in float32."""
    batch, length, _ = x.shape
    before = call.before if memory is not None else None
    now: dict[str, Array] = {}
    mixed: dict[str, Array] = {}
    for name, (heads, width) in _sizes(mixer).items():
        inputs = jnp.einsum("bsd,dhk->bshk", x, weights[name]).reshape(batch, length, heads * width)
        taps = weights[f"{name}_conv"].reshape(heads * width, mixer.kernel)
        past = None if memory is None else layer_of(memory[f"{name}_past"], layer)
        y, now[f"{name}_past"], _ = short_convolution(
            inputs,
            taps,
            segment_ids=call.tokens.segments,
            history=past,
            history_segment_ids=None if before is None else before.recent,
        )
        mixed[name] = jax.nn.silu(y).reshape(batch, length, heads, width)

    repeat = mixer.value_heads // mixer.key_heads
    q = jnp.repeat(l2_normalise(mixed["q"]) * mixer.key_dim**-0.5, repeat, axis=2)
    k = jnp.repeat(l2_normalise(mixed["k"]), repeat, axis=2)
    out, now["state"] = gated_delta_rule(
        q.astype(x.dtype),
        k.astype(x.dtype),
        mixed["v"],
        _log_decay(mixer, weights, x),
        jax.nn.sigmoid(jnp.einsum("bsd,dh->bsh", x, weights["b"]).astype(jnp.float32)),
        segment_ids=call.tokens.segments,
        state=None if memory is None else layer_of(memory["state"], layer),
        state_segment_ids=None if before is None else before.segment,
        implementation=call.delta,
    )
    after = now if memory is None else {name: store(memory[name], layer, now[name]) for name in now}
    normal = rms(out, norm.eps) * weights["norm"].astype(jnp.float32)[None, None, None]
    gated = (normal * _gate(mixer, weights, x)).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", gated, weights["o"]), after


def _log_decay(
    mixer: DeltaNet, weights: Mapping[str, Array], x: Float[Array, "batch length d"]
) -> Float[Array, "batch length *per"]:
    """Logarithm of what is left of the state after a token: per head, or per head and key channel."""
    if not mixer.kimi:
        inner = jnp.einsum("bsd,dh->bsh", x, weights["a"]).astype(jnp.float32)
        return -jnp.exp(weights["decay"])[None, None] * jax.nn.softplus(inner + weights["decay_bias"][None, None])
    low = x @ weights["a_down"]
    inner = jnp.einsum("bsr,rhk->bshk", low, weights["a_up"]).astype(jnp.float32) + weights["decay_bias"][None, None]
    rate = jnp.exp(weights["decay"])[None, None, :, None]
    if mixer.lower_bound is None:
        return -rate * jax.nn.softplus(inner)
    return mixer.lower_bound * jax.nn.sigmoid(rate * inner)


def _gate(
    mixer: DeltaNet, weights: Mapping[str, Array], x: Float[Array, "batch length d"]
) -> Float[Array, "batch length heads dv"]:
    """The output gate in float32: silu, or for Kimi sigmoid of a low-rank projection."""
    if not mixer.kimi:
        return jax.nn.silu(jnp.einsum("bsd,dhk->bshk", x, weights["z"]).astype(jnp.float32))
    low = x @ weights["z_down"]
    return jax.nn.sigmoid(jnp.einsum("bsr,rhk->bshk", low, weights["z_up"]).astype(jnp.float32))
