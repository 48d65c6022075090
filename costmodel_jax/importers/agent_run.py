"""The canonical format ``agent-run/1`` itself: JSON or JSON Lines."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import SCHEMA, Run

__all__ = ["IMPORTER"]


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and (value.get("schema") == SCHEMA or {"id", "calls"} <= value.keys())


def detect(source: Source) -> bool:
    """A run, a list of runs, or lines of which the first is a run."""
    first = source.first
    return _is_run(first[0] if isinstance(first, list) and first else first)


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every run of every file."""
    runs = []
    for source in sources:
        for line, value in _values(source, options):
            try:
                if not isinstance(value, dict):
                    raise InputError("a run is a JSON object; this is none")
                runs.append(Run.from_dict(value))
            except InputError as error:
                options.skip("skipped_run", InputError(error.message, path=source.path, line=line))
    return runs


def _values(source: Source, options: Options) -> list[tuple[int | None, Any]]:
    """The runs of a file with their lines; a document that spans lines has none."""
    if source.data.count(b"\n", 0, len(source.data.rstrip())):
        with contextlib.suppress(InputError):
            document = source.document()
            return [(None, run) for run in (document if isinstance(document, list) else [document])]
    values: list[tuple[int | None, Any]] = []
    for line, value in source.records(options):
        values += [(line, run) for run in (value if isinstance(value, list) else [value])]
    return values


IMPORTER = Importer(
    name="agent-run",
    title="agent-run/1",
    convention="segment lengths in tokens; usage inclusive of cached tokens, per call",
    key="one run a line",
    reuse="measured",
    reasoning="observed",
    detect=detect,
    read=read,
)
