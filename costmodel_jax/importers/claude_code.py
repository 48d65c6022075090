"""Claude Code session logs: one JSON record a line, one line per content block of an answer.

Usage is per call and its parts exclude each other: prompt = input + cache creation + cache read. Every line of an
answer repeats the answer's usage, so a call is one (message id, request id) and the last value wins. Helper agents
have files of their own (or, in older versions, lines marked ``isSidechain``) and become runs with a ``parent``.
Output counts are often placeholders written before the answer was complete.
Sources: the session files themselves and the Messages API's description of ``usage``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.importers.anthropic_api import SPLIT_NOTE
from costmodel_jax.importers.assemble import Piece
from costmodel_jax.importers.claude_lines import Draft
from costmodel_jax.importers.fields import Place, record, text
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.pieces import unanswered_note
from costmodel_jax.importers.places import folders, newest
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.importers.threads import Thread, count_once, fold, runs_of
from costmodel_jax.schema import Run

__all__ = ["IMPORTER"]

NAME = "claude_code"
IDENTIFIER = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
PLACEHOLDER = 10.0  # characters per token that no text reaches: such an output count was written before the answer


def detect(source: Source) -> bool:
    """Lines with a session id and a parent line or a request id, or the summaries and snapshots around them."""
    return any(_is_record(value) for value in source.head())


def _is_record(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("sessionId"), str):
        return "parentUuid" in value or ("requestId" in value and isinstance(value.get("message"), dict))
    kind = value.get("type")
    return (kind == "summary" and "leafUuid" in value) or (kind == "file-history-snapshot" and "messageId" in value)


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read the threads of all session files; an answer that stands in several of them counts once."""
    threads = [thread for source in sources for thread in _threads(source, options)]
    count_once(threads)
    return runs_of(threads, NAME, options)


def _threads(source: Source, options: Options) -> Iterator[Thread]:
    """The threads of one file that have calls, the main one first."""
    drafts: dict[str, Draft] = {}
    sides: dict[str, str] = {}  # the thread of every side line, by uuid
    main = source.name.rsplit(".", 1)[0]
    named = IDENTIFIER.fullmatch(main) is not None
    for line, value in source.records(options):
        place = Place(path=source.path, line=line)
        message = record(value, "message")
        if not isinstance(value, dict) or not ("type" in value or message):
            options.report("skipped_record", place.error("this line is no record of a Claude Code session"))
            continue
        session = text(value, "sessionId")
        if session is not None and not named:
            main, named = session, True
        name = ""
        if value.get("isSidechain") is True:
            # Lines without an agent id belong to the side thread that their parent line belongs to.
            name = text(value, "agentId") or sides.get(text(value, "parentUuid") or "") or f"side-{len(drafts)}"
            sides[text(value, "uuid") or ""] = name
        if name not in drafts:
            drafts[name] = Draft(id=f"{session or main}/{name}", parent=session or main) if name else Draft(id=main)
        if not name:
            drafts[name].id = main
        drafts[name].read(value, message, place, options)
    for name in sorted(drafts, key=bool):
        thread = _thread(drafts[name], source.path, options)
        if thread.keys:
            yield thread


def _thread(draft: Draft, path: str, options: Options) -> Thread:
    """The calls of a draft, with what a reader of their numbers must know."""
    thread = Thread(id=draft.id, path=path, parent=draft.parent)
    thread.model = next((model for model, _ in draft.models.most_common(1)), None)
    placeholders, mismatches, excess, uncounted = 0, [], 0, None
    for key, answer in draft.answers.items():
        observation = dataclasses.replace(answer.observation, usage=answer.usage, output=tuple(answer.output))
        if excess and not observation.compacted:
            # What the count left out of the previous answer arrives with the next prompt.
            rest = Piece(kind="assistant", size=excess)
            observation = dataclasses.replace(observation, input=(rest, *observation.input))
        if uncounted is not None:
            observation, uncounted = fold(uncounted, observation), None
        if answer.usage is None:
            options.skip("skipped_record", answer.place.error("is missing: this answer has no token counts"))
            excess, uncounted = 0, observation
            continue
        visible = sum(piece.size for piece in answer.output if piece.kind != "reasoning")
        excess = visible if visible > PLACEHOLDER * (answer.usage.output_tokens or 0) else 0
        placeholders += bool(excess)
        if answer.split_mismatch:
            mismatches.append(len(thread.keys))
        thread.keys.append(key)
        thread.observations.append(observation)
    if all(answer.output for answer in draft.answers.values()):
        thread.reasoning_shown = any(p.kind == "reasoning" for a in draft.answers.values() for p in a.output)
    thread.notes += _notes(draft, thread, placeholders, mismatches)
    return thread


def _notes(draft: Draft, thread: Thread, placeholders: int, mismatches: list[int]) -> Iterator[str]:
    if placeholders:
        yield (
            f"output counts of {placeholders} of {len(thread.keys)} calls are placeholders written before the answer "
            "was complete: generation is a lower bound, the rest is prompt of the next call"
        )
    for call in mismatches:
        yield f"call {call}: {SPLIT_NOTE}"
    compactions = sum(observation.compacted for observation in thread.observations[1:])
    if compactions:
        yield f"compactions: {compactions}; the calls that wrote the summaries are not in this log"
    if draft.waiting:
        yield unanswered_note(draft.waiting)


def _logs() -> list[Path]:
    """``projects`` below ``CLAUDE_CONFIG_DIR`` (several, separated by commas) or the two places it defaults to."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    roots = folders("CLAUDE_CONFIG_DIR", Path.home() / ".claude", config / "claude")
    return newest(path for root in roots for path in (root / "projects").rglob("*.jsonl"))


IMPORTER = Importer(
    name=NAME,
    title="Claude Code session",
    convention="per call, exclusive parts: prompt = input + cache creation + cache read",
    key="(message id, request id), the last value; the message id alone where there is no request id",
    reuse="measured",
    reasoning="unknown where thinking is shown, observed to be none where it is not",
    detect=detect,
    read=read,
    logs=_logs,
)
