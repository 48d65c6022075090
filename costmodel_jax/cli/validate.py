"""``costmodel validate``: everything that is wrong with logs, with file and line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from costmodel_jax.calls import pack
from costmodel_jax.cli.options import Output, Reading, arg, configuration
from costmodel_jax.cli.reading import count_tokens
from costmodel_jax.cli.screen import Screen
from costmodel_jax.cli.wording import of
from costmodel_jax.errors import InputError
from costmodel_jax.importers import Importer, Options, Source, detect, importer, sources_of
from costmodel_jax.schema import Run, json_schema

__all__ = ["HELP", "Command", "Found"]

HELP = "\n".join(
    [
        "Lines that cannot be read, fields that break a rule, and calls whose segments",
        "  do not add up to the prompt or the output that the server measured.",
        "",
        "Examples:",
        "  costmodel validate runs.jsonl logs/",
        "  costmodel validate --schema > agent-run-1.schema.json",
    ]
)
CANONICAL = "agent-run"
SHOWN = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Collecting(Options):
    """Reads on behind every fault, and keeps faults apart from notes on what no reader needs."""

    faults: list[InputError] = dataclasses.field(default_factory=list)

    def skip(self, kind: str, error: InputError) -> None:
        self.faults.append(error)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A run, and where it was read: the file, and the line where there is one run a line."""

    run: Run
    path: str
    line: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output, Reading):
    """Options of ``costmodel validate``."""

    schema: Annotated[bool, arg(help="Print the JSON Schema of agent-run/1 and stop.", help_behavior_hint="")] = False

    def run(self) -> int:
        """Validate, and return the exit code."""
        if self.schema:
            Screen(json=True).answer(json_schema())
            return 0
        if not self.paths:
            raise InputError("name the files or folders to check, or - for standard input")
        screen = Screen(json=self.json, quiet=self.quiet)
        options = _Collecting(
            lenient=True, count_tokens=None if self.tokenizer is None else count_tokens(self.tokenizer)
        )
        with screen.progress("reading logs", None):
            files, found = _read(self.paths, self.format, options)
        runs = [one.run for one in found]
        faults = [*options.faults, *_disagreements(found)]
        told: dict[str, tuple[InputError, int]] = {}
        for fault in faults:
            told[str(fault)] = (fault, told.get(str(fault), (fault, 0))[1] + 1)
        notes = [problem.message for problem in options.problems]
        screen.answer(
            {
                "command": "validate",
                "configuration": configuration(self),
                "valid": not faults,
                "files": files,
                "runs": len(runs),
                "calls": sum(len(run.calls) for run in runs),
                "problems": [
                    {"path": fault.path, "line": fault.line, "message": fault.message, "times": times}
                    for fault, times in told.values()
                ],
                "notes": notes,
            }
        )
        for message, (_, times) in told.items():
            screen.line(message + (f" ({times} times)" if times > 1 else ""))
        for note in notes[:SHOWN]:
            screen.note(f"note: {note}")
        if len(notes) > SHOWN:
            screen.note(f"... and {len(notes) - SHOWN} more notes in --json")
        state = of(len(faults), "problem") if faults else "valid"
        screen.say(
            f"{state}: {of(files, 'file')}, {of(len(runs), 'run')}, {of(sum(len(r.calls) for r in runs), 'call')}"
        )
        return 2 if faults else 0


def _read(paths: Sequence[str], format: str, options: _Collecting) -> tuple[int, list[Found]]:
    """The number of files of a known format, and the runs that can be read; all that is wrong goes to ``options``."""
    groups: dict[str, list[Source]] = {}
    for source, asked_for in sources_of(list(paths)):
        known = importer(format) if format != "auto" else _known(source, asked_for, options)
        if known is not None:
            groups.setdefault(known.name, []).append(source)
    found: list[Found] = []
    for name, sources in groups.items():
        try:
            found += _canonical(sources, options) if name == CANONICAL else _foreign(importer(name), sources, options)
        except InputError as error:
            options.faults.append(error)
            if len(sources) > 1:
                found += _one_by_one(importer(name), sources, options, error)
    return sum(map(len, groups.values())), found


def _known(source: Source, asked_for: bool, options: _Collecting) -> Importer | None:
    known = None if source.empty else detect(source)
    if known is None:
        problem = "the file is empty: no model calls" if source.empty else "not a log of a known format"
        (options.skip if asked_for else options.report)("skipped_file", InputError(problem, path=source.path))
    return known


def _canonical(sources: Sequence[Source], options: _Collecting) -> Iterator[Found]:
    """Runs of the project's own format, with their lines."""
    for source in sources:
        for line, value in source.values(options):
            try:
                yield Found(run=Run.from_dict(value), path=source.path, line=line)
            except InputError as error:
                options.faults.append(InputError(error.message, path=source.path, line=line))


def _foreign(importer: Importer, sources: Sequence[Source], options: _Collecting) -> list[Found]:
    where = sources[0].path if len(sources) == 1 else f"{len(sources)} files of {importer.title}"
    return [Found(run=run, path=where) for run in importer.read(sources, options)]


def _one_by_one(importer: Importer, sources: Sequence[Source], options: _Collecting, first: InputError) -> list[Found]:
    """All files but those that stop the reader, each on its own."""
    found: list[Found] = []
    for source in sources:
        try:
            found += _foreign(importer, [source], options)
        except InputError as error:
            if str(error) != str(first):
                options.faults.append(error)
    return found


def _disagreements(found: Sequence[Found]) -> Iterator[InputError]:
    """Calls whose recorded segments, replayed with the recorded edits, differ from what the server measured."""
    for one in found:
        prompts = _replayed_prompts(one.run)
        for t, call in enumerate(one.run.calls):
            output = sum(segment.tokens for segment in call.output)
            for field, replayed in (("prompt_tokens", int(prompts[t])), ("output_tokens", output)):
                measured = None if call.usage is None else getattr(call.usage, field)
                if measured is not None and measured != replayed:
                    yield InputError(
                        f"run {one.run.id!r}: calls[{t}].usage.{field} = {measured}, but its segments add up to "
                        f"{replayed}; mend the lengths, or record what the client hid as an edit",
                        path=one.path,
                        line=one.line,
                    )


def _replayed_prompts(run: Run) -> np.ndarray:
    """Int64 [calls]: prompt lengths as the client's recorded history renders them."""
    batch = pack([run])
    birth, end = np.asarray(batch.birth[0]), np.minimum(batch.recorded_end[0], batch.end[0])
    step = np.arange(len(run.calls))
    shown = (birth[:, None] <= step) & (step < np.asarray(end)[:, None])  # [segments, calls]
    return np.asarray(np.asarray(batch.tokens[0], np.int64) @ shown)
