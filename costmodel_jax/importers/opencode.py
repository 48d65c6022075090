"""opencode sessions: one JSON file per message (and, where they are kept, one per part), or an exported session.

Tokens are per answer and exclude each other: prompt = input + cache read + cache write, output counted apart from
reasoning. A message that took several model calls has one ``step-finish`` part for each. A message marked ``summary``
is the call that wrote a compaction's summary; the next call goes on from it. Tool results that were pruned say when.
Source: opencode's message and part types.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers.assemble import Observation, Piece, Removal
from costmodel_jax.importers.fields import Place, counter, digest, items, made_usage, record, seconds, text
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.pieces import text_piece, tool_call, unanswered_note
from costmodel_jax.importers.places import newest
from costmodel_jax.importers.source import STDIN, Options, Source
from costmodel_jax.importers.threads import Thread, runs_of
from costmodel_jax.schema import Run, Usage

__all__ = ["IMPORTER"]

NAME = "opencode"
PRUNED = len("[Old tool result content cleared]")  # what the client shows instead of a pruned tool result


@dataclasses.dataclass(kw_only=True)
class _Session:
    """What the files say about one session."""

    path: str
    parent: str | None = None
    messages: dict[str, tuple[dict[str, Any], Place]] = dataclasses.field(default_factory=dict)
    parts: dict[str, dict[str, dict[str, Any]]] = dataclasses.field(default_factory=dict)  # by message, then by id


def detect(source: Source) -> bool:
    """A message or a part of a session, a session's description, or an exported session."""
    value = source.first
    return isinstance(value, dict) and any((_is_part(value), _is_message(value), _is_session(value), _is_export(value)))


def _is_part(value: dict[str, Any]) -> bool:
    return text(value, "sessionID") is not None and text(value, "messageID") is not None


def _is_message(value: dict[str, Any]) -> bool:
    return (
        text(value, "sessionID") is not None and value.get("role") in ("user", "assistant") and "messageID" not in value
    )


def _is_session(value: dict[str, Any]) -> bool:
    return (text(value, "id") or "").startswith("ses_") and "projectID" in value and "directory" in value


def _is_export(value: dict[str, Any]) -> bool:
    return isinstance(value.get("messages"), list) and _is_session(record(value, "info"))


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read all files; a session is what its messages say, wherever they lie, and every message counts once."""
    sessions: dict[str, _Session] = {}
    for source in sources:
        try:
            value = source.document()
        except InputError as error:
            options.skip("skipped_file", error)
            continue
        _take(value, Place(path=source.path), sessions, options)
        for neighbour in _neighbours(source):
            with contextlib.suppress(InputError):
                _take(neighbour.document(), Place(path=neighbour.path), sessions, options)
    threads = [_thread(name, session, options) for name, session in sessions.items()]
    return runs_of(threads, NAME, options)


def _neighbours(source: Source) -> Iterator[Source]:
    """The parts of a message, and its session's description, where the file lies in opencode's own storage."""
    path = Path(source.path)
    session, messages = path.parent, path.parent.parent
    if messages.name == "message" and source.path != STDIN:
        storage = messages.parent
        for found in (
            (storage / "part" / path.stem).glob("*.json"),
            (storage / "session").glob(f"*/{session.name}.json"),
        ):
            yield from map(Source, sorted(found))


def _take(value: Any, place: Place, sessions: dict[str, _Session], options: Options) -> None:
    """Sort one JSON value into its session."""
    if not isinstance(value, dict):
        options.report("skipped_file", place.error("is no message of an opencode session"))
        return
    if _is_export(value):
        _take(value["info"], place, sessions, options)
        for message in value["messages"]:
            for part in (record(message, "info"), *items(message, "parts")):
                _take(part, place, sessions, options)
        return
    name = text(value, "id") if _is_session(value) else text(value, "sessionID")
    identity = text(value, "id")
    if name is None or identity is None:
        options.report("skipped_record", place.error("has no id or no session"))
        return
    session = sessions.setdefault(name, _Session(path=place.path))
    if _is_session(value):
        session.parent = text(value, "parentID")
    elif _is_part(value):
        session.parts.setdefault(value["messageID"], {})[identity] = value
    else:
        session.messages.setdefault(identity, (value, place))


def _thread(name: str, session: _Session, options: Options) -> Thread:
    thread = Thread(id=name, path=session.path, parent=session.parent)
    builder = _Builder(thread)
    order = sorted(session.messages, key=lambda key: (_created(session.messages[key][0]) or 0.0, key))
    for identity in order:
        message, place = session.messages[identity]
        parts = [part for _, part in sorted(session.parts.get(identity, {}).items())]
        try:
            builder.message(identity, message, parts, place)
        except InputError as error:
            options.skip("skipped_record", error)
    waiting = sum(piece.kind == "user" for piece in builder.input)
    if waiting:
        thread.notes.append(unanswered_note(waiting))
    return thread


def _created(message: dict[str, Any]) -> float | None:
    return seconds(record(message, "time").get("created"))


class _Builder:
    """The calls of a session, message by message."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.input: list[Piece] = []
        self.compacted = False
        self.pruned: dict[str, float] = {}  # when a tool result was pruned, by its key

    def message(self, identity: str, message: dict[str, Any], parts: list[dict[str, Any]], place: Place) -> None:
        """Take in one message with its parts."""
        if message.get("role") == "user":
            self._user(identity, parts)
            return
        steps = [part for part in parts if part.get("type") == "step-finish"]
        output: list[Piece] = []
        results: list[Piece] = []
        for part in parts:
            if part.get("type") == "step-finish":
                self._call(identity, message, _usage(part, place), output)
                self.input, output, results = results, [], []
            else:
                output += _output(part)
                results += self._results(part)
        if not steps:
            self._call(identity, message, _usage(message, place), output)
            self.input += results
        elif output:
            # A step that was cut off: what it wrote is part of the context, its call was never counted.
            self.input += [*output, *results]
        if message.get("summary") is True:
            self.compacted = True

    def _user(self, identity: str, parts: list[dict[str, Any]]) -> None:
        texts = [part for part in parts if part.get("type") in ("text", "file")]
        written = [part for part in texts if part.get("synthetic") is not True]
        own = bool(parts) and not written
        content = [[part.get("text"), part.get("filename")] for part in texts]
        self.input.append(text_piece("system" if own else "user", content, None, key=identity))

    def _call(self, identity: str, message: dict[str, Any], usage: Usage, output: list[Piece]) -> None:
        if not usage.prompt_tokens and not usage.output_tokens:
            return  # the request failed
        time = _created(message)
        removed = {
            key: Removal(cause="clear_tool_results", left=PRUNED)
            for key, at in self.pruned.items()
            if time is not None and at <= time
        }
        self.pruned = {key: at for key, at in self.pruned.items() if key not in removed}
        self.thread.keys.append((identity, len(self.thread.keys)))
        self.thread.observations.append(
            Observation(
                usage=usage,
                input=tuple(self.input),
                output=tuple(output),
                time=time,
                compacted=self.compacted,
                removed=removed,
            )
        )
        self.thread.model = self.thread.model or text(message, "modelID")
        self.input, self.compacted = [], False

    def _results(self, part: dict[str, Any]) -> Iterator[Piece]:
        state = record(part, "state")
        result = state.get("output", state.get("error"))
        if part.get("type") != "tool" or not isinstance(result, str):
            return
        key = text(part, "id")
        pruned = seconds(record(state, "time").get("compacted"))
        if key is not None and pruned is not None:
            self.pruned[key] = pruned
        failed = state.get("status") == "error"
        yield text_piece(
            "tool", result, None, key=key, name=text(part, "tool"), error=failed, result_hash=digest(result)
        )


def _output(part: dict[str, Any]) -> Iterator[Piece]:
    kind = part.get("type")
    if kind == "reasoning":
        yield text_piece("reasoning", part.get("text"), None)
    elif kind == "text":
        yield text_piece("assistant", part.get("text"), None)
    elif kind == "tool":
        yield tool_call(text(part, "tool"), record(part, "state").get("input"), None)


def _usage(value: dict[str, Any], place: Place) -> Usage:
    """The ``tokens`` of a message or of one step."""
    tokens, place = record(value, "tokens"), place.at("tokens")
    fresh, output = counter(tokens, "input", place), counter(tokens, "output", place)
    if fresh is None or output is None:
        raise place.error("lacks input or output; a missing count is never read as zero")
    cache = record(tokens, "cache")
    read, written = counter(cache, "read", place.at("cache")), counter(cache, "write", place.at("cache"))
    reasoning = counter(tokens, "reasoning", place)
    return made_usage(
        place,
        prompt_tokens=fresh + (read or 0) + (written or 0),
        cached_tokens=read,
        cache_write_5m=written,
        cache_write_1h=None if written is None else 0,
        output_tokens=output + (reasoning or 0),
        reasoning_tokens=reasoning,
    )


def _logs() -> list[Path]:
    """The session folders below ``opencode/storage/message`` in the user's data folder."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return newest(path for path in (data / "opencode" / "storage" / "message").glob("*") if path.is_dir())


IMPORTER = Importer(
    name=NAME,
    title="opencode session",
    convention="per answer, exclusive parts: prompt = input + cache read + cache write, output apart from reasoning",
    key="message id, and the step in it",
    reuse="measured",
    reasoning="billed",
    detect=detect,
    read=read,
    logs=_logs,
)
