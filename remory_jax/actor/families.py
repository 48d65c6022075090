"""Hugging Face config fields -> `ActorConfig`, one function per family."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from costmodel_jax.architecture.config import REQUIRED, Fields, read_config
from costmodel_jax.architecture.schedules import (
    LINEAR,
    SLIDING,
    alternating_kinds,
    has_window,
    hybrid_kinds,
    indexer_kinds,
    kimi_kinds,
    leading_dense,
    qwen3_kinds,
    sparse_steps,
)
from costmodel_jax.architecture.sizes import depth_of, head_dim_of, heads_of, hidden_of, kv_heads_of, window_of
from costmodel_jax.errors import InputError
from remory_jax.actor.config import (
    ActorConfig,
    DeltaNet,
    DenseMLP,
    Experts,
    HyperConnections,
    Indexer,
    LatentAttention,
    LayerConfig,
    Norm,
    SoftmaxAttention,
)
from remory_jax.actor.rope_fields import magnitude, number, rotary_of, scaling_of

__all__ = ["FAMILIES", "actor_config"]

_Layers = tuple[LayerConfig, ...]


def _stack(
    mixers: Sequence[SoftmaxAttention | LatentAttention | DeltaNet],
    is_sparse: tuple[bool, ...],
    sparse: Experts | None,
    dense: Callable[[], DenseMLP],
) -> _Layers:
    """Layers from their halves; the dense width is read only where a layer has one."""
    mlp = None if all(is_sparse) else dense()
    blocks = [sparse if chosen else mlp for chosen in is_sparse]
    return tuple(
        LayerConfig(mixer=mixer, feed_forward=block)
        for mixer, block in zip(mixers, blocks, strict=True)
        if block is not None
    )


def _dense(f: Fields, limit: float | None = None) -> Callable[[], DenseMLP]:
    return lambda: DenseMLP(width=f.integer("intermediate_size", default=REQUIRED), limit=limit)


def _attention(
    f: Fields,
    *,
    kv_heads: int | None,
    head_dim: int | None,
    window: int | None = None,
    partial: float = 1.0,
    theta: float = 1e4,
    qk_norm: bool = False,
    gated: bool = False,
    bias: bool = False,
    sinks: bool = False,
) -> SoftmaxAttention:
    """Softmax attention; ``kv_heads``, ``head_dim``, ``partial``, ``theta`` and ``bias`` are the class's defaults."""
    width = head_dim_of(f, head_dim)
    return SoftmaxAttention(
        heads=heads_of(f),
        kv_heads=kv_heads_of(f, kv_heads),
        head_dim=width,
        rotary=rotary_of(f, width, theta=theta, partial=partial),
        window=window,
        qk_norm=qk_norm,
        gated=gated,
        bias=f.flag("attention_bias", default=bias),
        sinks=sinks,
    )


def _llama(f: Fields) -> _Layers:
    depth = depth_of(f)
    return _stack([_attention(f, kv_heads=None, head_dim=None)] * depth, (False,) * depth, None, _dense(f))


def _qwen3(f: Fields) -> _Layers:
    mixers = [
        _attention(f, kv_heads=32, head_dim=128, qk_norm=True, window=window_of(f, 4096) if kind == SLIDING else None)
        for kind in qwen3_kinds(f)
    ]
    return _stack(mixers, (False,) * len(mixers), None, _dense(f))


def _softmax_experts(f: Fields, experts: int, active: int, *, renormalise: bool, shared: bool = False) -> Experts:
    return _chosen(
        f,
        Experts(
            experts=f.integer("num_experts", "num_local_experts", default=experts),
            active=f.integer("num_experts_per_tok", default=active),
            width=f.integer("moe_intermediate_size", default=REQUIRED),
            router="softmax",
            renormalise=renormalise,
            shared_width=f.integer("shared_expert_intermediate_size", default=512) if shared else 0,
            shared_gate=shared,
        ),
    )


def _chosen(f: Fields, experts: Experts) -> Experts:
    if experts.active > experts.experts:
        f.fail(
            "num_experts_per_tok", f"{experts.active} experts per token of {experts.experts}; one of the two is wrong"
        )
    return experts


def _qwen3_moe(f: Fields) -> _Layers:
    window = window_of(f, 4096) if has_window(f) else None
    mixer = _attention(f, kv_heads=4, head_dim=None, qk_norm=True, window=window)
    sparse = _softmax_experts(f, 128, 8, renormalise=f.flag("norm_topk_prob", default=False))
    return _stack([mixer] * depth_of(f), sparse_steps(f), sparse, _dense(f))


def _gpt_oss(f: Fields) -> _Layers:
    mixers = [
        _attention(
            f,
            kv_heads=8,
            head_dim=64,
            theta=1.5e5,
            bias=True,
            sinks=True,
            window=window_of(f, 128) if kind == SLIDING else None,
        )
        for kind in alternating_kinds(f)
    ]
    sparse = _chosen(
        f,
        Experts(
            experts=f.integer("num_local_experts", "num_experts", default=128),
            active=f.integer("num_experts_per_tok", "experts_per_token", default=4),
            width=f.integer("intermediate_size", default=REQUIRED),
            router="chosen_softmax",
            limit=number(f, "swiglu_limit", default=7.0),
            alpha=number(f, "swiglu_alpha", default=1.702),
        ),
    )
    return _stack(mixers, (True,) * len(mixers), sparse, _dense(f))


def _hybrid(f: Fields, *, kv_heads: int, stored: Literal["flat", "grouped"]) -> list[SoftmaxAttention | DeltaNet]:
    key_heads = f.integer("linear_num_key_heads", default=16)
    value_heads = f.integer("linear_num_value_heads", default=32)
    f.divides("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    full = _attention(f, kv_heads=kv_heads, head_dim=256, partial=0.25, qk_norm=True, gated=True)
    linear = DeltaNet(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=f.integer("linear_key_head_dim", default=128),
        value_dim=f.integer("linear_value_head_dim", default=128),
        kernel=f.integer("linear_conv_kernel_dim", default=4),
        stored=stored,
    )
    return [linear if kind == LINEAR else full for kind in hybrid_kinds(f)]


def _qwen3_next(f: Fields) -> _Layers:
    sparse = _softmax_experts(f, 512, 10, renormalise=f.flag("norm_topk_prob", default=True), shared=True)
    return _stack(_hybrid(f, kv_heads=2, stored="grouped"), sparse_steps(f), sparse, _dense(f))


def _qwen3_5(f: Fields) -> _Layers:
    return _stack(_hybrid(f, kv_heads=4, stored="flat"), (False,) * depth_of(f), None, _dense(f))


def _qwen3_5_moe(f: Fields) -> _Layers:
    sparse = _softmax_experts(f, 256, 8, renormalise=True, shared=True)
    return _stack(_hybrid(f, kv_heads=2, stored="flat"), (True,) * depth_of(f), sparse, _dense(f))


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
    return _chosen(f, sparse)


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


def _glm4_moe_lite(f: Fields) -> _Layers:
    mixer = _latent(f, q_rank=768, nope=192, rope=64, eps=1e-6)  # the class leaves its latent norms at their default
    return _stack([mixer] * depth_of(f), leading_dense(f, 1), _sigmoid_experts(f, 64, 4, 1.8), _dense(f))


def _glm_moe_dsa(f: Fields) -> _Layers:
    mixers: list[LatentAttention | DeltaNet] = [
        _latent(f, q_rank=2048, nope=192, rope=64, eps=1e-6, indexer=indexer)
        for indexer in _indexers(f, list(range(depth_of(f)))).values()
    ]
    return _stack(mixers, leading_dense(f, 3), _sigmoid_experts(f, 256, 8, 2.5), _dense(f))


def _glm5_next(f: Fields) -> _Layers:
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
    return _stack(mixers, leading_dense(f, 3), experts, _dense(f, limit))


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


def _hyper(f: Fields) -> HyperConnections:
    return HyperConnections(
        streams=f.integer("hc_mult", default=4),
        iterations=f.integer("hc_sinkhorn_iters", default=20),
        eps=number(f, "hc_eps", default=1e-6),
    )


FAMILIES: Mapping[str, Callable[[Fields], _Layers]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5_moe,
    "glm4_moe_lite": _glm4_moe_lite,
    "glm_moe_dsa": _glm_moe_dsa,
    "glm5_next": _glm5_next,
    "gpt_oss": _gpt_oss,
}
"""transformers' ``model_type`` -> layers; with the suffix ``_text`` it is the language model inside a wrapper."""

_NESTED = ("qwen3_5", "qwen3_5_moe", "glm5_next")
_ZERO_CENTRED = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
_NORM_EPS = {"gpt_oss": 1e-5, "glm4_moe_lite": 1e-5, "glm_moe_dsa": 1e-5, "glm5_next": 1e-5}


def actor_config(config: str | PathLike[str] | Mapping[str, object]) -> ActorConfig:
    """See `ActorConfig.from_hf`."""
    f, whole = read_config(config)
    model_type = f.values.get("model_type") or whole.get("model_type")
    family = str(model_type).removesuffix("_text")
    if family not in FAMILIES or (str(model_type) != family and family not in _NESTED):
        raise InputError(
            f"{f.prefix}model_type = {model_type!r} is not supported. Supported: {', '.join(FAMILIES)}", path=f.path
        )
    _refuse(f)
    return ActorConfig(
        family=family,
        hidden=hidden_of(f),
        vocabulary=f.integer("vocab_size", default=REQUIRED),
        tied=f.flag("tie_word_embeddings", default=bool(whole.get("tie_word_embeddings", False))),
        layers=FAMILIES[family](f),
        norm=Norm(
            eps=number(f, "rms_norm_eps", default=_NORM_EPS.get(family, 1e-6)),
            zero_centred=family in _ZERO_CENTRED,
            late_cast=family == "gpt_oss",
        ),
        hyper=_hyper(f) if family == "glm5_next" else None,
        stop_ids=_stop_ids(f, whole),
        nested=family in _NESTED and f.values is not whole,
        source=json.dumps(whole, default=str),
    )


def _refuse(f: Fields) -> None:
    """Variants a config can spell and no released model of these families has."""
    if f.values.get("hidden_act", "silu") not in ("silu", "swish"):
        f.fail("hidden_act", "only silu is supported; no released model of these families has another activation")
    if f.flag("mlp_bias", default=False):
        f.fail("mlp_bias", "biases in the MLP are not supported; no released model of these families has them")
    scaling_of(f)


def _stop_ids(f: Fields, whole: Mapping[str, object]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json beside the config where there is one, else the config's own."""
    sources: list[Mapping[str, object]] = []
    if f.path is not None:
        file = Path(f.path).parent / "generation_config.json"
        if file.is_file():
            sources.append(read_config(file)[1])
    for source in (*sources, f.values, whole):
        ids = source.get("eos_token_id")
        if ids is not None:
            listed = ids if isinstance(ids, list | tuple) else [ids]
            if not all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
                raise InputError("eos_token_id must be an integer or a list of them", path=f.path)
            return tuple(listed)
    return ()
