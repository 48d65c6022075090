"""One definition per parameter: its shape, logical axes, initial values, and which part of which stored tensor it is.

The abstract tree, the shardings, random values, loading and export all follow from trees of these definitions.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "Parameter",
    "Stored",
    "Tree",
    "abstract",
    "leaves",
    "map_leaves",
    "projection",
    "random_values",
    "stacked",
    "vector",
]

Tree = Mapping[str, Any] | tuple[Any, ...]
"""Nested dicts and tuples of `Parameter`, or of arrays with the same structure."""

Array = jax.Array | np.ndarray


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The part of one checkpoint tensor that is one parameter: reshape, pick a range, permute, reshape.

    Args:
      name: the tensor's name below its layer; ``{expert}`` where each expert has one of its own.
      shape: its shape in the file (of one expert's, where each has one).
      split: ``shape`` with dimensions taken apart; empty for ``shape`` itself.
      pick: (dimension of ``split``, start, stop), or None for the whole tensor.
      order: permutation of the dimensions of ``split``; empty for none.
      mxfp4: stored as ``name_blocks`` and ``name_scales``; ``shape`` is that of the decoded tensor, [experts, in, out].
    """

    name: str
    shape: tuple[int, ...]
    split: tuple[int, ...] = ()
    pick: tuple[int, int, int] | None = None
    order: tuple[int, ...] = ()
    mxfp4: bool = False

    @property
    def per_expert(self) -> bool:
        """Whether each expert has a tensor of its own."""
        return "{expert}" in self.name

    def _index(self) -> tuple[slice, ...]:
        whole = [slice(None)] * len(self.split or self.shape)
        if self.pick is not None:
            dimension, start, stop = self.pick
            whole[dimension] = slice(start, stop)
        return tuple(whole)

    def read(self, tensor: Array, shape: tuple[int, ...]) -> Array:
        """The parameter, of ``shape``, out of the stored ``tensor``."""
        part = tensor.reshape(self.split or self.shape)[self._index()]
        return (part.transpose(self.order) if self.order else part).reshape(shape)

    def write(self, tensor: np.ndarray, value: np.ndarray) -> None:
        """The inverse of `read`: put the parameter's ``value`` into its part of the stored ``tensor``, in place."""
        part = tensor.reshape(self.split or self.shape)[self._index()]  # a view, as the tensor is contiguous
        order = self.order or tuple(range(part.ndim))
        permuted = value.reshape([part.shape[axis] for axis in order])
        part[...] = permuted.transpose(np.argsort(order))


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the model.

    Args:
      shape: of one layer's.
      axes: a logical axis name or None per dimension of ``shape``; `remory_jax.actor.sharding` maps them to mesh axes.
      stored: where a checkpoint keeps it; several entries are alternative layouts.
      init: ``"normal"`` with variance 1 / inputs, where the inputs are all but the last ``outputs`` dimensions.
      outputs: see ``init``.
      exact: kept in float32 whatever dtype the model is loaded in.
      buffer: a stored constant that was never trained by gradients and does not count as a parameter.
      layers: the decoder layers it is stacked over, as a leading dimension; empty for what the model has once.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    stored: tuple[Stored, ...]
    init: Literal["normal", "zeros", "ones"] = "normal"
    outputs: int = 1
    exact: bool = False
    buffer: bool = False
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise ValueError(f"{self.stored[0].name}: {len(self.axes)} axes for shape {self.shape}; one per dimension")

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the stacked array."""
        return (len(self.layers), *self.shape) if self.layers else self.shape

    @property
    def full_axes(self) -> tuple[str | None, ...]:
        """Logical axes of the stacked array."""
        return ("layers", *self.axes) if self.layers else self.axes

    @property
    def size(self) -> int:
        """Number of values, over all layers."""
        return math.prod(self.full_shape)

    def dtype(self, dtype: jnp.dtype) -> jnp.dtype:
        """The dtype it has in a model of ``dtype``."""
        return jnp.dtype(jnp.float32) if self.exact else jnp.dtype(dtype)


def projection(
    name: str,
    inputs: Mapping[str | None, int] | tuple[tuple[str | None, int], ...],
    outputs: tuple[tuple[str | None, int], ...],
    **options: Any,
) -> Parameter:
    """A linear map kept as [*inputs, *outputs] and stored, as torch does, as [outputs, inputs].

    Args:
      name: of the stored tensor.
      inputs, outputs: (logical axis, size) per dimension.
      options: further fields of `Parameter`.
    """
    inputs = tuple(inputs.items()) if isinstance(inputs, Mapping) else inputs
    dims = (*inputs, *outputs)
    ins, outs = tuple(size for _, size in inputs), tuple(size for _, size in outputs)
    count = len(outs)
    order = (*range(count, count + len(ins)), *range(count))
    stored = Stored(name=name, shape=(math.prod(outs), math.prod(ins)), split=(*outs, *ins), order=order)
    return Parameter(
        shape=(*ins, *outs), axes=tuple(axis for axis, _ in dims), stored=(stored,), outputs=count, **options
    )


def vector(name: str, *dims: tuple[str | None, int], init: Literal["zeros", "ones"], exact: bool = False) -> Parameter:
    """A norm's weight or a bias, stored flat."""
    shape = tuple(size for _, size in dims)
    return Parameter(
        shape=shape,
        axes=tuple(axis for axis, _ in dims),
        stored=(Stored(name=name, shape=(math.prod(shape),)),),
        init=init,
        exact=exact,
    )


def leaves(tree: Any) -> Iterator[Parameter]:
    """Every parameter of a tree of definitions."""
    yield from jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Parameter))


def map_leaves(function: Any, tree: Any, *others: Any) -> Any:
    """``jax.tree.map`` over definitions, and trees of the same structure."""
    return jax.tree.map(function, tree, *others, is_leaf=lambda node: isinstance(node, Parameter))


def stacked(tree: Any, layers: tuple[int, ...]) -> Any:
    """The definitions of one layer, stacked over ``layers``."""
    return map_leaves(lambda parameter: replace(parameter, layers=layers), tree)


def abstract(tree: Any, dtype: Any) -> Any:
    """The tree as `jax.ShapeDtypeStruct`: shapes and dtypes without memory."""
    return map_leaves(lambda p: jax.ShapeDtypeStruct(p.full_shape, p.dtype(jnp.dtype(dtype))), tree)


def random_values(tree: Any, seed: int, dtype: Any) -> Any:
    """Random values with unit-gain projections, for tests, benchmarks and models trained from nothing.

    Every leaf has its own key, from its stored name and layers, so a value does not depend on the rest of the model.
    """

    def value(parameter: Parameter) -> jax.Array:
        kind = parameter.dtype(jnp.dtype(dtype))
        if parameter.init != "normal":
            return (jnp.zeros if parameter.init == "zeros" else jnp.ones)(parameter.full_shape, kind)
        name = f"{parameter.stored[0].name} {parameter.stored[0].pick} {parameter.layers}"
        key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
        inputs = math.prod(parameter.shape[: len(parameter.shape) - parameter.outputs]) or 1
        if "expert" in parameter.axes:
            inputs //= parameter.shape[parameter.axes.index("expert")]
        return (jax.random.normal(key, parameter.full_shape, jnp.float32) * inputs**-0.5).astype(kind)

    return map_leaves(value, tree)
