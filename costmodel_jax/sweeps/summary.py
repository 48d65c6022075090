"""Totals of a sweep's table by policy, cache rule, architecture and w, whatever its size: a part at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["summarise", "summarise_folder"]

KEYS = ("policy", "cache", "architecture", "w")
SUMS = ("calls", "requests", "prompt", "reused", "generated", "processed", "pairs", "flops")


def summarise_folder(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """`summarise` of every part in a folder of ``costmodel sweep``."""
    columns = [*KEYS, *SUMS, "vs_keep_all", "status"]
    return summarise(pq.read_table(part, columns=columns) for part in sorted(Path(folder).glob("part-*.parquet")))


def summarise(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """One entry per policy, cache rule, architecture and w, in the order of their first rows.

    Each has the number of ``runs`` with numbers and ``without`` any, exact sums over the runs that have numbers, and
    ``vs_keep_all``: the ratio of the sums of cost over the runs that have one under keep-all too.
    """
    entries: dict[tuple[Any, ...], dict[str, Any]] = {}
    for table in tables:
        compared = pc.is_valid(table["vs_keep_all"])
        kept = pc.divide(table["flops"], table["vs_keep_all"])
        whole = table.select([*KEYS, *SUMS]).append_column("kept", kept)
        whole = whole.append_column("compared", pc.if_else(compared, table["flops"], None))
        whole = whole.append_column("ok", pc.cast(pc.equal(table["status"], "ok"), pa.int64()))
        whole = whole.append_column("rows", pa.array([1] * whole.num_rows, pa.int64()))
        names = [*SUMS, "kept", "compared", "ok", "rows"]
        grouped = whole.group_by(list(KEYS), use_threads=False).aggregate([(name, "sum") for name in names])
        for row in grouped.to_pylist():
            entry = entries.setdefault(tuple(row[key] for key in KEYS), dict.fromkeys(names, 0))
            for name in names:
                entry[name] += row[f"{name}_sum"] or 0
    return [
        {
            **dict(zip(KEYS, key, strict=True)),
            "runs": entry["ok"],
            "without": entry["rows"] - entry["ok"],
            **{name: entry[name] for name in SUMS},
            "vs_keep_all": entry["compared"] / entry["kept"] if entry["kept"] else None,
        }
        for key, entry in entries.items()
    ]
