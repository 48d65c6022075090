"""Which layer is of which kind: the schedules of every family, from the fields its config spells them with.

Shared with ``remory_jax``, so that a model is priced and run with the same layers.
"""

from __future__ import annotations

from costmodel_jax.architecture.config import Fields
from costmodel_jax.architecture.sizes import depth_of

__all__ = [
    "FULL",
    "INDEXED",
    "LINEAR",
    "SLIDING",
    "alternating_kinds",
    "has_window",
    "hybrid_kinds",
    "indexer_kinds",
    "kimi_kinds",
    "leading_dense",
    "qwen3_kinds",
    "sparse_steps",
]

LINEAR, FULL, SLIDING, INDEXED = "linear_attention", "full_attention", "sliding_attention", "indexed_attention"


def has_window(f: Fields) -> bool:
    """Whether a Qwen3 config switches its sliding window on; its class ignores the window otherwise."""
    return f.flag("use_sliding_window", default=False) and f.values.get("sliding_window", 4096) is not None


def qwen3_kinds(f: Fields) -> tuple[str, ...]:
    """Qwen3: full attention, then sliding from max_window_layers on where the window is switched on."""
    depth = depth_of(f)
    first = f.integer("max_window_layers", default=28, minimum=0) if has_window(f) else depth
    kinds = f.schedule("layer_types", depth, (FULL, SLIDING)) or tuple(
        FULL if index < first else SLIDING for index in range(depth)
    )
    if SLIDING in kinds and not has_window(f):
        f.fail("layer_types", "has sliding layers, but use_sliding_window is not true or sliding_window is null")
    return kinds


def alternating_kinds(f: Fields) -> tuple[str, ...]:
    """gpt-oss: sliding and full attention in turn, sliding first."""
    depth = depth_of(f)
    return f.schedule("layer_types", depth, (FULL, SLIDING)) or tuple(
        FULL if index % 2 else SLIDING for index in range(depth)
    )


def hybrid_kinds(f: Fields) -> tuple[str, ...]:
    """Qwen hybrids: full attention in each full_attention_interval-th layer, delta rule in the others."""
    depth = depth_of(f)
    interval = f.integer("full_attention_interval", default=4)
    return f.schedule("layer_types", depth, (LINEAR, FULL)) or tuple(
        LINEAR if (index + 1) % interval else FULL for index in range(depth)
    )


def kimi_kinds(f: Fields) -> tuple[str, ...]:
    """GLM-5.3: three delta layers, then latent attention; both names of the latter mean the same."""
    depth = depth_of(f)
    kinds = f.schedule("layer_types", depth, (LINEAR, INDEXED, FULL)) or tuple(
        LINEAR if index % 4 != 3 else INDEXED for index in range(depth)
    )
    return tuple(INDEXED if kind == FULL else kind for kind in kinds)


def indexer_kinds(f: Fields) -> tuple[str, ...]:
    """Per layer, whether DSA runs its indexer ("full") or reuses an earlier selection ("shared")."""
    depth = depth_of(f)
    given = f.schedule("indexer_types", depth, ("full", "shared"))
    if given is not None:
        return given
    pattern = f.values.get("index_topk_pattern")
    if isinstance(pattern, str):
        pattern = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if pattern is not None:
        spelled = Fields({**f.values, "index_topk_pattern": pattern}, f.path, f.prefix)
        return spelled.schedule("index_topk_pattern", depth, ("full", "shared")) or ()
    every = f.integer("index_topk_freq", default=1, minimum=0) or 1
    offset = f.integer("index_skip_topk_offset", default=2, minimum=0)
    return tuple("shared" if max(index - offset + 1, 0) % every else "full" for index in range(depth))


def sparse_steps(f: Fields) -> tuple[bool, ...]:
    """Qwen: experts in each decoder_sparse_step-th layer that mlp_only_layers does not name."""
    step = f.integer("decoder_sparse_step", default=1)
    dense_layers = f.values.get("mlp_only_layers") or ()
    if not isinstance(dense_layers, list | tuple) or not all(isinstance(index, int) for index in dense_layers):
        f.fail("mlp_only_layers", "must be a list of layer indices")
    return tuple(index not in dense_layers and (index + 1) % step == 0 for index in range(depth_of(f)))


def leading_dense(f: Fields, dense_layers: int) -> tuple[bool, ...]:
    """GLM: experts where mlp_layer_types says so, else in all but the first first_k_dense_replace layers."""
    depth = depth_of(f)
    kinds = f.schedule("mlp_layer_types", depth, ("dense", "sparse"))
    if kinds is None:
        first = min(depth, f.integer("first_k_dense_replace", default=dense_layers, minimum=0))
        kinds = ("dense",) * first + ("sparse",) * (depth - first)
    return tuple(kind == "sparse" for kind in kinds)
