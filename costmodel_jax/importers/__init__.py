"""Agent logs of many tools to runs: one file per format, detection, and the loader over them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from costmodel_jax.errors import InputError
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.source import STDIN, Options, Problem, Source
from costmodel_jax.schema import Run

__all__ = ["FORMATS", "Importer", "Options", "Problem", "Source", "detect", "importers", "load_runs", "sources_of"]

# In order of detection: a format whose mark is surest comes first.
FORMATS: dict[str, str] = {
    "agent-run": "agent_run",
    "claude_code": "claude_code",
    "codex": "codex",
    "gemini_cli": "gemini_cli",
    "opencode": "opencode",
    "openai": "openai_api",
    "anthropic": "anthropic_api",
    "atif": "atif",
    "swe_agent": "swe_agent",
    "openhands": "openhands",
    "inspect_ai": "inspect_ai",
    "otel_gen_ai": "otel_gen_ai",
    "tau_bench": "tau_bench",
    "mini_swe_agent": "mini_swe_agent",
    "react_text": "react_text",
}
SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj", ".eval", ".log", ".txt")
IGNORED = ("node_modules", "__pycache__")


def importers() -> list[Importer]:
    """Every known format, in order of detection."""
    return [importlib.import_module(f"{__name__}.{module}").IMPORTER for module in FORMATS.values()]


def importer(name: str) -> Importer:
    """The format called ``name``.

    Raises:
      InputError: listing the known formats.
    """
    if name not in FORMATS:
        raise InputError(f"unknown format {name!r}; known formats: auto, {', '.join(FORMATS)}")
    found: Importer = importlib.import_module(f"{__name__}.{FORMATS[name]}").IMPORTER
    return found


def detect(source: Source) -> Importer | None:
    """The format of a file, or ``None``."""
    return next((candidate for candidate in importers() if candidate.detect(source)), None)


def load_runs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    format: str = "auto",
    *,
    options: Options | None = None,
) -> list[Run]:
    """Read agent logs.

    Args:
      paths: files, folders (searched through) or ``-`` for standard input.
      format: a key of ``FORMATS``, or ``auto`` to detect each file's.
      options: leniency, tokenizer, and the list that collects what lenient reading passed over.

    Returns:
      The runs, in the order of the files, ids made unique.

    Raises:
      InputError: with file and line. In a folder, files of no known format are skipped and noted in
        ``options.problems``; a file named on its own must be readable.
    """
    options = options or Options()
    named = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    groups: dict[str, list[Source]] = {}
    for source, asked_for in sources_of(named):
        try:
            name = format if format != "auto" else _detected(source)
        except InputError as error:
            if asked_for:
                options.skip("skipped_file", error)
            else:
                options.problems.append(Problem(kind="skipped_file", message=str(error)))
            continue
        groups.setdefault(name, []).append(source)
    runs = [run for name, sources in groups.items() for run in importer(name).read(sources, options)]
    if not runs:
        where = ", ".join(str(path) for path in named)
        found = f" ({len(options.problems)} files or records were passed over)" if options.problems else ""
        raise InputError(f"no model calls found in {where}{found}")
    return _unique(runs)


def sources_of(paths: Sequence[str | os.PathLike[str]]) -> Iterable[tuple[Source, bool]]:
    """Files to read, and whether each was named on its own."""
    for path in [os.fspath(path) for path in paths]:
        if path == "-":
            yield Source(STDIN), True
        elif Path(path).is_dir():
            for file in sorted(Path(path).rglob("*")):
                if file.suffix in SUFFIXES and file.is_file() and not any(part in IGNORED for part in file.parts):
                    yield Source(file), False
        elif Path(path).exists():
            yield Source(path), True
        else:
            raise InputError("no such file or folder", path=path)


def _detected(source: Source) -> str:
    if source.empty:
        raise InputError("the file is empty: no model calls", path=source.path)
    found = detect(source)
    if found is None:
        if not isinstance(source.first, (dict, list)) and source.data.lstrip()[:1] in (b"{", b"["):
            source.document()  # meant to be JSON: say where it breaks
        raise InputError(
            f"not a log of a known format; name it with --format if it is one of {', '.join(FORMATS)}",
            path=source.path,
        )
    return found.name


def _unique(runs: list[Run]) -> list[Run]:
    """Number ids that occur twice."""
    seen: dict[str, int] = {}
    unique = []
    for run in runs:
        seen[run.id] = seen.get(run.id, 0) + 1
        if seen[run.id] > 1:
            run = msgspec.structs.replace(run, id=f"{run.id}#{seen[run.id]}")
        unique.append(run)
    return unique
