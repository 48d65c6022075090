"""From the command line's paths to runs: discovery, the tokenizer, and an account of what was loaded."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.cli.options import Reading
from costmodel_jax.cli.screen import Screen
from costmodel_jax.errors import InputError
from costmodel_jax.importers import Importer, Options, Source, importer, importers, load_runs, sources_of
from costmodel_jax.schema import Run

__all__ = ["Loaded", "count_tokens", "load", "named_paths", "sources"]

SHOWN_PROBLEMS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """Runs and where they came from.

    Attributes:
      runs: at least one.
      paths: what was read.
      problems: what reading passed over.
    """

    runs: list[Run]
    paths: tuple[str, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The account for JSON output."""
        evidence = {
            field: dict(Counter(getattr(run.evidence, field) for run in self.runs))
            for field in ("lengths", "cached", "reasoning")
        }
        return {
            "paths": list(self.paths),
            "runs": len(self.runs),
            "calls": sum(len(run.calls) for run in self.runs),
            "formats": dict(Counter(run.format or "agent-run" for run in self.runs)),
            "evidence": evidence,
            "notes": dict(Counter(note for run in self.runs for note in run.notes)),
            "passed_over": list(self.problems),
        }


def load(reading: Reading, screen: Screen) -> Loaded:
    """Read what the command line names, or the newest session found on this machine.

    Raises:
      InputError: for what cannot be read.
    """
    if reading.format != "auto":
        importer(reading.format)  # an unknown name is said before anything is read
    paths, format = named_paths(reading, screen)
    options = Options(
        lenient=reading.lenient,
        count_tokens=None if reading.tokenizer is None else count_tokens(reading.tokenizer),
    )
    try:
        with screen.progress("reading logs", None):
            runs = load_runs(list(paths), format, options=options)
    except InputError as error:
        several = len(paths) > 1 or any(Path(path).is_dir() for path in paths)
        if reading.lenient or not several or error.path is None:
            raise
        hint = "--lenient reads the rest"
        raise InputError(f"{error.message} ({hint})", path=error.path, line=error.line) from None
    problems = Counter(problem.message for problem in options.problems)
    for message, times in list(problems.items())[:SHOWN_PROBLEMS]:
        screen.note(f"passed over: {message}" + (f" ({times} times)" if times > 1 else ""))
    if len(problems) > SHOWN_PROBLEMS:
        screen.note(f"... and {len(problems) - SHOWN_PROBLEMS} more passed over; costmodel validate lists them all")
    return Loaded(runs=runs, paths=paths, problems=tuple(problem.message for problem in options.problems))


def named_paths(reading: Reading, screen: Screen) -> tuple[tuple[str, ...], str]:
    """The paths to read and their format; without any on the command line, the newest session's.

    Raises:
      InputError: if no path is named and no tool keeps logs here.
    """
    if reading.paths:
        return reading.paths, reading.format
    newest: tuple[float, Path, str] | None = None
    for tool in importers():
        logs = tool.logs() if reading.format in ("auto", tool.name) else []
        if not logs:
            continue
        folder = os.path.commonpath([str(path.parent) for path in logs])
        screen.note(f"found {len(logs)} {tool.title} log{'s' * (len(logs) > 1)} below {folder}")
        changed = logs[0].stat().st_mtime
        if newest is None or changed > newest[0]:
            newest = (changed, logs[0], tool.name)
    if newest is None:
        known = ", ".join(tool.title for tool in importers() if tool.logs is not Importer.logs)
        raise InputError(
            f"no path given, and no logs found where {known} keep theirs; name a log file or a folder, "
            "or - to read standard input"
        )
    session = _session(newest[1])
    screen.note(f"reading the newest session: {', '.join(map(str, session))}")
    return tuple(map(str, session)), newest[2]


def sources(paths: Sequence[str]) -> Iterator[Source]:
    """The files that paths stand for, folders searched through.

    Raises:
      InputError: for a path that does not exist.
    """
    return (source for source, _ in sources_of(list(paths)))


def _session(path: Path) -> list[Path]:
    """A session's files: the log, and the folder of the same name that holds its helper agents'."""
    for folder in path.parents[:2]:
        main = folder.with_name(folder.name + path.suffix)
        if main.is_file():
            path = main
    helpers = path.with_suffix("")
    return [path, helpers] if path.suffix and helpers.is_dir() else [path]


def count_tokens(name: str) -> Callable[[str], int]:
    """A function from a text to its number of tokens, special tokens not added.

    Args:
      name: a tokenizer.json, a folder that holds one, or the name of one in the local Hugging Face cache.

    Raises:
      InputError: if there is no usable tokenizer; nothing is ever downloaded.
    """
    from tokenizers import Tokenizer

    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub")
    snapshots = (hub.expanduser() / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/tokenizer.json")
    candidates: Sequence[Path] = [Path(name), Path(name) / "tokenizer.json", *sorted(snapshots)]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise InputError(
            "no tokenizer there; give a Hugging Face tokenizer folder, its tokenizer.json, or the name of a model "
            "whose tokenizer is in the local cache (nothing is downloaded)",
            path=name,
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exception
        raise InputError(f"is no tokenizer that the tokenizers package reads: {error}", path=file) from None

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count
