"""Damaged logs: whatever happens to a file, only InputError may come out, and what is read must hold together."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Importer, Options, Source

ODD: tuple[Any, ...] = (None, True, -1, 0, 7, 3.5, 2**31, 10**17, "", "x", [], {}, [[]], [None], {"a": {}}, ["text"])


def check(importer: Importer, files: dict[str, bytes], *, rounds: int, seed: int = 0) -> None:
    """Read ``rounds`` damaged copies of some files, strictly and leniently.

    Args:
      importer: the format.
      files: contents by path (no such path needs to exist).
      rounds: how many copies.
      seed: of the damage.
    """
    rng = random.Random(seed)
    for _ in range(rounds):
        damaged = dict(files)
        for path in rng.sample(sorted(files), min(len(files), 2)):
            damaged[path] = _damaged(files[path], rng)
        for lenient in (False, True):
            sources = [Source(path, data) for path, data in damaged.items()]
            for source in sources:
                importer.detect(source)
            try:
                runs = importer.read(sources, Options(lenient=lenient))
            except InputError as error:
                assert not lenient, f"lenient reading raised: {error}"
                continue
            for run in runs:
                replay.check(run)


def _damaged(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return data[: rng.randrange(len(data) + 1)]
    if rng.random() < 0.05:
        place = rng.randrange(len(data))
        return data[:place] + rng.randbytes(8) + data[place + 8 :]
    try:
        values, joint = [msgspec.json.decode(data)], b""
    except msgspec.DecodeError:
        values, joint = [msgspec.json.decode(line) for line in data.splitlines() if line.strip()], b"\n"
    for _ in range(rng.choice((1, 1, 2, 5))):
        _mutate(values, rng)
    return joint.join(msgspec.json.encode(value) for value in values)


def _mutate(values: list[Any], rng: random.Random) -> None:
    """Change one place: drop it, put something odd there, copy it, or swap it with a neighbour."""
    places = list(_places(values))
    if not places:
        return
    parent, key = rng.choice(places)
    act = rng.random()
    if act < 0.3:
        del parent[key]
    elif act < 0.8:
        parent[key] = copy.deepcopy(rng.choice(ODD))
    elif isinstance(parent, list):
        if act < 0.9:
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
        else:
            other = rng.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside a JSON value, as its container and key."""
    pending = [value]
    while pending:
        parent = pending.pop()
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        for key in keys:
            yield parent, key
            if isinstance(parent[key], (dict, list)):
                pending.append(parent[key])


def files_below(folder: Path) -> dict[str, bytes]:
    """All files of a fixture folder, by path."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
