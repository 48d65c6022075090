"""Tables as Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq

from costmodel_jax.sweeps.table import COLUMNS, schema
from costmodel_jax.tables import whole_file

__all__ = ["write_parquet"]

_PLAIN = ("flops", "vs_keep_all")  # hardly a value twice


def write_parquet(path: str | os.PathLike[str], tables: Iterable[Any]) -> int:
    """Write tables as one file, a row group each; it appears whole or not at all.

    The same tables give the same bytes.

    Returns:
      The number of rows.

    Raises:
      InputError: if the file cannot be written.
    """
    rows = 0
    coded = [name for name in COLUMNS if name not in _PLAIN]
    with (
        whole_file(path) as stream,
        pq.ParquetWriter(stream, schema(), compression="zstd", compression_level=1, use_dictionary=coded) as writer,
        ThreadPoolExecutor(1) as pool,  # makes the next table while this one is written
    ):
        iterator = iter(tables)
        ahead = pool.submit(next, iterator, None)
        while (table := ahead.result()) is not None:
            ahead = pool.submit(next, iterator, None)
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            rows += table.num_rows
    return rows
