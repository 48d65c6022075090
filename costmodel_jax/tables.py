"""Results as tidy tables: one row per run, policy, cache, architecture and w, or one per call; CSV, Parquet and JSON.

A table is a series of chunks, so that a large one is never held whole; a chunk maps column names to lists of equal
length, with ``None`` where there is no number. Parts of a row add up: processed = prompt - reused + generated, and the
rows of a run's calls add up to the run's row.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from costmodel_jax.errors import InputError

__all__ = [
    "CALL_COLUMNS",
    "RUN_COLUMNS",
    "Chunk",
    "Columns",
    "compact_number",
    "flops_unit",
    "records",
    "to_json",
    "whole_file",
    "write_table",
]

Chunk: TypeAlias = Mapping[str, Sequence[Any]]
Columns: TypeAlias = Mapping[str, Literal["string", "int64", "float64"]]

_KEYS: Columns = {"run": "string", "policy": "string", "cache": "string", "architecture": "string", "w": "float64"}
_COUNTS: Columns = dict.fromkeys(("prompt", "reused", "generated", "processed", "pairs"), "int64")
_ORIGIN: Columns = dict.fromkeys(("status", "label", "lengths", "cached", "reasoning", "format", "model"), "string")

RUN_COLUMNS: Columns = {
    **_KEYS, "calls": "int64", "requests": "int64", **_COUNTS, "flops": "float64", "vs_keep_all": "float64", **_ORIGIN
}  # fmt: skip
"""Columns of one row per run.

``calls`` holds the ``requests`` for summaries too. ``vs_keep_all`` is the cost relative to keeping everything under
the same cache, architecture and w. ``status`` is ``ok`` or why there are no numbers. ``label`` is ``measured`` (the
server's own counts), ``replayed`` (recorded lengths under a policy and a cache rule) or ``modelled`` (lengths that
nobody recorded: a summary's, a tokenizer's). ``lengths``, ``cached`` and ``reasoning`` are the run's evidence.
"""

CALL_COLUMNS: Columns = {
    **_KEYS, "call": "int64", "request": "int64", **_COUNTS, "flops": "float64", **_ORIGIN
}  # fmt: skip
"""Columns of one row per call: ``call`` counts from 0, ``request`` is 1 for the summary request sent before it."""


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write that appears under its name when all of it is written, or not at all.

    Raises:
      InputError: if it cannot be written.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as stream:
            yield stream
        partial.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot be written: {error.strerror or error}", path=path) from None
        raise


def write_table(
    path: str | os.PathLike[str], chunks: Iterable[Chunk], columns: Columns, format: Literal["csv", "parquet"]
) -> int:
    """Write chunks as a CSV or Parquet file, which appears whole or not at all.

    Returns:
      The number of rows.

    Raises:
      InputError: if the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in columns.items()])
    writers = {"csv": pyarrow.csv.CSVWriter, "parquet": pyarrow.parquet.ParquetWriter}
    rows = 0
    with whole_file(path) as stream, writers[format](stream, schema) as writer:
        for chunk in chunks:
            table = _arrow(chunk, columns, schema)
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _arrow(chunk: Chunk, columns: Columns, schema: Any) -> Any:
    import pyarrow as pa

    return pa.table([pa.array(chunk[name], schema.field(name).type) for name in columns], schema=schema)


def records(chunks: Iterable[Chunk]) -> Iterator[dict[str, Any]]:
    """The rows of chunks as dictionaries, ready for JSON."""
    for chunk in chunks:
        for values in zip(*chunk.values(), strict=True):
            yield dict(zip(chunk, values, strict=True))


def to_json(value: Any) -> str:
    """JSON that any reader takes: what is not a number is null, integers keep all their digits.

    Raises:
      TypeError: for a value that has no JSON form.
    """
    return json.dumps(_plain(value), indent=1, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def compact_number(value: int | float, digits: int = 4) -> str:
    """A count for reading: all digits with separators up to 999,999, then as ``1.234M``, ``61.20G``, ``1.500T``."""
    if not math.isfinite(value):
        return "never" if value > 0 else "-"
    if abs(value) < 1e6:
        return f"{value:,.0f}"
    power = min(int(math.log10(abs(value)) // 3), 6)
    scaled = value / 1000.0**power
    if abs(scaled) >= 999.95 and power < 6:  # would round to four digits before the point
        power, scaled = power + 1, scaled / 1000.0
    whole = len(f"{abs(scaled):.0f}")
    return f"{scaled:.{max(digits - whole, 0)}f}{' kMGTPE'[power]}"


def flops_unit(values: Iterable[float]) -> tuple[str, float]:
    """The unit that suits the largest of some FLOP counts, and how many FLOPs it is."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    power = min(max(int(math.log10(largest / 10.0) // 3), 0), 6) if largest else 0
    return f"{('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}FLOP", 1000.0**power
