"""64-bit types inside, whatever the caller's x64 setting outside.

Counts pass 2**31 at a single call of 65,536 tokens and FLOPs pass 2**53, so counts are int64 and costs float64. The
setting is scoped: the caller's global flag is never read as a precondition and never changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import jax
import numpy as np

__all__ = ["exact", "has_tracer", "to_host"]

P = ParamSpec("P")
T = TypeVar("T")


def has_tracer(tree: object) -> bool:
    """True if any leaf of a pytree is being traced by jit, vmap, grad or scan."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def to_host(tree: T) -> T:
    """Turn the JAX arrays of a pytree into NumPy arrays, unless one of them is being traced.

    A concrete 64-bit ``jax.Array`` is narrowed to 32 bits by the next ``jnp`` call of a caller who has x64 off. A NumPy
    array is not: ``counts.processed.sum()`` stays exact. Under a transformation the leaves stay JAX values.
    """
    if has_tracer(tree):
        return tree
    return cast(T, jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, tree))


def exact(function: Callable[P, T]) -> Callable[P, T]:
    """Run ``function`` with 64-bit types enabled and return host arrays when it was not traced."""

    @functools.wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.enable_x64(True):
            return to_host(function(*args, **kwargs))

    return scoped
