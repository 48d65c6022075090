"""Fields that several families share: sizes, heads, experts, and which layers have which feed-forward block.

Defaults are those of the transformers class (5.24). Sizes that decide the price (hidden_size, num_hidden_layers,
num_attention_heads, and the feed-forward widths) must be there: every released config has them, and a default would
price another model.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel_jax.architecture.blocks import mixture_of_experts, swiglu
from costmodel_jax.architecture.config import REQUIRED, Fields
from costmodel_jax.architecture.layers import FeedForward, Layer, Mixer

__all__ = [
    "depth_of",
    "experts_of",
    "head_dim_of",
    "heads_of",
    "hidden_of",
    "kv_heads_of",
    "leading_dense",
    "sparse_steps",
    "stack",
    "swiglu_of",
    "window_of",
]


def stack(mixers: Sequence[Mixer], feed_forwards: Sequence[FeedForward]) -> tuple[Layer, ...]:
    """Layers from their two halves."""
    return tuple(
        Layer(index=index, mixer=mixer, feed_forward=feed_forward)
        for index, (mixer, feed_forward) in enumerate(zip(mixers, feed_forwards, strict=True))
    )


def hidden_of(f: Fields) -> int:
    """Width of the residual stream."""
    return f.integer("hidden_size", default=REQUIRED)


def depth_of(f: Fields) -> int:
    """Number of decoder layers."""
    return f.integer("num_hidden_layers", default=REQUIRED)


def heads_of(f: Fields) -> int:
    """Number of query heads."""
    return f.integer("num_attention_heads", default=REQUIRED)


def kv_heads_of(f: Fields, default: int | None) -> int:
    """Number of key-value heads; null, like a ``default`` of None, means as many as query heads."""
    null = f.values.get("num_key_value_heads", default) is None
    kv_heads = f.integer("num_key_value_heads", default=heads_of(f) if null or default is None else default)
    f.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads_of(f))
    return kv_heads


def head_dim_of(f: Fields, default: int | None) -> int:
    """The explicit head_dim; where the class has no ``default`` of its own, hidden_size / num_attention_heads."""
    if default is None and f.values.get("head_dim") is None:
        f.divides("num_attention_heads", heads_of(f), "hidden_size", hidden_of(f))
        default = hidden_of(f) // heads_of(f)
    return f.integer("head_dim", default=REQUIRED if default is None else default)


def window_of(f: Fields, default: int) -> int:
    """Keys a query of a sliding layer attends to, its own position included."""
    if "sliding_window" in f.values and f.values["sliding_window"] is None:
        f.fail("sliding_window", "sliding layers need a window; give its size or make them full_attention")
    return f.integer("sliding_window", default=default)


def swiglu_of(f: Fields) -> FeedForward:
    """The dense MLP."""
    return swiglu(hidden_of(f), f.integer("intermediate_size", default=REQUIRED))


def experts_of(
    f: Fields,
    *,
    experts: int,
    active: int,
    width: str = "moe_intermediate_size",
    shared: int = 0,
    shared_gate: bool = False,
    names: tuple[str, ...] = ("num_experts", "num_local_experts"),
) -> FeedForward:
    """Routed experts, whose number goes by one of ``names``, with a shared one of width ``shared`` (0: none)."""
    stored = f.integer(*names, default=experts)
    chosen = f.integer("num_experts_per_tok", "experts_per_token", default=active)
    if chosen > stored:
        f.fail("num_experts_per_tok", f"{chosen} experts per token of {stored} ({names[0]}); one of the two is wrong")
    return mixture_of_experts(
        hidden_of(f),
        f.integer(width, default=REQUIRED),
        stored,
        chosen,
        shared_width=shared,
        shared_gate=shared_gate,
    )


def sparse_steps(f: Fields, sparse: FeedForward) -> list[FeedForward]:
    """Qwen's schedule: experts in each decoder_sparse_step-th layer that mlp_only_layers does not name."""
    step = f.integer("decoder_sparse_step", default=1)
    dense_layers = f.values.get("mlp_only_layers") or ()
    if not isinstance(dense_layers, list | tuple) or not all(isinstance(index, int) for index in dense_layers):
        f.fail("mlp_only_layers", "must be a list of layer indices")
    is_sparse = [index not in dense_layers and (index + 1) % step == 0 for index in range(depth_of(f))]
    dense = sparse if all(is_sparse) else swiglu_of(f)
    return [sparse if chosen else dense for chosen in is_sparse]


def leading_dense(f: Fields, sparse: FeedForward, dense_layers: int) -> list[FeedForward]:
    """GLM's schedule: mlp_layer_types where given, else the first first_k_dense_replace layers are dense."""
    depth = depth_of(f)
    kinds = f.schedule("mlp_layer_types", depth, ("dense", "sparse"))
    if kinds is None:
        first = min(depth, f.integer("first_k_dense_replace", default=dense_layers, minimum=0))
        kinds = ("dense",) * first + ("sparse",) * (depth - first)
    dense = swiglu_of(f) if "dense" in kinds else sparse
    return [sparse if kind == "sparse" else dense for kind in kinds]
