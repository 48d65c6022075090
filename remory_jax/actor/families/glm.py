"""GLM families: latent attention, sparse latent attention, and its hybrid with Kimi Delta Attention."""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodel_jax.architecture.config import REQUIRED, Fields
from costmodel_jax.architecture.schedules import LINEAR, indexer_kinds, kimi_kinds, leading_dense
from costmodel_jax.architecture.sizes import depth_of, heads_of
from remory_jax.actor.config import DeltaNet, Experts, HyperConnections, Indexer, LatentAttention
from remory_jax.actor.families.parts import Layers, checked, dense_of, stack
from remory_jax.actor.rope_fields import magnitude, number, rotary_of

__all__ = ["glm4_moe_lite", "glm5_next", "glm_moe_dsa", "hyper_connections"]


def _sigmoid_experts(f: Fields, experts: int, active: int, scaling: float, limit: float | None = None) -> Experts:
    width = f.integer("moe_intermediate_size", default=REQUIRED)
    sparse = Experts(
        experts=f.integer("n_routed_experts", "num_local_experts", "num_experts", default=experts),
        active=f.integer("num_experts_per_tok", default=active),
        width=width,
        router="sigmoid",
        renormalise=f.flag("norm_topk_prob", default=True),
        scaling=number(f, "routed_scaling_factor", default=scaling),
        groups=f.integer("n_group", default=1),
        kept_groups=f.integer("topk_group", default=1),
        shared_width=width * f.integer("n_shared_experts", default=1, minimum=0),
        limit=limit,
    )
    f.divides("n_group", sparse.groups, "n_routed_experts", sparse.experts)
    if sparse.groups > 1 and sparse.experts // sparse.groups < 2:
        f.fail("n_group", "a group's score is the sum of its two best experts, so it needs at least two")
    if sparse.kept_groups > sparse.groups:
        f.fail("topk_group", f"keeps more than n_group = {sparse.groups} groups")
    if sparse.active > sparse.experts // sparse.groups * sparse.kept_groups:
        f.fail("num_experts_per_tok", "is more than the kept groups hold")
    return checked(f, sparse)


def _latent(
    f: Fields, *, q_rank: int, nope: int, rope: int, eps: float, indexer: Indexer | None = None
) -> LatentAttention:
    """MLA; the sizes are the class's defaults."""
    if f.flag("attention_bias", default=False):
        f.fail("attention_bias", "is not supported for latent attention; no released model has it")
    nope = f.integer("qk_nope_head_dim", default=nope)
    rope = f.integer("qk_rope_head_dim", default=rope, minimum=0)
    if f.integer("qk_head_dim", default=nope + rope) != nope + rope:
        f.fail("qk_head_dim", f"contradicts qk_nope_head_dim + qk_rope_head_dim = {nope} + {rope}")
    rank_given = "q_lora_rank" in f.values and f.values["q_lora_rank"] is None
    scale = float((nope + rope) ** -0.5)
    rotary = None
    if rope:
        interleaved = f.flag("rope_interleave", default=True)
        rotary = rotary_of(f, rope, interleaved=interleaved, partial=None)
        scale *= magnitude(f) ** 2
    if indexer is not None and rank_given:
        f.fail("q_lora_rank", "the DSA indexer reads the query latent, so sparse attention needs its rank")
    if indexer is not None and indexer.head_dim < rope:
        f.fail("index_head_dim", f"is less than qk_rope_head_dim = {rope}")
    return LatentAttention(
        heads=heads_of(f),
        q_rank=None if rank_given else f.integer("q_lora_rank", default=q_rank),
        kv_rank=f.integer("kv_lora_rank", default=512),
        nope=nope,
        value_dim=f.integer("v_head_dim", default=256),
        scale=scale,
        latent_eps=eps,
        rotary=rotary,
        indexer=indexer,
    )


def _indexer(f: Fields, *, shared: bool, pool: int | None = None) -> Indexer:
    top_k = f.integer("index_topk", default=2048)
    if pool is not None:
        f.divides("index_kpool", pool, "index_topk", top_k)
    return Indexer(
        heads=f.integer("index_n_heads", default=32),
        head_dim=f.integer("index_head_dim", default=128),
        top_k=top_k,
        pool=pool,
        tail=f.flag("index_kpool_always_select_tail", default=True),
        shared=shared,
    )


def _indexers(f: Fields, layers: list[int], pool: int | None = None) -> dict[int, Indexer]:
    """The indexer of each of the ``layers``; the first of them must make its own selection."""
    kinds = indexer_kinds(f)
    if layers and kinds[layers[0]] == "shared":
        f.fail("indexer_types", f"layer {layers[0]} shares a selection, but no layer before it makes one")
    return {index: _indexer(f, shared=kinds[index] == "shared", pool=pool) for index in layers}


def glm4_moe_lite(f: Fields) -> Layers:
    """GLM-4.7-Flash: latent attention, a sigmoid router."""
    mixer = _latent(f, q_rank=768, nope=192, rope=64, eps=1e-6)  # the class leaves its latent norms at their default
    return stack([mixer] * depth_of(f), leading_dense(f, 1), _sigmoid_experts(f, 64, 4, 1.8), dense_of(f))


def glm_moe_dsa(f: Fields) -> Layers:
    """The GLM-5 generation: latent attention over selected keys."""
    mixers: list[LatentAttention | DeltaNet] = [
        _latent(f, q_rank=2048, nope=192, rope=64, eps=1e-6, indexer=indexer)
        for indexer in _indexers(f, list(range(depth_of(f)))).values()
    ]
    return stack(mixers, leading_dense(f, 3), _sigmoid_experts(f, 256, 8, 2.5), dense_of(f))


def glm5_next(f: Fields) -> Layers:
    """GLM-5.3-Flash: Kimi Delta Attention, and latent attention over selected pools of keys."""
    kinds = kimi_kinds(f)
    sparse_layers = [index for index, kind in enumerate(kinds) if kind != LINEAR]
    indexers = _indexers(f, sparse_layers, pool=f.integer("index_kpool", default=16))
    eps = number(f, "rms_norm_eps", default=1e-5)
    delta = _kimi_delta(f)
    mixers: list[LatentAttention | DeltaNet] = [
        delta if kind == LINEAR else _latent(f, q_rank=1536, nope=256, rope=0, eps=eps, indexer=indexers[index])
        for index, kind in enumerate(kinds)
    ]
    limit = number(f, "swiglu_limit", default=10.0)
    experts = _sigmoid_experts(f, 288, 8, 2.5, limit=limit)
    return stack(mixers, leading_dense(f, 3), experts, dense_of(f, limit))


def _kimi_delta(f: Fields) -> DeltaNet:
    """KDA from the flat linear_* fields, or from the older linear_attn_config object, which wins."""
    nested = f.values.get("linear_attn_config")
    if nested is None:
        nested = {}
    elif not isinstance(nested, Mapping):
        f.fail("linear_attn_config", "must be an object with head_dim, num_heads and short_conv_kernel_size")
    old = Fields(nested, f.path, f"{f.prefix}linear_attn_config.")
    heads = old.integer("num_heads", default=f.integer("linear_num_heads", default=64))
    width = old.integer("head_dim", default=f.integer("linear_head_dim", default=128))
    bound = _bound(old, "gate_lower_bound") if "gate_lower_bound" in nested else _bound(f, "linear_lower_bound")
    return DeltaNet(
        key_heads=heads,
        value_heads=heads,
        key_dim=width,
        value_dim=width,
        kernel=old.integer("short_conv_kernel_size", default=f.integer("linear_conv_kernel_dim", default=4)),
        stored="kimi",
        gate_rank=width,
        lower_bound=-5.0 if bound is None and old.flag("safe_gate", default=bool(nested)) else bound,
    )


def _bound(f: Fields, name: str) -> float | None:
    """A bound that null switches off and that is -5 where absent."""
    return None if name in f.values and f.values[name] is None else number(f, name, default=-5.0, minimum=-math.inf)


def hyper_connections(f: Fields) -> HyperConnections:
    """GLM-5.3's residual streams."""
    return HyperConnections(
        streams=f.integer("hc_mult", default=4),
        iterations=f.integer("hc_sinkhorn_iters", default=20),
        eps=number(f, "hc_eps", default=1e-6),
    )
