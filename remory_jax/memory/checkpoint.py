"""`load_memory` and `save_memory`: the released folder of ``config.json``, ``manifest.json`` and ``model.safetensors``.

The manifest has the SHA-256 of the config and of the weights and, in folders written here, the fingerprint of the actor
the network was trained with. Nothing is read on trust: checksums first, then names and shapes, then values.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh

from costmodel_jax.errors import InputError
from remory_jax.actor.loading.folder import Tensor, read_folder
from remory_jax.actor.sharding import DEFAULT_RULES, Rules
from remory_jax.memory.fingerprint import Fingerprint
from remory_jax.memory.network import MemoryNetwork
from remory_jax.memory.parameters import OUTPUT_RMS, stored_shapes
from remory_jax.memory.released import Released, canonical_sha256, described, parse
from remory_jax.memory.tensors import check_names, network_from_values, tensors_of

__all__ = ["actor_of", "load_memory", "read_memory_config", "save_memory"]

CONFIG, MANIFEST, WEIGHTS = "config.json", "manifest.json", "model.safetensors"

_DTYPES: Mapping[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}
_STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def read_memory_config(folder: str | PathLike[str]) -> Released:
    """What a folder's ``config.json`` says, checked against its manifest; no weights are read.

    Raises:
      InputError: a file that is missing or malformed, or a checksum that is wrong.
    """
    folder = Path(folder)
    for name in (CONFIG, MANIFEST, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(f"holds no {name}; give the folder of a memory network", path=folder)
    content = _json(folder / CONFIG)
    wanted, found = _digest(folder, "config_sha256"), canonical_sha256(content)
    if wanted != found:
        raise _mismatch(folder / CONFIG, "config_sha256", wanted, found)
    return parse(content, folder / CONFIG)


def actor_of(folder: str | PathLike[str]) -> Fingerprint:
    """The fingerprint of the actor that a folder's network belongs to; empty for folders that carry none.

    Raises:
      InputError: a malformed manifest.
    """
    file = Path(folder) / MANIFEST
    recorded = _json(file).get("actor") or {}
    try:
        return Fingerprint(**recorded)
    except TypeError as error:
        raise InputError(f"actor = {recorded!r} is no fingerprint: {error}", path=file) from error


def load_memory(
    folder: str | PathLike[str],
    *,
    dtype: Any = jnp.float32,
    param_dtype: Any = None,
    mesh: Mesh | None = None,
    rules: Rules = DEFAULT_RULES,
    actor: Fingerprint | None = None,
) -> MemoryNetwork:
    """Load a released memory network.

    Args:
      folder: with ``config.json``, ``manifest.json`` and ``model.safetensors``.
      dtype: of the computation. In bfloat16 a summary-conditioned network whose config does not say otherwise gets
        rotary frequencies rounded as the released loader rounds them; its ``config.rope_table_dtype`` says so.
      param_dtype: of the parameters; by default ``dtype``.
      mesh, rules: where the parameters lie; None for one device.
      actor: fingerprint of the actor it is to be used with.

    Raises:
      InputError: naming the file, and the tensor where there is one: a missing or malformed file, a wrong checksum,
        tensors that are not the network's, values that are not finite, or another actor, saying in what it differs.
    """
    folder = Path(folder)
    released = read_memory_config(folder)
    if actor is not None:
        actor_of(folder).check(actor, folder)
    file = folder / WEIGHTS
    wanted = _digest(folder, "safetensors_sha256")
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if wanted != found:
        raise _mismatch(file, "safetensors_sha256", wanted, found)
    tensors = {name: tensor for name, tensor in read_folder(folder).items() if tensor.file == file}
    config = released.config
    check_names(config, {name: tensor.shape for name, tensor in tensors.items()}, file)
    kind = jnp.dtype(dtype)
    if kind == jnp.bfloat16 and config.summary_attention and not released.says_rope_table:
        config = replace(config, rope_table_dtype="bfloat16")
    return network_from_values(
        config,
        lambda name: _values(tensors[name]),
        dtype=kind,
        param_dtype=kind if param_dtype is None else param_dtype,
        mesh=mesh,
        rules=rules,
    )


def save_memory(
    folder: str | PathLike[str],
    network: MemoryNetwork,
    *,
    released: Released | None = None,
    actor: Fingerprint | None = None,
) -> Path:
    """Write a network as a released folder, whole or not at all.

    With several processes all of them call this, and process 0 writes.

    Args:
      folder: must not exist, or be empty.
      network: what to write, in the dtype of its parameters.
      released: markers, placeholder and target to describe, as from `read_memory_config`; its ``config`` gives way to
        the network's own.
      actor: fingerprint of the actor the network was trained with.

    Returns:
      the folder.

    Raises:
      ValueError: a folder that holds something.
      InputError: values that are not finite, naming the tensor.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not empty; choose a new folder")
    writes = jax.process_index() == 0
    scale = float(np.asarray(network.output_embedding_rms[...], np.float32))
    about = replace(released or Released(config=network.config), config=network.config)
    content = described(about, scale)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        if writes:
            partial.mkdir(parents=True)
        digest = _write_weights(partial / WEIGHTS if writes else None, network)
        if writes:
            manifest = {
                "config_sha256": canonical_sha256(content),
                "safetensors_sha256": digest,
                "tensors": len(stored_shapes(network.config)),
                "parameters": network.config.parameter_count,
            }
            if actor is not None:
                manifest["actor"] = {name: value for name, value in asdict(actor).items() if value is not None}
            _write_json(partial / CONFIG, content)
            _write_json(partial / MANIFEST, manifest)
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
    finally:
        if writes:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON: {error}", path=file) from error
    if not isinstance(content, dict):
        raise InputError("is not a JSON object", path=file)
    return content


def _digest(folder: Path, name: str) -> str:
    value = _json(folder / MANIFEST).get(name)
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r}; it must be a SHA-256 in hexadecimal", path=folder / MANIFEST)
    return value


def _mismatch(file: Path, name: str, wanted: str, found: str) -> InputError:
    return InputError(
        f"its SHA-256 is {found[:12]}.. and {MANIFEST} has {name} = {wanted[:12]}..; the file was "
        "changed or is truncated: fetch it anew",
        path=file,
    )


def _values(tensor: Tensor) -> np.ndarray:
    if tensor.dtype not in _DTYPES:
        raise InputError(
            f"tensor {tensor.name} is of {tensor.dtype}; weights are {', '.join(_DTYPES)}", path=tensor.file
        )
    values: np.ndarray = tensor.bits().view(_DTYPES[tensor.dtype])
    _finite(tensor.name, values, tensor.file)
    return values


def _finite(name: str, values: np.ndarray, file: Path | None) -> None:
    if not np.all(np.isfinite(values)):
        raise InputError(f"tensor {name} has values that are not finite; the network is unusable", path=file)


def _write_weights(file: Path | None, network: MemoryNetwork) -> str:
    """One safetensors file, a stack of tensors at a time on the host; its SHA-256."""
    shapes = stored_shapes(network.config)
    kind = jnp.dtype(jax.tree.leaves(network.weights())[0].dtype)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in sorted(shapes.items(), key=lambda item: item[0] == OUTPUT_RMS):
        dtype = np.dtype(np.float32) if name == OUTPUT_RMS else kind
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _STORED[dtype.name], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pieces = tensors_of(network)
    if file is None:
        for _ in pieces:
            pass
        return ""
    return _stream(file, len(text).to_bytes(8, "little") + text, pieces, list(header)[1:])


def _stream(file: Path, head: bytes, pieces: Iterable[tuple[str, np.ndarray]], order: list[str]) -> str:
    digest = hashlib.sha256(head)
    with file.open("xb") as opened:
        opened.write(head)
        for (name, values), expected in zip(pieces, order, strict=True):
            assert name == expected
            _finite(name, values, None)
            data = np.ascontiguousarray(values).tobytes()
            digest.update(data)
            opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    return digest.hexdigest()


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    with file.open("x", encoding="utf-8") as opened:
        opened.write(json.dumps(content, indent=2, sort_keys=True) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
