"""Frozen dataclasses as pytrees whose reconstruction neither validates nor type-checks.

JAX rebuilds pytrees with whatever leaves a transformation needs: tracers, axis numbers, ``None``. Constructors are for
people; so rebuilding goes around them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax

__all__ = ["pytree"]

T = TypeVar("T")


def pytree(*, static: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Register a frozen dataclass; ``static`` fields are part of the compiled program, the others are leaves."""

    def register(cls: type[T]) -> type[T]:
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        leaves = [name for name in names if name not in static]
        keys = [jax.tree_util.GetAttrKey(name) for name in leaves]

        def flatten(value: T) -> tuple[list[Any], tuple[Any, ...]]:
            return [getattr(value, name) for name in leaves], tuple(getattr(value, name) for name in static)

        def flatten_with_keys(value: T) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            children, fixed = flatten(value)
            return list(zip(keys, children, strict=True)), fixed

        def unflatten(fixed: tuple[Any, ...], children: Iterable[Any]) -> T:
            value = object.__new__(cls)
            for name, item in (*zip(leaves, children, strict=True), *zip(static, fixed, strict=True)):
                object.__setattr__(value, name, item)
            return value

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register
