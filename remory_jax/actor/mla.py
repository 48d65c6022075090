"""Multi-head latent attention (GLM): keys and values expand from one latent per token, which is all the cache holds."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from remory_jax.actor.attention import attention
from remory_jax.actor.cache import Memory, lengthen
from remory_jax.actor.call import Call
from remory_jax.actor.config import LatentAttention, Norm
from remory_jax.actor.norms import rms_norm
from remory_jax.actor.parameters import Parameter, Stored, projection, vector
from remory_jax.actor.rotary import rotate
from remory_jax.actor.sparse import index_keys, indexer_parameters, select

__all__ = ["latent_attention", "latent_attention_parameters"]


def latent_attention_parameters(mixer: LatentAttention, hidden: int) -> dict[str, Parameter]:
    """q_down [D, rq], q_up [rq, H, nope + rope] (or q), kv_down [D, r + rope], k_up [r, H, nope], v_up [r, H, dv]."""
    embed, heads = (("embed", hidden),), ("heads", mixer.heads)
    query = (heads, (None, mixer.nope + mixer.rope))
    if mixer.q_rank is None:
        found = {"q": projection("self_attn.q_proj.weight", embed, query)}
    else:
        low = ("rank", mixer.q_rank)
        found = {
            "q_down": projection("self_attn.q_a_proj.weight", embed, (low,)),
            "q_norm": vector("self_attn.q_a_layernorm.weight", low, init="ones"),
            "q_up": projection("self_attn.q_b_proj.weight", (low,), query),
        }
    both = mixer.nope + mixer.value_dim

    def up(start: int, stop: int) -> Parameter:
        stored = Stored(
            name="self_attn.kv_b_proj.weight",
            shape=(mixer.heads * both, mixer.kv_rank),
            split=(mixer.heads, both, mixer.kv_rank),
            pick=(1, start, stop),
            order=(2, 0, 1),
        )
        shape = (mixer.kv_rank, mixer.heads, stop - start)
        return Parameter(shape=shape, axes=("rank", "heads", None), stored=(stored,), outputs=2)

    out = (heads, (None, mixer.value_dim))
    found |= {
        "kv_down": projection("self_attn.kv_a_proj_with_mqa.weight", embed, (("rank", mixer.kv_rank + mixer.rope),)),
        "kv_norm": vector("self_attn.kv_a_layernorm.weight", ("rank", mixer.kv_rank), init="ones"),
        "k_up": up(0, mixer.nope),
        "v_up": up(mixer.nope, both),
        "o": projection("self_attn.o_proj.weight", out, embed),
    }
    if mixer.indexer is not None and not mixer.indexer.shared and mixer.q_rank is not None:
        parameters = indexer_parameters(mixer.indexer, hidden, mixer.q_rank)
        found |= {f"index_{name}": parameter for name, parameter in parameters.items()}
    return found


def latent_attention(
    mixer: LatentAttention,
    norm: Norm,
    weights: Mapping[str, Array],
    x: Float[Array, "batch length d"],
    call: Call,
    memory: Memory | None,
    layer: Array | int,
    selected: Bool[Array, "batch length keys"] | None,
) -> tuple[Float[Array, "batch length d"], Memory, Bool[Array, "batch length keys"] | None]:
    """One layer's mixer; buffers are the normalised latents [R, B, slots, r] and the rotated keys [R, B, slots, rope].

    Args:
      selected: the selection of the previous sparse layer, for layers that share it.

    Returns:
      the output, the buffers (of this layer alone without an incoming cache), and the selection.
    """
    latent_norm = Norm(eps=mixer.latent_eps)
    down = x @ weights["kv_down"]
    now = {"latent": rms_norm(down[..., : mixer.kv_rank], weights["kv_norm"], latent_norm)}
    query_latent = x
    if mixer.q_rank is None:
        q = jnp.einsum("bsd,dhk->bshk", x, weights["q"])
    else:
        query_latent = rms_norm(x @ weights["q_down"], weights["q_norm"], latent_norm)
        q = jnp.einsum("bsr,rhk->bshk", query_latent, weights["q_up"])
    q_nope, q_rope = q[..., : mixer.nope], q[..., mixer.nope :]
    if mixer.rotary is not None:
        angles = call.rotations[mixer.rotary]
        q_rope = rotate(q_rope, angles, mixer.rotary)
        now["rope"] = rotate(down[..., None, mixer.kv_rank :], angles, mixer.rotary)[:, :, 0]
    indexer = mixer.indexer
    if indexer is not None and not indexer.shared:
        now |= index_keys(indexer, weights, x, call, mixer.rotary)

    seen, after = lengthen(memory, layer, call.slot, now)
    if indexer is not None and not indexer.shared:
        selected = select(indexer, weights, x, query_latent, seen, call, mixer.rotary)

    absorbed = memory is not None and _absorbing_is_cheaper(mixer, q.shape[1], seen["latent"].shape[1])
    out = (_absorbed if absorbed else _expanded)(mixer, weights, q_nope, q_rope, seen, call, selected)
    return jnp.einsum("bshv,hvd->bsd", out, weights["o"]), after, selected


def _absorbing_is_cheaper(mixer: LatentAttention, queries: int, keys: int) -> bool:
    """Multiplications per head: expanding every latent once, against attending in the latent's space."""
    heads = mixer.nope + mixer.value_dim
    expanded = keys * mixer.kv_rank * heads + queries * keys * (heads + mixer.rope)
    absorbed = queries * mixer.kv_rank * heads + queries * keys * (2 * mixer.kv_rank + mixer.rope)
    return absorbed < expanded


def _expanded(
    mixer: LatentAttention,
    weights: Mapping[str, Array],
    q_nope: Array,
    q_rope: Array,
    seen: Memory,
    call: Call,
    selected: Array | None,
) -> Float[Array, "batch length heads dv"]:
    """Keys and values of every head, then ordinary attention: the right form where queries are many."""
    k = jnp.einsum("btr,rhk->bthk", seen["latent"], weights["k_up"])
    v = jnp.einsum("btr,rhv->bthv", seen["latent"], weights["v_up"])
    q = q_nope
    if mixer.rope:
        shared = jnp.broadcast_to(seen["rope"][:, :, None, :], (*k.shape[:3], mixer.rope))
        k, q = jnp.concatenate([k, shared], axis=-1), jnp.concatenate([q_nope, q_rope], axis=-1)
    return _attend(mixer, q, k, v, call, selected)


def _absorbed(
    mixer: LatentAttention,
    weights: Mapping[str, Array],
    q_nope: Array,
    q_rope: Array,
    seen: Memory,
    call: Call,
    selected: Array | None,
) -> Float[Array, "batch length heads dv"]:
    """The same numbers with k_up and v_up moved to the queries and the output: one key-value head of latents."""
    q = jnp.einsum("bshk,rhk->bshr", q_nope, weights["k_up"])
    k = v = seen["latent"][:, :, None, :]
    if mixer.rope:
        q, k = jnp.concatenate([q, q_rope], axis=-1), jnp.concatenate([k, seen["rope"][:, :, None, :]], axis=-1)
    return jnp.einsum("bshr,rhv->bshv", _attend(mixer, q, k, v, call, selected), weights["v_up"])


def _attend(mixer: LatentAttention, q: Array, k: Array, v: Array, call: Call, selected: Array | None) -> Array:
    return attention(
        q,
        k,
        v,
        queries=call.tokens,
        keys=call.keys,
        scale=mixer.scale,
        selected=selected,
        aligned=call.aligned,
        implementation=call.attention,
    )
