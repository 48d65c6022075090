"""Config fields -> layers for the softmax and Gated DeltaNet families, and the table of every supported model_type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from costmodel_jax.architecture.blocks import attention, gated_deltanet, short_convolution
from costmodel_jax.architecture.config import Fields
from costmodel_jax.architecture.glm import glm4_moe_lite, glm5_next, glm_moe_dsa
from costmodel_jax.architecture.layers import Layer, Mixer
from costmodel_jax.architecture.schedules import (
    FULL,
    LINEAR,
    SLIDING,
    alternating_kinds,
    has_window,
    hybrid_kinds,
    qwen3_kinds,
    sparse_steps,
)
from costmodel_jax.architecture.sizes import (
    depth_of,
    experts_of,
    feed_forwards,
    head_dim_of,
    heads_of,
    hidden_of,
    kv_heads_of,
    stack,
    swiglu_of,
    window_of,
)

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True)
class Family:
    """A transformers model class: its ``model_type`` and how its config becomes layers."""

    name: str
    layers: Callable[[Fields], tuple[Layer, ...]]


def _attention(
    f: Fields, *, kv_heads: int | None, head_dim: int | None, window: int | None = None, gated: bool = False
) -> Mixer:
    """Softmax attention with the class defaults for ``kv_heads`` and ``head_dim`` (None: derived from the heads)."""
    return attention(
        hidden_of(f), heads_of(f), kv_heads_of(f, kv_heads), head_dim_of(f, head_dim), gated=gated, window=window
    )


def _llama(f: Fields) -> tuple[Layer, ...]:
    return stack([_attention(f, kv_heads=None, head_dim=None)] * depth_of(f), [swiglu_of(f)] * depth_of(f))


def _conv_llama(f: Fields) -> tuple[Layer, ...]:
    """Llama with a residual short convolution before each layer; remory_jax's own, for models made from scratch."""
    convolution = short_convolution(hidden_of(f), f.integer("conv_kernel", default=4, minimum=2))
    mixer = replace(_attention(f, kv_heads=None, head_dim=None), state=(convolution,))
    return stack([mixer] * depth_of(f), [swiglu_of(f)] * depth_of(f))


def _qwen3(f: Fields) -> tuple[Layer, ...]:
    kinds = qwen3_kinds(f)
    windows = {kind: window_of(f, 4096) if kind == SLIDING else None for kind in set(kinds)}
    return stack(
        [_attention(f, kv_heads=32, head_dim=128, window=windows[kind]) for kind in kinds],
        [swiglu_of(f)] * depth_of(f),
    )


def _qwen3_moe(f: Fields) -> tuple[Layer, ...]:
    mixer = _attention(f, kv_heads=4, head_dim=None, window=window_of(f, 4096) if has_window(f) else None)
    return stack([mixer] * depth_of(f), feed_forwards(f, experts_of(f, experts=128, active=8), sparse_steps(f)))


def _gpt_oss(f: Fields) -> tuple[Layer, ...]:
    kinds = alternating_kinds(f)
    windows = {kind: window_of(f, 128) if kind == SLIDING else None for kind in set(kinds)}
    sparse = experts_of(f, width="intermediate_size", experts=128, active=4)
    return stack(
        [_attention(f, kv_heads=8, head_dim=64, window=windows[kind]) for kind in kinds], [sparse] * len(kinds)
    )


def _gated_hybrid(f: Fields, kv_heads: int) -> list[Mixer]:
    """Gated DeltaNet with gated attention in each full_attention_interval-th layer, or as layer_types says."""
    kinds = hybrid_kinds(f)
    key_heads = f.integer("linear_num_key_heads", default=16)
    value_heads = f.integer("linear_num_value_heads", default=32)
    f.divides("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    mixers = {
        FULL: _attention(f, kv_heads=kv_heads, head_dim=256, gated=True),
        LINEAR: gated_deltanet(
            hidden_of(f),
            key_heads,
            value_heads,
            f.integer("linear_key_head_dim", default=128),
            f.integer("linear_value_head_dim", default=128),
            f.integer("linear_conv_kernel_dim", default=4),
        ),
    }
    return [mixers[kind] for kind in kinds]


def _qwen3_next(f: Fields) -> tuple[Layer, ...]:
    shared = f.integer("shared_expert_intermediate_size", default=512)
    sparse = experts_of(f, experts=512, active=10, shared=shared, shared_gate=True)
    return stack(_gated_hybrid(f, kv_heads=2), feed_forwards(f, sparse, sparse_steps(f)))


def _qwen3_5(f: Fields) -> tuple[Layer, ...]:
    return stack(_gated_hybrid(f, kv_heads=4), [swiglu_of(f)] * depth_of(f))


def _qwen3_5_moe(f: Fields) -> tuple[Layer, ...]:
    shared = f.integer("shared_expert_intermediate_size", default=512)
    sparse = experts_of(f, experts=256, active=8, shared=shared, shared_gate=True)
    return stack(_gated_hybrid(f, kv_heads=2), [sparse] * depth_of(f))


_BUILDERS: tuple[tuple[str, Callable[[Fields], tuple[Layer, ...]], bool], ...] = (
    ("llama", _llama, False),
    ("qwen3", _qwen3, False),
    ("qwen3_moe", _qwen3_moe, False),
    ("qwen3_next", _qwen3_next, False),
    ("qwen3_5", _qwen3_5, True),
    ("qwen3_5_moe", _qwen3_5_moe, True),
    ("glm4_moe_lite", glm4_moe_lite, False),
    ("glm_moe_dsa", glm_moe_dsa, False),
    ("glm5_next", glm5_next, True),
    ("gpt_oss", _gpt_oss, False),
    ("conv_llama", _conv_llama, False),
)

FAMILIES: Mapping[str, Family] = {
    model_type: Family(name, layers)
    for name, layers, wrapped in _BUILDERS
    for model_type in ((name, f"{name}_text") if wrapped else (name,))
}
"""``model_type`` -> family; ``*_text`` is the language model inside a wrapper of several modalities.

``conv_llama`` alone is ours and not in transformers.
"""
