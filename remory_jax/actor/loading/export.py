"""`save_actor`: an actor back into a Hugging Face folder, tensor by tensor."""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from remory_jax.actor.loading.create import checked_dtype
from remory_jax.actor.loading.folder import INDEX
from remory_jax.actor.loading.plan import Source, first_sources
from remory_jax.actor.model import Actor

__all__ = ["save_actor"]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)

_STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_WHOLE = 2 * 2**20  # bytes of a parameter that is fetched at once rather than sliced by a program for its shape


@dataclass(frozen=True, kw_only=True)
class _Out:
    """One tensor to write: the sources that are its parts, each with the expert it is of, if any."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: tuple[tuple[Source, int | None], ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def save_actor(
    actor: Actor,
    folder: str | PathLike[str],
    *,
    dtype: Any = None,
    max_shard_bytes: int = 5 * 2**30,
    tokenizer_from: str | PathLike[str] | None = None,
) -> Path:
    """Write a model as transformers does: config.json and safetensors files, with an index where there are several.

    Experts are written one by one (gpt-oss: fused), MXFP4 ones dequantised; of a multimodal model the language model
    alone. The host holds a tensor or two at a time. The folder appears whole or not at all. With several processes all
    of them call this, and process 0 writes.

    Args:
      folder: must not exist, or be empty.
      dtype: float32, bfloat16 or float16; None for the model's own. What is float32 in any case stays so.
      max_shard_bytes: of the tensors in one file; a tensor that is larger has a file to itself.
      tokenizer_from: a folder whose tokenizer files (and generation_config.json) are copied.

    Returns:
      The folder.

    Raises:
      ValueError: a folder that holds something, an unknown dtype, a config that was not read from a config.json, or no
        tokenizer in ``tokenizer_from``.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not empty; choose a new folder")
    if not actor.config.source:
        raise ValueError("the actor's config was not read from a config.json, so there is none to write")
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes = {max_shard_bytes}; it must be positive")
    kind = actor.dtype if dtype is None else checked_dtype(dtype)
    texts = {"config.json": _config(actor, kind)}
    copies = _tokenizer(tokenizer_from)
    if actor.config.stop_ids and not any(file.name == "generation_config.json" for file in copies):
        texts["generation_config.json"] = _json({"eos_token_id": list(actor.config.stop_ids)})

    shards = _shards(_tensors(actor, kind), max_shard_bytes)
    weights = jax.tree.leaves(actor.weights)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    writes = jax.process_index() == 0
    try:
        if writes:
            partial.mkdir(parents=True)
        for name, shard in shards.items():
            _write(partial / name if writes else None, shard, weights)
        if writes:
            if len(shards) > 1:
                texts[INDEX] = _index(shards)
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")
            for file in copies:
                shutil.copyfile(file, partial / file.name)
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
    finally:
        if writes:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _config(actor: Actor, dtype: np.dtype[Any]) -> str:
    whole: dict[str, Any] = json.loads(actor.config.source)
    for fields in (whole, whole.get("text_config")):
        if fields is None:
            continue
        fields.pop("quantization_config", None)
        old = "torch_dtype" in fields  # what transformers called it before version 5
        if old or "dtype" in fields or fields is whole:
            fields["torch_dtype" if old else "dtype"] = dtype.name
    return _json(whole)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _tokenizer(folder: str | PathLike[str] | None) -> list[Path]:
    if folder is None:
        return []
    files = [Path(folder) / name for name in TOKENIZER_FILES if (Path(folder) / name).is_file()]
    if not any(file.name in ("tokenizer.json", "vocab.json") for file in files):
        raise ValueError(f"tokenizer_from = {os.fspath(folder)!r} holds neither tokenizer.json nor vocab.json")
    return files


def _tensors(actor: Actor, dtype: np.dtype[Any]) -> list[_Out]:
    """Every tensor to write, layers in order."""
    parts: dict[str, list[tuple[Source, int | None]]] = {}
    for source in first_sources(actor.config):
        for expert, name in enumerate(source.names):
            parts.setdefault(name, []).append((source, expert if source.stored.per_expert else None))
    found = [
        _Out(name=name, shape=of[0][0].stored.shape, dtype=of[0][0].parameter.dtype(dtype), parts=tuple(of))
        for name, of in parts.items()
    ]
    return sorted(found, key=lambda out: [(part.isdigit(), part.zfill(9)) for part in out.name.split(".")])


def _shards(tensors: Sequence[_Out], most: int) -> dict[str, list[_Out]]:
    filled: list[list[_Out]] = [[]]
    room = most
    for out in tensors:
        if filled[-1] and out.size > room:
            filled.append([])
            room = most
        filled[-1].append(out)
        room -= out.size
    if len(filled) == 1:
        return {"model.safetensors": filled[0]}
    return {f"model-{i:05d}-of-{len(filled):05d}.safetensors": shard for i, shard in enumerate(filled, 1)}


def _index(shards: Mapping[str, Sequence[_Out]]) -> str:
    total = sum(out.size for shard in shards.values() for out in shard)
    places = {out.name: name for name, shard in shards.items() for out in shard}
    return _json({"metadata": {"total_size": total}, "weight_map": places})


def _write(file: Path | None, shard: Sequence[_Out], weights: Sequence[Array]) -> None:
    """One safetensors file; without a name, what this process does while another writes it."""
    values = (_value(out, weights) for out in shard)
    if file is None:
        for _ in values:
            pass
        return
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for out in shard:
        start, end = end, end + out.size
        header[out.name] = {"dtype": _STORED[out.dtype.name], "shape": out.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("xb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for value in values:
            opened.write(value.data)
        opened.flush()
        os.fsync(opened.fileno())


def _value(out: _Out, weights: Sequence[Array]) -> np.ndarray:
    """The bits of a tensor as it is stored."""
    bits = np.dtype(f"<u{out.dtype.itemsize}")
    tensor = np.empty(out.shape, bits)
    for source, expert in out.parts:
        place = [index for index in (source.row, expert) if index is not None]
        source.stored.write(tensor, _fetched(weights[source.leaf], place, out.dtype).view(bits))
    return tensor


def _fetched(array: Array, place: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """``array[place]`` on the host."""
    if array.nbytes <= _WHOLE and array.is_fully_addressable:
        host: np.ndarray = np.asarray(array)[tuple(place)].astype(dtype)
        return host
    target = None
    if not array.is_fully_addressable and isinstance(array.sharding, NamedSharding):
        target = NamedSharding(array.sharding.mesh, PartitionSpec())
    picked: Array = _picker(len(place), dtype, target)(array, np.asarray(place, np.int32))
    return np.asarray(picked)


@functools.lru_cache(maxsize=64)
def _picker(count: int, dtype: np.dtype[Any], target: NamedSharding | None) -> Any:
    """The entry at ``count`` leading indices, on its devices; at ``target`` where several processes share them."""

    def pick(array: Array, place: Array) -> Array:
        for axis in range(count):
            array = jax.lax.dynamic_index_in_dim(array, place[axis], keepdims=False)
        return array.astype(dtype)

    return jax.jit(pick, out_shardings=target)
