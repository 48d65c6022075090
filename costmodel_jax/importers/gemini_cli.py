"""Gemini CLI sessions: one JSON document, or one record a line in newer versions.

Tokens are per answer: ``input`` includes the cached part, ``thoughts`` are counted apart from ``output``, ``tool`` (the
prompts of built-in tools) is inside ``input`` exactly if the total says so. In the line format a record with a known
id updates that message, ``$rewindTo`` takes back a message and all after it, and ``$set`` with ``messages`` replaces
the history (compression). Calls that were made stay calls. Source: Gemini CLI's chat recording service and the Gemini
API's ``usageMetadata``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers.assemble import Observation, Piece, Removal
from costmodel_jax.importers.fields import Place, counter, digest, items, made_usage, record, seconds, text
from costmodel_jax.importers.history import Cause
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.pieces import text_piece, tool_call, unanswered_note
from costmodel_jax.importers.places import newest
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.importers.threads import Thread, count_once, runs_of
from costmodel_jax.schema import Run, Usage

__all__ = ["IMPORTER"]

NAME = "gemini_cli"


def detect(source: Source) -> bool:
    """A session id with a project hash."""
    return any(isinstance(value, dict) and {"sessionId", "projectHash"} <= value.keys() for value in source.head(2))


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read all sessions; a message that stands in the old and in the new file of a session counts once."""
    threads = []
    for source in sources:
        session = _Session(source)
        try:
            for line, value in source.values(options):
                session.read(value, Place(path=source.path, line=line), options)
        except InputError as error:
            options.skip("skipped_file", error)
        threads.append(session.thread(options))
    count_once(threads)
    return runs_of(threads, NAME, options)


class _Session:
    """One file: its messages as last written, and in what order they came and went."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.id = source.name.rsplit(".", 1)[0]
        self.parent: str | None = None
        self.messages: dict[str, tuple[dict[str, Any], Place]] = {}
        self.current: list[str] = []
        self.timeline: list[str | dict[str, Removal]] = []
        self.summaries: set[str] = set()

    def read(self, value: Any, place: Place, options: Options) -> None:
        """Take in a document or a record."""
        update = record(value, "$set")
        if not isinstance(value, dict):
            options.report("skipped_record", place.error("this line is no record of a Gemini CLI session"))
        elif text(value, "$rewindTo") is not None:
            self._rewind(value["$rewindTo"])
        elif update:
            if isinstance(update.get("messages"), list):
                self._replace(update["messages"], place)
        elif "projectHash" in value:
            self.id = text(value, "sessionId") or self.id
            if value.get("kind") == "subagent":
                self.parent = Path(self.path).parent.name or None
            for message in items(value, "messages"):
                self._message(message, place, options)
        else:
            self._message(value, place, options)

    def _message(self, message: Any, place: Place, options: Options) -> None:
        identity = text(message, "id")
        if identity is None:
            options.report("skipped_record", place.error("this message has no id"))
            return
        if identity not in self.messages:
            self.timeline.append(identity)
            self.current.append(identity)
        self.messages[identity] = (message, self.messages.get(identity, (None, place))[1])

    def _rewind(self, identity: str) -> None:
        start = self.current.index(identity) if identity in self.current else 0
        self.timeline.append({gone: Removal(cause="rewind") for gone in self.current[start:]})
        del self.current[start:]

    def _replace(self, messages: list[Any], place: Place) -> None:
        """The history as the client goes on with it: what is new in it stands for what is gone."""
        shown = [identity for message in messages if (identity := text(message, "id")) is not None]
        fresh = [m for m in messages if (identity := text(m, "id")) is not None and identity not in self.messages]
        cause: Cause = "compaction" if fresh else "unknown"
        kept = set(shown)
        self.timeline.append({gone: Removal(cause=cause) for gone in self.current if gone not in kept})
        for message in fresh:
            self.summaries.add(message["id"])
            self.timeline.append(message["id"])
            self.messages[message["id"]] = (message, place)
        self.current = shown

    def thread(self, options: Options) -> Thread:
        """The calls, in order."""
        thread = Thread(id=self.id, path=self.path, parent=self.parent)
        waiting: list[Piece] = []
        removed: dict[str, Removal] = {}
        sent: float | None = None
        for entry in self.timeline:
            if isinstance(entry, dict):
                waiting = [piece for piece in waiting if piece.key not in entry]
                removed |= entry
                continue
            message, place = self.messages[entry]
            time = seconds(message.get("timestamp"))
            if entry in self.summaries or message.get("type") == "user":
                waiting += _given(message, entry, summary=entry in self.summaries)
                sent = time if time is not None else sent
                continue
            if message.get("type") != "gemini":
                continue  # what the client told its user
            try:
                usage = _usage(message, place)
            except InputError as error:
                options.skip("skipped_record", error)
                usage = None
            output = list(_output(message, entry))
            if usage is None:
                waiting += output
            else:
                thread.keys.append((self.id, entry))
                thread.observations.append(
                    Observation(
                        usage=usage,
                        input=tuple(waiting),
                        output=tuple(output),
                        time=sent if sent is not None else time,
                        removed=removed,
                        resends_reasoning=False,
                    )
                )
                thread.model = thread.model or text(message, "model")
                waiting, removed, sent = [], {}, None
            waiting += _results(message, entry)
        unanswered = sum(piece.kind == "user" for piece in waiting)
        if unanswered:
            thread.notes.append(unanswered_note(unanswered))
        return thread


def _usage(message: dict[str, Any], place: Place) -> Usage | None:
    """The counts of an answer; ``None`` for one that the client made up.

    Raises:
      InputError: if a model's answer has no counts, or if they contradict each other.
    """
    tokens = record(message, "tokens")
    if not tokens:
        if text(message, "model") is None:
            return None
        raise place.at("tokens").error("is missing: this answer has no token counts; a missing count is never zero")
    place = place.at("tokens")
    names = ("input", "output", "cached", "thoughts", "tool", "total")
    prompt, output, cached, thoughts, tool, total = (counter(tokens, name, place) for name in names)
    if prompt is None or output is None:
        raise place.error("lacks input or output; a missing count is never read as zero")
    if tool and total != prompt + output + (thoughts or 0):
        prompt += tool
    return made_usage(
        place,
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_5m=0,
        cache_write_1h=0,
        output_tokens=output + (thoughts or 0),
        reasoning_tokens=thoughts,
    )


def _given(message: dict[str, Any], key: str, *, summary: bool) -> Iterator[Piece]:
    """A user's message, a summary, or tool results that were put into the history as a user's turn."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    responses = [record(part, "functionResponse") for part in parts if record(part, "functionResponse")]
    for response in responses:
        result = response.get("response")
        name = text(response, "name")
        yield text_piece("tool", result, None, key=key, name=name, result_hash=digest(result))
    if not responses:
        yield text_piece("summary" if summary else "user", content, None, key=key)


def _output(message: dict[str, Any], key: str) -> Iterator[Piece]:
    thoughts = items(message, "thoughts")
    if thoughts:
        yield text_piece("reasoning", thoughts, None, key=key)
    if message.get("content"):
        yield text_piece("assistant", message["content"], None, key=key)
    for call in items(message, "toolCalls"):
        yield tool_call(text(call, "name"), record(call).get("args"), None, key=key)


def _results(message: dict[str, Any], key: str) -> Iterator[Piece]:
    for call in items(message, "toolCalls"):
        result, status = record(call).get("result"), text(call, "status")
        if result is not None:
            failed = None if status is None else status != "success"
            name = text(call, "name")
            yield text_piece("tool", result, None, key=key, name=name, error=failed, result_hash=digest(result))


def _logs() -> list[Path]:
    """Chats of all projects below ``.gemini`` in the home folder, or in ``GEMINI_CLI_HOME`` instead of it."""
    home = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home())
    projects = home / ".gemini" / "tmp"
    return newest(path for pattern in ("*.json", "*.jsonl") for path in projects.glob(f"*/chats/**/{pattern}"))


IMPORTER = Importer(
    name=NAME,
    title="Gemini CLI session",
    convention="per answer, input includes the cached part, thoughts counted apart from output",
    key="(session id, message id), as last written",
    reuse="measured",
    reasoning="billed",
    detect=detect,
    read=read,
    logs=_logs,
)
