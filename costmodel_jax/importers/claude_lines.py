"""The lines of a Claude Code session file: which thread each belongs to, and what it adds to that thread's calls."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers.anthropic_api import messages_usage, output_piece
from costmodel_jax.importers.assemble import Observation, Piece, Removal
from costmodel_jax.importers.fields import Place, content_size, digest, fact, items, record, seconds, text
from costmodel_jax.importers.source import Options
from costmodel_jax.schema import Kind, Usage

__all__ = ["Answer", "Draft"]

SYNTHETIC = "<synthetic>"
# What the client itself writes under the role of the user.
ECHOES = (
    "<command-name>",
    "<command-message>",
    "<local-command-",
    "<bash-",
    "[Request interrupted by user",
    "Caveat: ",
)


@dataclasses.dataclass
class Answer:
    """One model call while its lines are being read.

    Attributes:
      place: its first line, for messages.
      observation: what entered the context before it.
      output: pieces of its answer.
      usage: as its last line has it.
      split_mismatch: whether the lifetimes of the cache writes did not add up.
    """

    place: Place
    observation: Observation
    output: list[Piece] = dataclasses.field(default_factory=list)
    usage: Usage | None = None
    split_mismatch: bool = False


@dataclasses.dataclass
class Draft:
    """One thread of a file while it is being read: the main one, or a helper agent's.

    Attributes:
      id, parent: of the run.
      answers: the calls, by what identifies them, in order.
      models: how many lines each model wrote.
      waiting: user messages since the latest call.
    """

    id: str
    parent: str | None = None
    answers: dict[Hashable, Answer] = dataclasses.field(default_factory=dict)
    models: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    _keys: dict[str, tuple[Hashable, str | None]] = dataclasses.field(
        default_factory=dict
    )  # by message id, with request
    _tools: dict[str, str] = dataclasses.field(default_factory=dict)  # names by tool use id
    _taken: set[tuple[str, int]] = dataclasses.field(default_factory=set)  # lines whose content was read, with size
    _parents: dict[str, str | None] = dataclasses.field(default_factory=dict)  # of every line, by uuid
    _branch: dict[str, int] = dataclasses.field(default_factory=dict)  # lines of the current branch, by position
    _answered: str | None = None  # first line of the latest call
    _session: str | None = None
    _sessions: int = 0
    # What has arrived since the latest call.
    _input: list[Piece] = dataclasses.field(default_factory=list)
    _time: float | None = None
    _compacted: bool = False
    _removed: dict[str, Removal] = dataclasses.field(default_factory=dict)
    _cleared: int = 0

    @property
    def waiting(self) -> int:
        """User messages that no call has answered yet."""
        return sum(piece.kind == "user" for piece in self._input)

    def read(self, value: dict[str, Any], message: dict[str, Any], place: Place, options: Options) -> None:
        """Take in one line."""
        kind = value.get("type") or message.get("role")
        if kind == "system":
            self._boundary(value)
        elif kind in ("user", "assistant") and not message:
            options.report("skipped_record", place.at("message").error("is not an object"))
        elif kind == "user":
            self._user_line(value, message, place, options)
        elif kind == "assistant":
            self._answer_line(value, message, place, options)
        uuid = text(value, "uuid")
        if uuid is not None and uuid not in self._parents:
            self._parents[uuid] = text(value, "parentUuid")
            self._branch[uuid] = len(self._parents)

    def _boundary(self, value: dict[str, Any]) -> None:
        if value.get("subtype") == "compact_boundary":
            self._compacted = True
        elif value.get("subtype") == "microcompact_boundary":
            saved = record(value, "microcompactMetadata").get("tokensSaved")
            self._cleared += saved if isinstance(saved, int) and 0 < saved < 2**31 else 0

    def _user_line(self, value: dict[str, Any], message: dict[str, Any], place: Place, options: Options) -> None:
        """A message, tool results, or what the client wrote."""
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
            options.report("skipped_record", place.at("message.content").error("is missing or of an unknown shape"))
            return
        if not self._first_sight(value, content):
            return
        key = text(value, "uuid")
        results = [block for block in blocks if block.get("type") == "tool_result"]
        rest = [block for block in blocks if block.get("type") != "tool_result"]
        if not results:
            self._rewind(value)
        for block in results:
            result = block.get("content")
            self._input.append(
                Piece(
                    kind="tool",
                    size=content_size(result),
                    key=key,
                    name=self._tools.get(text(block, "tool_use_id") or ""),
                    error=fact(block, "is_error"),
                    result_hash=digest(result),
                )
            )
        if rest:
            echo = (text(rest[0], "text") or "").lstrip().startswith(ECHOES)
            kind: Kind = "system" if results or echo or value.get("isMeta") is True else "user"
            if value.get("isCompactSummary") is True:
                kind, self._compacted = "summary", True
            self._input.append(Piece(kind=kind, size=content_size(rest), key=key))
        sent = seconds(value.get("timestamp"))
        self._time = self._time if sent is None else sent

    def _answer_line(self, value: dict[str, Any], message: dict[str, Any], place: Place, options: Options) -> None:
        """One content block of a model's answer, with the usage of the whole answer so far."""
        if message.get("model") == SYNTHETIC or value.get("isApiErrorMessage") is True:
            return
        usage, mismatch = None, False
        if isinstance(message.get("usage"), dict):
            try:
                usage, mismatch = messages_usage(message["usage"], place.at("message.usage"))
            except InputError as error:
                options.skip("skipped_record", error)
                return
            if not usage.prompt_tokens and not usage.output_tokens:
                return  # written by the client: a model reads at least one token
        answer = self._call(value, message, place)
        if usage is not None:
            answer.usage, answer.split_mismatch = usage, mismatch
        if text(message, "model") is not None:
            self.models.update([message["model"]])
        if not self._first_sight(value, message.get("content")):
            return
        for block in items(message, "content"):
            piece = output_piece(block, text(value, "uuid"))
            if piece is not None:
                answer.output.append(piece)
            name, use = text(block, "name"), text(block, "id")
            if name and use:
                self._tools[use] = name

    def _call(self, value: dict[str, Any], message: dict[str, Any], place: Place) -> Answer:
        """The call a line belongs to, begun where this is its first line."""
        identity, request = text(message, "id"), text(value, "requestId")
        key: Hashable = (identity, request)
        if identity is None and request is None:
            key = (place.path, place.line)
        elif identity is not None:
            known, asked = self._keys.get(identity, (key, request))
            # Lines of one answer may lack the request id; the same message id under another request is another call.
            key = known if None in (request, asked) or request == asked else key
            self._keys[identity] = key, request or asked
        if key not in self.answers:
            self._rewind(value)
            session = text(value, "sessionId")
            known = text(value, "parentUuid") in self._parents
            if self._session is not None and session != self._session and not known:
                self._sessions += 1
            self._session = session
            observation = Observation(
                usage=None,
                input=tuple(self._input),
                time=self._time if self._time is not None else seconds(value.get("timestamp")),
                session=self._sessions or None,
                compacted=self._compacted,
                removed=self._removed,
                cleared=self._cleared,
            )
            self.answers[key] = Answer(place.at("message.usage"), observation)
            self._answered = text(value, "uuid")
            self._input, self._time, self._compacted, self._removed, self._cleared = [], None, False, {}, 0
        return self.answers[key]

    def _first_sight(self, value: dict[str, Any], content: Any) -> bool:
        """False for a copy of a line that was read before."""
        uuid = text(value, "uuid")
        if uuid is None:
            return True
        mark = (uuid, content_size(content))
        known = mark in self._taken
        self._taken.add(mark)
        return not known

    def _rewind(self, value: dict[str, Any]) -> None:
        """Take out what a line left behind whose parent stands before the latest call: the user went back."""
        parent = text(value, "parentUuid")
        while parent is not None and parent not in self._branch:
            parent = self._parents.get(parent)
        if parent is None or self._answered not in self._branch:
            return
        position = self._branch[parent]
        if position >= self._branch[self._answered]:
            return
        gone = [uuid for uuid, at in self._branch.items() if at > position]
        for uuid in gone:
            del self._branch[uuid]
            self._removed[uuid] = Removal(cause="rewind")
        self._input = [piece for piece in self._input if piece.key not in self._removed]
