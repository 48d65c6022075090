"""Export: files that are whole or absent, numbers that survive, JSON that any reader takes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

import costmodel_jax as cm
from costmodel_jax.tables import (
    CALL_COLUMNS,
    RUN_COLUMNS,
    Chunk,
    compact_number,
    flops_unit,
    records,
    to_json,
    whole_file,
    write_table,
)

SECTION_7 = ["run", "policy", "cache", "architecture", "w", "calls", "prompt", "reused", "generated", "processed"]
SECTION_7 += ["pairs", "flops", "vs_keep_all"]
LARGE = 2**53 + 1  # no float64 holds it


def chunk(**values: Any) -> Chunk:
    """Two rows, all columns, one run without numbers."""
    kinds = {"string": ["a", "b"], "int64": [LARGE, None], "float64": [0.1, None]}
    return {name: values.get(name, kinds[kind]) for name, kind in RUN_COLUMNS.items()}


def test_the_columns_hold_those_of_the_specification_in_order() -> None:
    assert [name for name in RUN_COLUMNS if name in SECTION_7] == SECTION_7


def test_parquet_and_csv_give_back_what_was_written(tmp_path: Path) -> None:
    chunks = [chunk(), chunk(run=["c", "d"])]
    for format, read in (("parquet", pyarrow.parquet.read_table), ("csv", pyarrow.csv.read_csv)):
        path = tmp_path / f"rows.{format}"
        assert write_table(path, chunks, RUN_COLUMNS, format) == 4  # type: ignore[arg-type]
        table = read(path)
        assert table.column_names == list(RUN_COLUMNS)
        assert table["run"].to_pylist() == ["a", "b", "c", "d"]
        assert table["pairs"].to_pylist() == [LARGE, None, LARGE, None]
        assert table["flops"].to_pylist() == [0.1, None, 0.1, None]
    assert pyarrow.parquet.read_schema(tmp_path / "rows.parquet").field("calls").type == pyarrow.int64()


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    assert write_table(tmp_path / "none.parquet", [], CALL_COLUMNS, "parquet") == 0
    assert pyarrow.parquet.read_table(tmp_path / "none.parquet").column_names == list(CALL_COLUMNS)


def test_a_failure_on_the_way_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("old")

    def broken() -> Iterator[Chunk]:
        yield chunk()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table(path, broken(), RUN_COLUMNS, "csv")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(cm.InputError, match=r"missing/rows\.csv: cannot be written: No such file"):
        write_table(tmp_path / "missing" / "rows.csv", [], RUN_COLUMNS, "csv")
    with pytest.raises(cm.InputError, match="cannot be written"), whole_file(tmp_path):
        pass


def test_records_are_rows() -> None:
    assert list(records([{"a": [1, 2], "b": ["x", None]}])) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    with pytest.raises(ValueError, match="shorter"):
        list(records([{"a": [1, 2], "b": ["x"]}]))


def test_json_keeps_integers_and_turns_what_is_no_number_into_null() -> None:
    value = {
        "int": LARGE,
        "numpy": np.int64(LARGE),
        "array": np.array([1.5, math.nan]),
        "inf": [math.inf, -math.inf],
        "path": Path("a") / "b",
        1: (True, None),
    }
    text = to_json(value)
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == {
        "int": LARGE,
        "numpy": LARGE,
        "array": [1.5, None],
        "inf": [None, None],
        "path": "a/b",
        "1": [True, None],
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999_999, "999,999"),
        (1_000_000, "1.000M"),
        (12_345_678, "12.35M"),
        (999_960_000, "1.000G"),
        (1.2345e12, "1.234T"),
        (5e20, "500.0E"),
        (math.inf, "never"),
        (math.nan, "-"),
    ],
)
def test_counts_for_reading(value: float, text: str) -> None:
    assert compact_number(value) == text


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([], ("FLOP", 1.0)),
        ([0.0], ("FLOP", 1.0)),
        ([5.0], ("FLOP", 1.0)),
        ([9_999.0], ("FLOP", 1.0)),
        ([10_000.0], ("kFLOP", 1e3)),
        ([3e13, math.nan], ("TFLOP", 1e12)),
        ([1.5e17], ("PFLOP", 1e15)),
        ([1e30], ("EFLOP", 1e18)),
    ],
)
def test_a_unit_that_suits_the_largest(values: list[float], unit: tuple[str, float]) -> None:
    assert flops_unit(values) == unit
