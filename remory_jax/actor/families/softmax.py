"""Families of softmax attention, and of its hybrids with Gated DeltaNet."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from costmodel_jax.architecture.config import REQUIRED, Fields
from costmodel_jax.architecture.schedules import (
    LINEAR,
    SLIDING,
    alternating_kinds,
    has_window,
    hybrid_kinds,
    qwen3_kinds,
    sparse_steps,
)
from costmodel_jax.architecture.sizes import depth_of, head_dim_of, heads_of, kv_heads_of, window_of
from remory_jax.actor.config import DeltaNet, Experts, SoftmaxAttention
from remory_jax.actor.families.parts import Layers, checked, dense_of, stack
from remory_jax.actor.rope_fields import number, rotary_of

__all__ = ["conv_llama", "gpt_oss", "llama", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next"]


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


def llama(f: Fields) -> Layers:
    """SmolLM2 and Llama: plain grouped-query attention."""
    depth = depth_of(f)
    return stack([_attention(f, kv_heads=None, head_dim=None)] * depth, (False,) * depth, None, dense_of(f))


def conv_llama(f: Fields) -> Layers:
    """Llama with a residual short convolution before each layer; ours, no released model.

    With it a model of two layers learns from scratch, in minutes on a CPU, to look up in its context.
    """
    kernel = f.integer("conv_kernel", default=4, minimum=2)
    return tuple(replace(layer, convolution=kernel) for layer in llama(f))


def qwen3(f: Fields) -> Layers:
    """Qwen3: head norms, full attention or sliding."""
    mixers = [
        _attention(f, kv_heads=32, head_dim=128, qk_norm=True, window=window_of(f, 4096) if kind == SLIDING else None)
        for kind in qwen3_kinds(f)
    ]
    return stack(mixers, (False,) * len(mixers), None, dense_of(f))


def _softmax_experts(f: Fields, experts: int, active: int, *, renormalise: bool, shared: bool = False) -> Experts:
    return checked(
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


def qwen3_moe(f: Fields) -> Layers:
    """Qwen3 with experts."""
    window = window_of(f, 4096) if has_window(f) else None
    mixer = _attention(f, kv_heads=4, head_dim=None, qk_norm=True, window=window)
    sparse = _softmax_experts(f, 128, 8, renormalise=f.flag("norm_topk_prob", default=False))
    return stack([mixer] * depth_of(f), sparse_steps(f), sparse, dense_of(f))


def gpt_oss(f: Fields) -> Layers:
    """gpt-oss: sliding and full attention in turn, sinks, biases, clamped experts."""
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
    sparse = checked(
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
    return stack(mixers, (True,) * len(mixers), sparse, dense_of(f))


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


def qwen3_next(f: Fields) -> Layers:
    """Qwen3-Next: Gated DeltaNet and gated attention, experts with a shared one."""
    sparse = _softmax_experts(f, 512, 10, renormalise=f.flag("norm_topk_prob", default=True), shared=True)
    return stack(_hybrid(f, kv_heads=2, stored="grouped"), sparse_steps(f), sparse, dense_of(f))


def qwen3_5(f: Fields) -> Layers:
    """Qwen3.5 and its successors: Gated DeltaNet and gated attention."""
    return stack(_hybrid(f, kv_heads=4, stored="flat"), (False,) * depth_of(f), None, dense_of(f))


def qwen3_5_moe(f: Fields) -> Layers:
    """Qwen3.5 with experts."""
    sparse = _softmax_experts(f, 256, 8, renormalise=True, shared=True)
    return stack(_hybrid(f, kv_heads=2, stored="flat"), (True,) * depth_of(f), sparse, dense_of(f))
