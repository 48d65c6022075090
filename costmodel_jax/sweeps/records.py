"""Where a streamed sweep reads runs: files of records that can be reached by number, so that nothing is read twice.

One record is a line of JSON Lines, a row of Parquet, a record of ArrayRecord (a run each, as agent-run/1), or a whole
log of any other format that ``costmodel import`` knows.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, detect, importer, sources_of
from costmodel_jax.importers.source import STDIN, Source
from costmodel_jax.schema import Run

__all__ = ["Records", "open_records"]

ARRAY_RECORD = (".array_record", ".arrayrecord")
LINES = (".jsonl", ".ndjson")


@runtime_checkable
class File(Protocol):
    """Records of one file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> list[Run]: ...


@dataclass(frozen=True, eq=False)
class Records:
    """Records of several files, one after another.

    Attributes:
      paths: the files.
      files: their records.
    """

    paths: tuple[str, ...]
    files: tuple[File, ...]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(file) for file in self.files))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int, /) -> list[Run]:
        """The runs of a record.

        Raises:
          InputError: with file and line or row, for what cannot be read.
        """
        file = bisect_right(self._ends, index)
        return self.files[file][index - (self._ends[file - 1] if file else 0)]

    def describe(self) -> list[dict[str, Any]]:
        """Path, size and time of change of every file: what a sweep that goes on is held against."""
        found = []
        for path in self.paths:
            stat = Path(path).stat()
            found.append({"path": path, "bytes": stat.st_size, "changed": stat.st_mtime_ns})
        return found


def open_records(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str = "auto",
    options: Options | None = None,
) -> Records:
    """Files, or folders that are searched through, as records; nothing but line ends is read yet.

    Args:
      format: of logs, as in `costmodel_jax.load_runs`; Parquet, ArrayRecord and lines of agent-run/1 know themselves.
      options: leniency, tokenizer, and the list that collects what reading passed over.

    Raises:
      InputError: no such file, a format that is not known, or no record at all.
    """
    options = options or Options()
    named = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[tuple[str, File]] = []
    for path in [os.fspath(each) for each in named]:
        if path == "-":
            raise InputError("standard input cannot be gone through again; write it to a file first", path=STDIN)
        if Path(path).is_dir():
            packed = [str(f) for f in sorted(Path(path).rglob("*")) if f.suffix in (".parquet", *ARRAY_RECORD)]
            found += [(each, _file(each, format, options)) for each in packed]
            for source, _ in sources_of([path]):
                try:
                    found.append((str(source.path), _file(str(source.path), format, options)))
                except InputError as error:
                    options.report("skipped_file", error)
        elif Path(path).exists():
            found.append((path, _file(path, format, options)))
        else:
            raise InputError("no such file or folder", path=path)
    found = [(path, file) for path, file in found if len(file)]
    if not found:
        raise InputError(f"no record in {', '.join(map(str, named))}")
    return Records(tuple(path for path, _ in found), tuple(file for _, file in found))


def _file(path: str, format: str, options: Options) -> File:
    suffix = Path(path).suffix
    if suffix in ARRAY_RECORD:
        return _ArrayRecord(path, options)
    if suffix == ".parquet":
        return _Parquet(path, options)
    source = Source(path)
    name = format
    if format == "auto":
        known = detect(source)
        if known is None:
            raise InputError("not a log of a known format; see costmodel import --help", path=path)
        name = known.name
    if name == "agent-run" and suffix in LINES:
        return _Lines(path, options)
    return _Log(path, name, options)


class _Lines:
    """JSON Lines: where each line begins is found once, in one pass over the file."""

    def __init__(self, path: str, options: Options) -> None:
        self._path, self._options = path, options
        data = np.memmap(path, np.uint8, "r")
        step = 2**26
        ends = [np.flatnonzero(data[at : at + step] == 10) + at for at in range(0, len(data), step)]
        stops = np.concatenate([*ends, [len(data)]]).astype(np.int64)
        starts = np.concatenate([[0], stops[:-1] + 1])
        self._line = np.flatnonzero(stops - starts > 1)  # empty ones, or of a carriage return alone, are none
        self._start, self._stop = starts[self._line], stops[self._line]

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, index: int, /) -> list[Run]:
        with Path(self._path).open("rb") as file:
            file.seek(int(self._start[index]))
            line = file.read(int(self._stop[index] - self._start[index]))
        return _decoded(line, self._path, int(self._line[index]) + 1, self._options)


class _ArrayRecord:
    """ArrayRecord of agent-run/1 as JSON, through Grain."""

    def __init__(self, path: str, options: Options) -> None:
        import grain

        self._path, self._options = path, options
        self._records = grain.sources.ArrayRecordDataSource([path])

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int, /) -> list[Run]:
        return _decoded(self._records[index], self._path, index + 1, self._options)


class _Parquet:
    """Parquet: a column ``run`` of agent-run/1 as JSON, or the fields of agent-run/1 as columns; a group at a time."""

    def __init__(self, path: str, options: Options) -> None:
        import pyarrow.parquet as pq

        self._path, self._options = path, options
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise InputError(f"is no Parquet file ({error})", path=path) from None
        names = set(self._file.schema_arrow.names)
        if "run" not in names and not {"id", "calls"} <= names:
            raise InputError(
                "has neither a column 'run' with agent-run/1 as JSON nor its fields 'id' and 'calls'", path=path
            )
        self._columns = ["run"] if "run" in names else None
        groups = self._file.metadata.num_row_groups
        self._ends = list(accumulate(self._file.metadata.row_group(i).num_rows for i in range(groups)))
        self._group: tuple[int, list[Any]] = (-1, [])

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __getitem__(self, index: int, /) -> list[Run]:
        number = bisect_right(self._ends, index)
        group, rows = self._group
        if group != number:
            rows = self._file.read_row_group(number, columns=self._columns).to_pylist()
            self._group = (number, rows)
        row = rows[index - (self._ends[number - 1] if number else 0)]
        value = row["run"] if self._columns else row
        return _decoded(value, self._path, index + 1, self._options)


class _Log:
    """A log of another format is one record."""

    def __init__(self, path: str, format: str, options: Options) -> None:
        self._path, self._importer, self._options = path, importer(format), options

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int, /) -> list[Run]:
        return self._importer.read([Source(self._path)], self._options)


def _decoded(value: Any, path: str, line: int, options: Options) -> list[Run]:
    """A run of JSON text, or of decoded JSON."""
    try:
        if isinstance(value, (bytes, str)):
            value = msgspec.json.decode(value)
        if not isinstance(value, dict):
            raise InputError("a run is a JSON object; this is none")
        return [Run.from_dict(value)]
    except msgspec.DecodeError as error:
        problem = InputError(f"is not JSON ({error})", path=path, line=line)
    except InputError as error:
        problem = InputError(error.message, path=path, line=line)
    options.skip("skipped_run", problem)
    return []
