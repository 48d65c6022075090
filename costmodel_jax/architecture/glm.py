"""GLM families, from config fields to layers: latent attention, sparse latent attention, and its hybrid with KDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel_jax.architecture.blocks import Indexer, hyper_connected, kimi_delta_attention, latent_attention
from costmodel_jax.architecture.config import REQUIRED, Fields
from costmodel_jax.architecture.layers import FeedForward, Layer, Mixer
from costmodel_jax.architecture.schedules import FULL, INDEXED, LINEAR, indexer_kinds, kimi_kinds, leading_dense
from costmodel_jax.architecture.sizes import depth_of, experts_of, feed_forwards, heads_of, hidden_of, stack

__all__ = ["glm4_moe_lite", "glm5_next", "glm_moe_dsa"]


@dataclass(frozen=True, kw_only=True)
class _LatentSizes:
    """Class defaults of a GLM family's latent attention and experts."""

    q_rank: int
    nope: int
    rope: int
    experts: int
    active: int


def _latent(f: Fields, sizes: _LatentSizes, indexer: Indexer | None = None) -> Mixer:
    nope = f.integer("qk_nope_head_dim", default=sizes.nope)
    rope = f.integer("qk_rope_head_dim", default=sizes.rope, minimum=0)
    if f.integer("qk_head_dim", default=nope + rope) != nope + rope:
        f.fail("qk_head_dim", f"contradicts qk_nope_head_dim + qk_rope_head_dim = {nope} + {rope}")
    return latent_attention(
        hidden_of(f),
        heads_of(f),
        _q_rank(f, sizes),
        f.integer("kv_lora_rank", default=512),
        nope,
        rope,
        f.integer("v_head_dim", default=256),
        indexer,
    )


def _q_rank(f: Fields, sizes: _LatentSizes) -> int | None:
    """The query latent; an explicit null means that queries are projected in one step."""
    if "q_lora_rank" in f.values and f.values["q_lora_rank"] is None:
        return None
    return f.integer("q_lora_rank", default=sizes.q_rank)


def _glm_experts(f: Fields, sizes: _LatentSizes) -> FeedForward:
    shared = f.integer("n_shared_experts", default=1, minimum=0) * f.integer("moe_intermediate_size", default=REQUIRED)
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    return experts_of(f, experts=sizes.experts, active=sizes.active, shared=shared, names=names)


def _blocks(f: Fields, sizes: _LatentSizes, dense_layers: int) -> list[FeedForward]:
    return feed_forwards(f, _glm_experts(f, sizes), leading_dense(f, dense_layers))


def _sparse_latent(
    f: Fields, sizes: _LatentSizes, layers: Sequence[int], *, pool: int | None = None
) -> Mapping[int, Mixer]:
    """Latent attention with DSA for each of the ``layers``."""
    q_rank = _q_rank(f, sizes)
    if q_rank is None:
        f.fail("q_lora_rank", "the DSA indexer reads the query latent, so sparse attention needs its rank")
    selections = indexer_kinds(f)
    if layers and selections[layers[0]] == "shared":
        f.fail("indexer_types", f"layer {layers[0]} shares a selection, but no layer before it makes one")
    heads, head_dim = f.integer("index_n_heads", default=32), f.integer("index_head_dim", default=128)
    top_k = f.integer("index_topk", default=2048)
    if pool is not None:
        f.divides("index_kpool", pool, "index_topk", top_k)
        f.divides("index_kpool", pool, "2 index_n_heads index_head_dim", 2 * heads * head_dim)
    mixers = {
        selection: _latent(
            f,
            sizes,
            Indexer(
                q_rank=q_rank,
                heads=heads,
                head_dim=head_dim,
                top_k=top_k,
                pool=pool,
                tail=f.flag("index_kpool_always_select_tail", default=True),
                shared=selection == "shared",
            ),
        )
        for selection in set(selections)
    }
    return {index: mixers[selections[index]] for index in layers}


def glm4_moe_lite(f: Fields) -> tuple[Layer, ...]:
    """GLM-4.7-Flash: latent attention in every layer, experts from the second layer on."""
    sizes = _LatentSizes(q_rank=768, nope=192, rope=64, experts=64, active=4)
    return stack([_latent(f, sizes)] * depth_of(f), _blocks(f, sizes, dense_layers=1))


def glm_moe_dsa(f: Fields) -> tuple[Layer, ...]:
    """The GLM-5 generation: sparse latent attention in every layer, experts from the fourth layer on."""
    sizes = _LatentSizes(q_rank=2048, nope=192, rope=64, experts=256, active=8)
    depth = depth_of(f)
    f.schedule("layer_types", depth, (INDEXED, FULL))  # every layer is sparse, under either name
    mixers = _sparse_latent(f, sizes, range(depth))
    return stack([mixers[index] for index in range(depth)], _blocks(f, sizes, dense_layers=3))


def glm5_next(f: Fields) -> tuple[Layer, ...]:
    """GLM-5.3-Flash: three KDA layers, then sparse latent attention with pooled keys; four residual streams."""
    sizes = _LatentSizes(q_rank=1536, nope=256, rope=0, experts=288, active=8)
    hidden = hidden_of(f)
    sparse_layers = [index for index, kind in enumerate(kimi_kinds(f)) if kind != LINEAR]
    latent = _sparse_latent(f, sizes, sparse_layers, pool=f.integer("index_kpool", default=16))
    delta = _kimi_delta(f)
    streams = f.integer("hc_mult", default=4)
    pairs = [
        hyper_connected(latent.get(index, delta), feed_forward, hidden, streams)
        for index, feed_forward in enumerate(_blocks(f, sizes, dense_layers=3))
    ]
    return stack([mixer for mixer, _ in pairs], [feed_forward for _, feed_forward in pairs])


def _kimi_delta(f: Fields) -> Mixer:
    """KDA from the flat linear_* fields, or from the older linear_attn_config object, which wins."""
    nested = f.values.get("linear_attn_config")
    if nested is None:
        nested = {}
    elif not isinstance(nested, Mapping):
        f.fail("linear_attn_config", "must be an object with head_dim, num_heads and short_conv_kernel_size")
    old = Fields(nested, f.path, f"{f.prefix}linear_attn_config.")
    return kimi_delta_attention(
        hidden_of(f),
        old.integer("num_heads", default=f.integer("linear_num_heads", default=64)),
        old.integer("head_dim", default=f.integer("linear_head_dim", default=128)),
        old.integer("short_conv_kernel_size", default=f.integer("linear_conv_kernel_dim", default=4)),
    )
