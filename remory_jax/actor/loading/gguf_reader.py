"""GGUF files, read with every length, name and type checked before it is used.

The layout is that of the ``gguf`` package: a header of typed key-value pairs, a table of tensors, then their data,
memory-mapped. That package trusts what it reads; here a length that leaves the file, an unknown type or a missing key
is an ``InputError`` that names the file and the key or tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, ReaderField
from gguf.quants import dequantize
from jaxtyping import Float32, Int, Shaped

from costmodel_jax.errors import InputError

__all__ = ["GGUFFile", "GGUFTensor", "read_gguf"]

T = TypeVar("T", bool, int, float, str)

_LARGEST_SIZE = 2**31 - 1  # of a dimension or a count


@dataclass(frozen=True, kw_only=True)
class GGUFTensor:
    """One tensor, still quantised and still on disk.

    Args:
      name: its name in the file.
      shape: row-major, as NumPy and Hugging Face write it (GGUF itself lists the fastest dimension first).
      kind: how it is quantised.
      rows: memory-mapped, [product of all dimensions but the last, what one row takes].
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    rows: Shaped[np.ndarray, "rows stored"]

    def values(self, select: slice | Int[np.ndarray, "selected"]) -> Float32[np.ndarray, "selected columns"]:
        """Dequantised values of some rows. Rows are quantised independently, so any choice and order is exact.

        Raises:
          NotImplementedError: the ``gguf`` package cannot dequantise this kind.
        """
        return np.asarray(dequantize(self.rows[select], self.kind), np.float32)


@dataclass(frozen=True, kw_only=True)
class GGUFFile:
    """A read header and the tensors behind it, by name."""

    path: Path
    fields: Mapping[str, ReaderField]
    tensors: Mapping[str, GGUFTensor]

    def error(self, message: str) -> InputError:
        """An error about this file."""
        return InputError(message, path=self.path)

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of a key, or None where the file has no such key.

        Raises:
          InputError: the value is not a single ``kind``.
        """
        value = self._contents(key)
        if value is None or type(value) is kind:
            return value
        raise self.error(f"key {key} holds a {type(value).__name__}; a single {kind.__name__} is needed")

    def require(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there.

        Raises:
          InputError: it is missing or of another type.
        """
        value = self.get(key, kind)
        if value is None:
            raise self.error(
                f"key {key} is missing; the file does not describe a whole model: convert or fetch it anew"
            )
        return value

    def size(self, key: str) -> int:
        """A count or dimension that must be there.

        Raises:
          InputError: it is missing, no integer, or not between 1 and 2^31 - 1.
        """
        value = self.require(key, int)
        if not 1 <= value <= _LARGEST_SIZE:
            raise self.error(f"key {key} = {value}; it must be between 1 and {_LARGEST_SIZE}")
        return value

    def listed(self, key: str, kind: type[T]) -> list[T]:
        """The items of an array that must be there.

        Raises:
          InputError: it is missing, no array, or one of its items is not a ``kind``.
        """
        value = self._contents(key)
        if value is None:
            raise self.error(
                f"key {key} is missing; the file does not describe a whole model: convert or fetch it anew"
            )
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self.error(f"key {key} is no array of {kind.__name__}")
        return value

    def _contents(self, key: str) -> Any:
        if key not in self.fields:
            return None
        try:
            return self.fields[key].contents()
        except UnicodeDecodeError:
            raise self.error(f"key {key} is not UTF-8 text; the file is damaged: fetch it anew") from None


def read_gguf(path: Path) -> GGUFFile:
    """Read the header and the tensor table; map the data, reading none of it.

    Raises:
      InputError: the file is missing, empty, truncated, of another format, version or byte order, one part of several,
        or holds a tensor of an unknown type or impossible shape.
    """
    try:
        reader = _CheckedReader(path)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    # The package reports bad bytes with whichever exception the bytes lead to.
    except (ValueError, KeyError, IndexError, OverflowError, TypeError, RecursionError) as error:
        raise InputError(f"is no readable GGUF file ({error}); fetch it anew", path=path) from None
    if reader.byte_order != "I":
        raise InputError("is a big-endian GGUF file; convert it with gguf-convert-endian", path=path)
    tensors = {
        tensor.name: GGUFTensor(
            name=tensor.name,
            shape=tuple(int(size) for size in reversed(tensor.shape.tolist())),
            kind=tensor.tensor_type,
            rows=tensor.data.reshape(-1, tensor.data.shape[-1]),
        )
        for tensor in reader.tensors
    }
    file = GGUFFile(path=path, fields=reader.fields, tensors=tensors)
    parts = file.get("split.count", int)
    if parts is not None and parts > 1:
        raise file.error(f"is one of {parts} parts; merge them with llama-gguf-split --merge")
    return file


class _CheckedReader(GGUFReader):
    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(path)

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        # Past its end a mapped file gives empty arrays; a false length would then loop for ever on them.
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise InputError(
                f"is truncated: {end} bytes are needed and it has {len(self.data)}; fetch it anew", path=self.path
            )
        return super()._get(offset, dtype, count, override_order)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            _, _, _, dims, kind, offset = field.parts
            shape = [int(size) for size in dims]
            if int(kind[0]) not in GGMLQuantizationType.__members__.values():
                raise self._bad(field, f"has quantisation type {kind[0]}, which this gguf package does not know")
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(int(kind[0]))]
            if not 1 <= len(shape) <= 4 or not all(1 <= n <= _LARGEST_SIZE for n in shape) or shape[0] % block:
                raise self._bad(
                    field, f"has dimensions {shape[:8]}; 1 to 4 are needed, rows of whole blocks of {block}"
                )
            end = int(start_offs) + int(offset[0]) + math.prod(shape) // block * size
            if end > len(self.data):
                raise self._bad(field, f"ends at byte {end} of {len(self.data)}: the file is truncated; fetch it anew")
        super()._build_tensors(start_offs, fields)

    def _bad(self, field: ReaderField, message: str) -> InputError:
        return InputError(f"tensor {field.name} {message}", path=self.path)
