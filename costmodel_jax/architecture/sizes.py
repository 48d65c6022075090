"""Fields that several families share: sizes, heads, experts and feed-forward blocks.

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
    "feed_forwards",
    "head_dim_of",
    "heads_of",
    "hidden_of",
    "kv_heads_of",
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


def feed_forwards(f: Fields, sparse: FeedForward, is_sparse: Sequence[bool]) -> list[FeedForward]:
    """Experts where ``is_sparse``, else the dense MLP, whose width is read only where a layer has one."""
    dense = sparse if all(is_sparse) else swiglu_of(f)
    return [sparse if chosen else dense for chosen in is_sparse]
