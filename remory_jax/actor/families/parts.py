"""What every family's layers are put together with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel_jax.architecture.config import REQUIRED, Fields
from remory_jax.actor.config import DeltaNet, DenseMLP, Experts, LatentAttention, LayerConfig, SoftmaxAttention

__all__ = ["Layers", "checked", "dense_of", "stack"]

Layers = tuple[LayerConfig, ...]


def stack(
    mixers: Sequence[SoftmaxAttention | LatentAttention | DeltaNet],
    is_sparse: tuple[bool, ...],
    sparse: Experts | None,
    dense: Callable[[], DenseMLP],
) -> Layers:
    """Layers from their halves; the dense width is read only where a layer has one."""
    mlp = None if all(is_sparse) else dense()
    blocks = [sparse if chosen else mlp for chosen in is_sparse]
    return tuple(
        LayerConfig(mixer=mixer, feed_forward=block)
        for mixer, block in zip(mixers, blocks, strict=True)
        if block is not None
    )


def dense_of(f: Fields, limit: float | None = None) -> Callable[[], DenseMLP]:
    """The dense MLP, whose width is read when it is called."""
    return lambda: DenseMLP(width=f.integer("intermediate_size", default=REQUIRED), limit=limit)


def checked(f: Fields, experts: Experts) -> Experts:
    """Experts of which a token can have as many as it asks for."""
    if experts.active > experts.experts:
        f.fail(
            "num_experts_per_tok", f"{experts.active} experts per token of {experts.experts}; one of the two is wrong"
        )
    return experts
