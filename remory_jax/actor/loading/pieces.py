"""One layer of a parameter as it lies in the file: copied part by part, in file order, to be transposed on devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from remory_jax.actor.loading.folder import Tensor
from remory_jax.actor.loading.mxfp4 import MXFP4View
from remory_jax.actor.loading.plan import Source
from remory_jax.actor.parameters import Stored

__all__ = ["View", "cuts", "view"]

Index = tuple[slice, ...]
HostArray = np.ndarray

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


@runtime_checkable
class View(Protocol):
    """A parameter's values (without layers) behind stored tensors; nothing is read before it is taken."""

    order: tuple[int, ...]
    """The parameter's dimensions, the one with the widest stride in the file first."""

    def take(self, index: Index) -> tuple[HostArray, ...]:
        """Copy a range per dimension out of the file, its dimensions in ``order``."""
        ...


class TensorView:
    """A parameter that is part of one tensor."""

    def __init__(self, stored: Stored, tensor: Tensor, shape: tuple[int, ...]) -> None:
        self._stored, self._tensor, self._shape = stored, tensor, shape
        bits = tensor.bits()
        part = _part(stored, bits, shape)
        self.order = _file_order(part)
        # A reshape that merges what is apart in the file (v and z of Qwen3-Next) has copied all of it: not twice.
        self._copy = None if np.may_share_memory(part, bits) else part

    def take(self, index: Index) -> tuple[HostArray, ...]:
        """See `View.take`."""
        part = _part(self._stored, self._tensor.bits(), self._shape) if self._copy is None else self._copy
        return (_copied(part[index].transpose(self.order), self._tensor),)


class ExpertView:
    """A parameter with one tensor for each entry of its first dimension."""

    def __init__(self, stored: Stored, tensors: list[Tensor], shape: tuple[int, ...]) -> None:
        self._stored, self._tensors, self._shape = stored, tensors, shape[1:]
        self._inner = _file_order(_part(stored, tensors[0].bits(), shape[1:]))
        self.order = (0, *(axis + 1 for axis in self._inner))

    def take(self, index: Index) -> tuple[HostArray, ...]:
        """See `View.take`."""
        return (np.stack([self._expert(tensor, index[1:]) for tensor in self._tensors[index[0]]]),)

    def _expert(self, tensor: Tensor, index: Index) -> HostArray:
        part = _part(self._stored, tensor.bits(), self._shape)
        return _copied(part[index].transpose(self._inner), tensor)


# Tensors are mapped only while a piece is copied: the pages of a file would count as memory of this process.


def _part(stored: Stored, bits: HostArray, shape: tuple[int, ...]) -> HostArray:
    return np.asarray(stored.read(bits, shape))


def _file_order(part: HostArray) -> tuple[int, ...]:
    strides = [-stride if size > 1 else 0 for stride, size in zip(part.strides, part.shape, strict=True)]
    return tuple(int(axis) for axis in np.argsort(strides, kind="stable"))


def _copied(bits: HostArray, tensor: Tensor) -> HostArray:
    """Values, always a copy: what JAX holds must not be a window on a file that somebody may change."""
    values: HostArray = np.array(bits, order="C").view(_DTYPES[tensor.dtype])
    return values.astype(np.float32) if tensor.dtype == "F64" else values  # by default JAX holds no float64


def view(source: Source, tensors: Mapping[str, Tensor]) -> View:
    """The view of a source."""
    stored, shape = source.stored, source.parameter.shape
    found = [tensors[name] for name in source.names]
    if stored.mxfp4:
        return MXFP4View(stored, found[0].bits, found[1].bits, shape)
    if stored.per_expert:
        return ExpertView(stored, found, shape)
    return TensorView(stored, found[0], shape)


def cuts(size: int, each: int, limit: int) -> list[slice]:
    """Equal ranges that cover ``size`` rows of ``each`` bytes, at most ``limit`` bytes long or else one row.

    The last one overlaps the one before rather than being shorter: a copy of another length is another program.
    """
    rows = max(1, min(size, limit // max(each, 1)))
    starts = [*range(0, size - rows, rows), size - rows]
    return [slice(start, start + rows) for start in starts]
