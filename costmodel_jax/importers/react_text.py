"""ReAct text logs: lines that begin with ``Question:``, ``Thought n:``, ``Action n:``, ``Observation n:``.

Format: the logs of ReAct and Reflexion runs on HotpotQA. One thought and its action are read as one call; a runner may
have made two, the log does not tell. Few-shot examples in the prompt are not logged, and there is no usage.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.chat import Part, Turn
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Run

__all__ = ["IMPORTER"]

MARK = re.compile(r"(Question|(?:Thought|Action|Observation) \d+): ?")
SECTION = re.compile(r"-{4,} BEGIN (CORRECT|INCORRECT|HALTED) AGENTS -{4,}\s*$")
ACTION = re.compile(r"Action \d+: ?(\w+)\[")
NOTE = "few-shot examples and instructions are not in the log: prompts lack them"


@dataclasses.dataclass
class _Question:
    """One question: the texts that follow it, in order, and the section it stands in."""

    solved: bool | None
    parts: list[Part]


def detect(source: Source) -> bool:
    """Lines that begin with the marks of a question and its first thought; such a text is no JSON."""
    text = _head(source)
    return all(re.search(rf"^{mark}:", text, re.MULTILINE) for mark in ("Question", r"Thought \d+", r"Action \d+"))


def _head(source: Source) -> str:
    if source.first is not None:
        return ""
    try:
        return source.data[: 2**18].decode("utf-8", "replace")
    except InputError:
        return ""


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every question of every file as a run; one that another file holds word for word counts once."""
    runs: list[Run] = []
    seen: dict[tuple[Part, ...], str] = {}
    for source in sources:
        for number, question in enumerate(_questions(source, options), start=1):
            if seen.setdefault(tuple(question.parts), source.path) != source.path:
                continue
            turns = _turns(question.parts)
            if not turns:
                continue
            try:
                calls = chat.calls(turns, source, options)
            except InputError as error:
                options.skip("skipped_run", error)
                continue
            runs.append(
                Run(
                    id=f"{Path(source.path).stem}/{number}",
                    calls=calls,
                    task=fields.digest(question.parts[0].text),
                    solved=question.solved,
                    format="react_text",
                    evidence=chat.evidence(turns, shows_reasoning=True),
                    notes=(NOTE,),
                )
            )
    return runs


def _questions(source: Source, options: Options) -> Iterator[_Question]:
    """The questions of a file; lines without a mark go on with the text before them."""
    try:
        text = source.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        options.skip("skipped_file", InputError("not UTF-8 text; is this a log?", path=source.path))
        return
    except InputError as error:
        options.skip("skipped_file", error)
        return
    solved: bool | None = None
    question: _Question | None = None
    lines: list[str] = []
    for line in text.splitlines():
        section = SECTION.match(line)
        mark = MARK.match(line)
        if section is None and mark is None:
            lines.append(line)
            continue
        if question is not None and lines:
            question.parts.append(_part(lines))
        if section is not None or (mark is not None and mark[1] == "Question"):
            if question is not None:
                yield question
            question = None if section is not None else _Question(solved, [])
        if section is not None:
            solved = section[1] == "CORRECT"
        lines = [] if section is not None else [line]
    if question is not None:
        question.parts += [_part(lines)] if lines else []
        yield question


def _part(lines: Sequence[str]) -> Part:
    """The text that a mark begins."""
    text = "\n".join(lines).rstrip("\n")
    said = text.partition(":")[2].strip()
    if text.startswith("Thought"):
        return Part(kind="reasoning", text=text)
    if text.startswith("Action"):
        called = ACTION.match(text)
        return Part(kind="assistant", text=text, name=called[1] if called else None, arguments_hash=fields.digest(said))
    if text.startswith("Observation"):
        return Part(kind="tool", text=text, result_hash=fields.digest(said))
    return Part(kind="user", text=text)


def _turns(parts: Sequence[Part]) -> list[Turn]:
    """A call for every thought with its action; the rest is prompt."""
    turns: list[Turn] = []
    start = 0
    while start < len(parts):
        stop = start + 1
        if parts[start].kind in ("reasoning", "assistant"):
            paired = parts[start].kind == "reasoning" and stop < len(parts) and parts[stop].kind == "assistant"
            stop += paired
            turns.append(Turn(prompt=tuple(parts[:start]), answer=tuple(parts[start:stop])))
        start = stop
    return turns


IMPORTER = Importer(
    name="react_text",
    title="ReAct text log",
    convention="no usage: lengths are counted with a tokenizer",
    key="one thought with its action; what two files hold word for word counts once",
    reuse="unknown",
    reasoning="observed",
    detect=detect,
    read=read,
)
