"""The tensors of a Hugging Face folder, from the headers of its safetensors files, all checked before any is read.

Format of a safetensors file: 8 bytes with the header's length, little-endian; the header, a JSON object from each
tensor's name to its dtype, shape and data_offsets; then the data, row-major, which the offsets count from its start.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from costmodel_jax.errors import InputError

__all__ = ["Tensor", "read_folder"]

INDEX = "model.safetensors.index.json"

_ITEMSIZE = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_LONGEST_HEADER = 100_000_000  # bytes, as the safetensors library has it
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One stored tensor: where it lies and what it is."""

    name: str
    file: Path
    dtype: str  # as safetensors spells it: F32, BF16, U8
    shape: tuple[int, ...]
    start: int  # first byte, from the start of the file
    stop: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stop - self.start

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return _ITEMSIZE[self.dtype]

    def bits(self) -> np.ndarray:
        """The stored values, mapped into memory: unsigned integers of the same width. Pages are read when touched.

        Raises:
          InputError: the file has changed or gone since its header was read.
        """
        try:
            mapped = np.memmap(self.file, f"<u{self.itemsize}", "r", self.start, self.shape)
        except (OSError, ValueError) as error:
            raise InputError(f"tensor {self.name} cannot be read: {error}", path=self.file) from error
        return mapped.view(np.ndarray)  # what is made of a memmap would go on being one


def read_folder(folder: Path) -> Mapping[str, Tensor]:
    """Every tensor of the safetensors files in ``folder``, by name.

    Raises:
      InputError: naming the file, and the tensor where there is one: no such files (pickle files are refused), a file
        that is truncated or whose header is malformed, a tensor outside its file, over another one or in two files, or
        an index that names what is not there.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = folder / INDEX
    listed = _read_index(index) if index.is_file() else {}
    found: dict[str, Tensor] = {}
    for file in files:
        for tensor in _read_header(file):
            if tensor.name in found:
                raise InputError(
                    f"tensor {tensor.name} is also in {found[tensor.name].file.name}; remove the file that is stale",
                    path=file,
                )
            found[tensor.name] = tensor
    _check_index(index, listed, {file.name for file in files}, found)
    if not files:
        _refuse(folder)
    return found


def _refuse(folder: Path) -> NoReturn:
    if not folder.is_dir():
        raise InputError("is not a folder; give the path of a downloaded Hugging Face model", path=folder)
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        raise InputError(
            f"holds weights only as pickle files ({pickles[0]}), which run code when read; get the model's safetensors "
            "files, or convert it with transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)",
            path=folder,
        )
    raise InputError("holds no *.safetensors file; give the folder of a downloaded Hugging Face model", path=folder)


def _read_header(file: Path) -> list[Tensor]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        first = opened.read(8)
        length = int.from_bytes(first, "little")
        if first == b"version ":
            raise InputError("is a Git LFS pointer, not the weights; run `git lfs pull` in its repository", path=file)
        if len(first) < 8 or length > min(_LONGEST_HEADER, size - 8):
            raise InputError(
                f"is truncated or no safetensors file: it has {size} bytes and its header would have {length}; "
                "fetch it anew",
                path=file,
            )
        text = opened.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except ValueError as error:
        raise InputError(f"its header is not JSON ({error}); fetch it anew", path=file) from error
    if not isinstance(header, dict):
        raise InputError("its header is not a JSON object; fetch it anew", path=file)
    header.pop("__metadata__", None)
    tensors = [_tensor(file, name, entry, 8 + length, size) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    for before, after in itertools.pairwise(tensors):
        if after.start < before.stop:
            raise InputError(
                f"tensor {after.name} overlaps tensor {before.name}: its header is damaged; fetch it anew", path=file
            )
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} stands twice")
    return found


def _tensor(file: Path, name: str, entry: Any, data: int, size: int) -> Tensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
            raise TypeError
    except (TypeError, KeyError, ValueError):
        raise InputError(
            f"tensor {name}: its header entry needs dtype, shape and data_offsets [start, stop]; fetch the file anew",
            path=file,
        ) from None
    if data + stop > size:
        raise InputError(
            f"is truncated: tensor {name} ends at byte {data + stop} of {size}; fetch the file anew", path=file
        )
    expected = math.prod(shape) * _ITEMSIZE[dtype] if dtype in _ITEMSIZE else stop - start
    if stop - start != expected or stop < start:
        raise InputError(
            f"tensor {name}: data_offsets [{start}, {stop}] do not hold shape {shape} of {dtype} ({expected} bytes); "
            "fetch the file anew",
            path=file,
        )
    return Tensor(name=name, file=file, dtype=dtype, shape=shape, start=data + start, stop=data + stop)


def _read_index(file: Path) -> Mapping[str, str]:
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"is no index of shards: {error!r}; fetch it anew", path=file) from error
    if not isinstance(listed, dict) or not all(isinstance(shard, str) for shard in listed.values()):
        raise InputError("weight_map must map tensor names to file names; fetch it anew", path=file)
    return listed


def _check_index(index: Path, listed: Mapping[str, str], files: set[str], found: Mapping[str, Tensor]) -> None:
    for name, shard in listed.items():
        if shard not in files:
            count = sum(other == shard for other in listed.values())
            raise InputError(
                f"names the shard {shard} with {count} tensors, {name} among them, and that file is missing; fetch it",
                path=index,
            )
        if name not in found or found[name].file.name != shard:
            raise InputError(
                f"says that tensor {name} is in {shard}, and it is not; index and shards belong to different models: "
                "fetch them anew",
                path=index,
            )
