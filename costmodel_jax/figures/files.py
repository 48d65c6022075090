"""A figure and the table behind it, as files."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from costmodel_jax.errors import InputError
from costmodel_jax.figures.style import styled
from costmodel_jax.tables import whole_file

__all__ = ["save"]

SUFFIXES = (".png", ".svg", ".pdf")


@styled
def save(figure: Figure, table: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write a figure and, beside it, its table as CSV. Both appear whole or not at all.

    Args:
      figure: what a function of this package returned.
      table: its rows; a cell that is ``None`` or NaN stays empty.
      path: ends in ``.png`` (also the default), ``.svg`` or ``.pdf``; folders are made.

    Returns:
      The paths of the picture and of the table.

    Raises:
      InputError: another ending, or a place that cannot be written.
    """
    picture = Path(path)
    if picture.suffix == "":
        picture = picture.with_suffix(".png")
    if picture.suffix.lower() not in SUFFIXES:
        raise InputError(f"a figure ends in {', '.join(SUFFIXES)}, not {picture.suffix!r}", path=picture)
    drawn = io.BytesIO()
    # Without dates and versions the same figure is the same file.
    metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    kind = picture.suffix.lower()
    figure.savefig(drawn, format=kind[1:], dpi=200, metadata=metadata[kind])
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be made: {error.strerror or error}", path=picture.parent) from None
    rows = picture.with_suffix(".csv")
    with whole_file(rows) as table_file, whole_file(picture) as picture_file:
        table_file.write(_csv(table))
        picture_file.write(drawn.getvalue())
    return picture, rows


def _csv(table: Sequence[Mapping[str, Any]]) -> bytes:
    columns = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in table)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
