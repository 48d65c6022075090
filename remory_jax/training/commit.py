"""What makes a checkpoint a finished one: a record of its files, with their hashes, written after all of them.

The record also holds what decides whether a run may resume from it: process count, shapes and metadata.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

__all__ = [
    "RECORD",
    "Commit",
    "DamagedError",
    "damage",
    "differences",
    "kind",
    "misfits",
    "named",
    "plain",
    "read",
    "write",
]

RECORD = "committed.json"
_READERS = 4  # hashing releases the interpreter lock


class DamagedError(ValueError):
    """A checkpoint that cannot be trusted; the message says why."""


class FileHash(msgspec.Struct, frozen=True, kw_only=True):
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one checkpoint.

    Attributes:
      step: training step after which it was taken.
      processes: how many processes wrote it; the data iterator has one file of each.
      leaves: shape and dtype of every array of the state, by name.
      metadata: what the run stored beside it.
      files: every file of the folder, by relative path.
    """

    step: int
    processes: int
    leaves: dict[str, tuple[tuple[int, ...], str]]
    metadata: dict[str, Any]
    files: dict[str, FileHash] = {}


class _Envelope(msgspec.Struct, frozen=True):
    sha256: str
    record: msgspec.Raw


def write(folder: Path, commit: Commit) -> None:
    """Hash the files of a complete checkpoint and write its record, so that it appears whole or not at all."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    names = sorted(str(path.relative_to(folder)) for path in files)
    with ThreadPoolExecutor(_READERS) as readers:
        hashes = readers.map(lambda name: _hash(folder / name), names)
        commit = msgspec.structs.replace(commit, files=dict(zip(names, hashes, strict=True)))
    record = msgspec.json.encode(commit, order="sorted")
    envelope = _Envelope(sha256=hashlib.sha256(record).hexdigest(), record=msgspec.Raw(record))
    partial = folder / f"{RECORD}.partial"
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(envelope))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / RECORD)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: Path) -> Commit:
    """The record of a checkpoint.

    Raises:
      DamagedError: there is none, or it is not what was written.
    """
    try:
        data = (folder / RECORD).read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(f"it has no {RECORD}: the run ended while it was being written") from error
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if hashlib.sha256(envelope.record).hexdigest() != envelope.sha256:
            raise DamagedError(f"{RECORD} does not match its own checksum")
        return msgspec.json.decode(envelope.record, type=Commit)
    except msgspec.DecodeError as error:
        raise DamagedError(f"{RECORD} is not a record ({error})") from error


def damage(folder: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None. Reads all of it."""
    try:
        commit = read(folder)
    except DamagedError as error:
        return str(error)
    for name, expected in commit.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected.size:
            return f"{name} has {path.stat().st_size} bytes, {expected.size} were written"
    with ThreadPoolExecutor(_READERS) as readers:
        found = readers.map(lambda name: _hash(folder / name), commit.files)
        for (name, expected), actual in zip(commit.files.items(), found, strict=True):
            if actual != expected:
                return f"{name} was changed (SHA-256 {actual.sha256[:12]}.., {expected.sha256[:12]}.. recorded)"
    return None


def _hash(path: Path) -> FileHash:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileHash(size=file.tell(), sha256=digest)


def named(state: Any) -> dict[str, Any]:
    """Arrays by name, ``params.layers.0.q_proj``: a checkpoint does not depend on the classes that hold them.

    Raises:
      ValueError: a leaf that is no array, or two of one name.
    """
    named = {}
    for path, leaf in jax.tree.leaves_with_path(state):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in named:
            raise ValueError(f"two arrays of the state are named {name}; rename one")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ValueError(f"{name} is {type(leaf).__name__}: make it an array, so that its type survives")
        named[name] = np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
    return named


def kind(leaf: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of an array, as a record holds them."""
    return tuple(leaf.shape), str(leaf.dtype)


def misfits(record: Commit, wanted: Mapping[str, Any], partial: bool) -> list[str]:
    """Where arrays by name differ from those of a checkpoint, one line each; with ``partial`` it may hold more."""
    found = []
    for name, leaf in wanted.items():
        saved, (shape, dtype) = record.leaves.get(name), kind(leaf)
        if saved is None:
            found.append(f"{name} is not in it")
        elif saved != (shape, dtype):
            found.append(f"{name} is {saved[1]}{list(saved[0])} in it, {dtype}{list(shape)} here")
    if not partial:
        found += [f"{name} is in it and not here" for name in sorted(record.leaves.keys() - wanted.keys())]
    return found


def plain(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as JSON reads it back: dataclasses become dicts, tuples lists.

    Raises:
      TypeError: something JSON cannot hold.
    """
    return dict(msgspec.json.decode(msgspec.json.encode(dict(metadata or {}))))


def differences(saved: Any, current: Any, allow: Collection[str] = (), path: str = "") -> list[str]:
    """Where two metadata disagree, one line each; paths in ``allow`` and what is below them may differ."""
    if path in allow:
        return []
    if isinstance(saved, dict) and isinstance(current, dict):
        found = []
        for key in sorted(saved.keys() | current.keys()):
            below = f"{path}.{key}" if path else key
            if key in saved and key in current:
                found += differences(saved[key], current[key], allow, below)
            elif below not in allow:
                found.append(f"{below} is {'gone' if key in saved else 'new'}")
        return found
    return [] if saved == current else [f"{path} = {_short(saved)}, this run has {_short(current)}"]


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
