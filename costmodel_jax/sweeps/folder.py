"""A sweep over more runs than memory holds: a folder of Parquet parts, one for every chunk of records.

A part appears whole or not at all, and its bytes depend on its records and the sweep alone. So a sweep that was stopped
goes on with the parts that are missing, several processes share the chunks, and all of them leave the same folder.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import msgspec
from jax.sharding import Mesh

from costmodel_jax.errors import InputError
from costmodel_jax.schema import Run
from costmodel_jax.sweep import Axes, sweep_axes
from costmodel_jax.sweeps.files import write_parquet
from costmodel_jax.sweeps.records import Records
from costmodel_jax.sweeps.shapes import Shape

__all__ = ["MANIFEST", "Progress", "sweep_to_folder"]

FORMAT = 1
MANIFEST = "sweep.json"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a sweep has come.

    Attributes:
      parts, done: parts of this process, and how many of them are there.
      kept: parts that were there before.
      runs, rows: of the parts that were made now.
      programs: distinct shapes counted so far: each was compiled once.
    """

    parts: int
    done: int
    kept: int
    runs: int
    rows: int
    programs: int


def sweep_to_folder(
    records: Records,
    folder: str | os.PathLike[str],
    axes: Axes,
    *,
    chunk: int = 1024,
    mesh: Mesh | None = None,
    process: tuple[int, int] | None = None,
    on_part: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Sweep records into ``folder``, or go on with what it holds.

    Args:
      folder: gets ``sweep.json`` and ``part-*.parquet``, whose rows together are those of `costmodel_jax.sweep`.
      axes: policies, cache rules, prices and w.
      chunk: records of a part.
      mesh: of this process's devices, which share the runs of a batch.
      process: index and number of the processes that share the parts; by default those of `jax.distributed`.
      on_part: called after every part.

    Raises:
      InputError: the folder is of another sweep, or holds something else; a record that cannot be read.
    """
    folder = Path(folder)
    index, count = process or (jax.process_index(), jax.process_count())
    total = -(-len(records) // chunk)
    _claim(folder, {"format": FORMAT, "inputs": records.describe(), "chunk": chunk, "parts": total, **axes.describe()})
    mine = range(index, total, count)
    missing = [number for number in mine if not _part(folder, number).is_file()]
    kept = len(mine) - len(missing)
    progress = Progress(parts=len(mine), done=kept, kept=kept, runs=0, rows=0, programs=0)
    shapes: set[tuple[Shape, int]] = set()
    for number, runs in zip(missing, _read_ahead(records, missing, chunk), strict=True):
        found = sweep_axes(runs, axes, mesh=mesh) if runs else None
        rows = write_parquet(_part(folder, number), found.tables() if found else ())
        shapes |= found.shapes if found else set()
        progress = Progress(
            parts=len(mine),
            done=progress.done + 1,
            kept=kept,
            runs=progress.runs + len(runs),
            rows=progress.rows + rows,
            programs=len(shapes),
        )
        on_part(progress)
    return progress


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _claim(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Make the folder this sweep's, or see that it is. Processes of one sweep may come here at the same time."""
    file = folder / MANIFEST
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    # Looked at first: whoever writes parts has written the manifest before.
    used = folder.is_dir() and any(not each.name.startswith(MANIFEST) for each in folder.iterdir())
    if file.is_file():
        found, wanted = (msgspec.json.decode(each) for each in (file.read_bytes(), encoded))
        different = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
        if different:
            raise InputError(
                f"is of another sweep: {', '.join(different)} differ; name another folder, or delete this one",
                path=file,
            )
        return
    if used:
        raise InputError(f"holds files, but no {MANIFEST}; name a folder that is empty or new", path=folder)
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{MANIFEST}.{secrets.token_hex(4)}"
    own.write_bytes(encoded)
    own.replace(file)


class _Chunks:
    """Runs of the chunks that are asked for, as a random-access source."""

    def __init__(self, records: Records, numbers: Sequence[int], chunk: int) -> None:
        self._records, self._numbers, self._chunk = records, numbers, chunk

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int, /) -> list[Run]:
        first = self._numbers[index] * self._chunk
        last = min(first + self._chunk, len(self._records))
        return [run for number in range(first, last) for run in self._records[number]]


def _read_ahead(records: Records, numbers: Sequence[int], chunk: int) -> Any:
    """The runs of chunks, the next one read by a thread of Grain while this one is counted."""
    import grain

    if not numbers:
        return ()
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    return grain.MapDataset.source(_Chunks(records, numbers, chunk)).to_iter_dataset(options)
