"""One Codex rollout file: its records, in order, to the calls of one session."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Hashable
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers.assemble import Observation, Piece, Removal
from costmodel_jax.importers.fields import (
    Place,
    content_size,
    counter,
    digest,
    items,
    json_size,
    made_usage,
    record,
    seconds,
    text,
)
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Usage

__all__ = ["Rollout", "read_rollout"]

COUNTERS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
EXIT_CODE = re.compile(r"^(?:Exit code:|Process exited with code) (-?\d{1,9})", re.MULTILINE)


@dataclasses.dataclass
class Rollout:
    """A session while its file is being read.

    Attributes:
      path: the file.
      id: of the session; ``forked``: of the session it was forked from; ``spawned``: of the one that started it.
      began: when the file was begun, in seconds.
      keys, observations, times: of every call that the file shows.
      models: how often each model was set.
      aborted: turns that were cut off.
      unclaimed: whether the file shows answers that no token count belongs to.
    """

    path: str
    id: str | None = None
    forked: str | None = None
    spawned: str | None = None
    began: float | None = None
    keys: list[Hashable] = dataclasses.field(default_factory=list)
    observations: list[Observation] = dataclasses.field(default_factory=list)
    times: list[float | None] = dataclasses.field(default_factory=list)
    models: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    aborted: int = 0
    _tools: dict[str, str] = dataclasses.field(default_factory=dict)  # names by call id
    _previous: tuple[tuple[int | None, ...], ...] | None = None  # counters of the previous event
    _totals: tuple[int | None, ...] | None = None
    _open: bool = False  # the latest call was counted before its answer was written
    _turns: int = 0
    # What has been read since the latest call.
    _input: list[Piece] = dataclasses.field(default_factory=list)
    _output: list[Piece] = dataclasses.field(default_factory=list)
    _twins: list[int] = dataclasses.field(default_factory=list)  # sizes of user messages whose item is still to come
    _time: float | None = None
    _compacted: bool = False
    _removed: dict[str, Removal] = dataclasses.field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """User messages that no call has answered yet."""
        return sum(piece.kind == "user" for piece in self._input)

    @property
    def uncounted(self) -> bool:
        """Whether there is an answer but no token count in the whole file."""
        return not self.keys and bool(self._output)

    def item(self, payload: dict[str, Any], time: float | None) -> None:
        """An item of the conversation: what the model wrote, or what it was given."""
        kind = text(payload, "type") or ""
        name = text(payload, "name") or kind.removesuffix("_call")
        if kind == "message" and payload.get("role") == "assistant":
            self._generated(Piece(kind="assistant", size=content_size(payload.get("content")), key=self._turn))
        elif kind == "message":
            self._message(content_size(payload.get("content")), time)
        elif kind == "reasoning":
            size = content_size([payload.get("summary"), payload.get("content")])
            self._generated(Piece(kind="reasoning", size=size, key=self._turn))
        elif kind.endswith("_call"):
            arguments = payload.get("arguments", payload.get("input", payload.get("action")))
            identity = text(payload, "call_id")
            if identity is not None:
                self._tools[identity] = name
            self._generated(
                Piece(
                    kind="assistant",
                    size=len(name) + json_size(arguments),
                    key=self._turn,
                    name=name,
                    arguments_hash=digest(arguments),
                )
            )
        elif kind.endswith("_output"):
            result = payload.get("output")
            self._given(
                Piece(
                    kind="tool",
                    size=content_size(result),
                    key=self._turn,
                    name=self._tools.get(text(payload, "call_id") or ""),
                    error=_failed(result),
                    result_hash=digest(result),
                ),
                time,
            )

    def user_message(self, payload: dict[str, Any], time: float | None) -> None:
        """A user turn. Its text also stands in the file as an item, before or after; that twin is the same message."""
        if payload.get("kind") not in (None, "plain"):
            return
        self._turns += 1
        size = content_size(payload.get("message"))
        for i in reversed(range(len(self._input))):
            if self._input[i].kind == "system" and self._input[i].size == size:
                self._input[i] = Piece(kind="user", size=size, key=self._turn)
                return
        self._twins.append(size)
        self._given(Piece(kind="user", size=size, key=self._turn), time)

    def compaction(self, payload: dict[str, Any]) -> None:
        """The history was replaced by a summary."""
        history = [part for part in items(payload, "replacement_history") if text(part, "type") == "compaction"]
        size = content_size(payload.get("message")) + sum(len(text(p, "encrypted_content") or "") for p in history)
        self._compacted = True
        self._input = [piece for piece in self._input if piece.kind != "summary"]
        self._input.append(Piece(kind="summary", size=size))

    def rolled_back(self, payload: dict[str, Any]) -> None:
        """The user took back the latest turns."""
        turns = payload.get("num_turns")
        if isinstance(turns, int):
            gone = {f"turn {turn}" for turn in range(max(0, self._turns - turns) + 1, self._turns + 1)}
            self._removed |= {key: Removal(cause="rewind") for key in gone}
            self._input = [piece for piece in self._input if piece.key not in gone]
            self._output = []

    def count(self, info: dict[str, Any], place: Place, time: float | None) -> None:
        """A token count. It is a call unless it repeats the previous event or counts nothing.

        Raises:
          InputError: if a count is no count or contradicts another.
        """
        last, total = (_counts(info, name, place) for name in ("last_token_usage", "total_token_usage"))
        if last is None and total is None:
            return
        repeats = self._previous is not None and (total or last) == (self._previous[1] or self._previous[0])
        before = self._totals or (0,) * len(COUNTERS)
        self._previous = (last or (), total or ())
        self._totals = total or self._totals
        if last is None and total is not None:
            last = _difference(total, before)
        if repeats or last is None or not (last[0] or last[2]):
            return
        prompt, cached, output, reasoning = last
        if prompt is None or output is None:
            raise place.error("lacks input_tokens or output_tokens; a missing count is never read as zero")
        written = counter(record(info, "last_token_usage"), "cache_write_input_tokens", place.at("last_token_usage"))
        usage = made_usage(
            place.at("last_token_usage" if "last_token_usage" in info else "total_token_usage"),
            prompt_tokens=prompt,
            cached_tokens=cached,
            cache_write_5m=written or 0,
            cache_write_1h=0,
            output_tokens=output,
            reasoning_tokens=reasoning,
        )
        self._call(usage, (last, total), time)

    @property
    def _turn(self) -> str:
        return f"turn {self._turns}"

    def _call(self, usage: Usage, key: Hashable, time: float | None) -> None:
        self._open = not self._output
        self.keys.append(key)
        self.times.append(time)
        self.observations.append(
            Observation(
                usage=usage,
                input=tuple(self._input),
                output=tuple(self._output),
                time=self._time if self._time is not None else time,
                compacted=self._compacted,
                removed=self._removed,
            )
        )
        self._input, self._output, self._twins = [], [], []
        self._time, self._compacted, self._removed = None, False, {}

    def _generated(self, piece: Piece) -> None:
        """Written by the model: of the call that is to be counted next, or of the one that was counted just before."""
        if self._open:
            latest = self.observations[-1]
            self.observations[-1] = dataclasses.replace(latest, output=(*latest.output, piece))
        else:
            self._output.append(piece)

    def _given(self, piece: Piece, time: float | None) -> None:
        """Given to the model. An answer before it that was never counted (a turn cut off) is part of the context."""
        self._input += [*self._output, piece]
        self._output, self._open = [], False
        self._time = time if time is not None else self._time

    def _message(self, size: int, time: float | None) -> None:
        if size in self._twins:
            self._twins.remove(size)
        else:
            self._given(Piece(kind="system", size=size, key=self._turn), time)


def read_rollout(source: Source, options: Options) -> Rollout:
    """Read one file.

    Raises:
      InputError: with file and line (lenient reading skips the record).
    """
    rollout = Rollout(path=source.path)
    for line, value in source.records(options):
        payload = record(value, "payload")
        if not payload:
            options.report(
                "skipped_record", Place(path=source.path, line=line).error("this line is no record of a Codex rollout")
            )
            continue
        time = seconds(value.get("timestamp"))
        kind = value.get("type")
        event = payload.get("type") if kind == "event_msg" else kind
        if event == "session_meta":
            if rollout.began is None and rollout.id is None:
                rollout.id, rollout.began = text(payload, "id"), time
                rollout.forked = text(payload, "forked_from_id")
                rollout.spawned = text(payload, "source", "subagent", "thread_spawn", "parent_thread_id")
        elif event == "turn_context":
            rollout.models.update([model] if (model := text(payload, "model")) else [])
        elif event == "response_item":
            rollout.item(payload, time)
        elif event == "user_message":
            rollout.user_message(payload, time)
        elif event == "compacted":
            rollout.compaction(payload)
        elif event == "context_compacted":
            rollout._compacted = True
        elif event == "thread_rolled_back":
            rollout.rolled_back(payload)
        elif event == "turn_aborted":
            rollout.aborted += 1
        elif event == "token_count":
            try:
                rollout.count(record(payload, "info"), Place(path=source.path, line=line, field="payload.info"), time)
            except InputError as error:
                options.skip("skipped_record", error)
    return rollout


def _counts(info: dict[str, Any], name: str, place: Place) -> tuple[int | None, ...] | None:
    usage = record(info, name)
    return tuple(counter(usage, field, place.at(name)) for field in COUNTERS) if usage else None


def _difference(total: tuple[int | None, ...], before: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """What a cumulative counter adds; where any part went down the counter started again, from nothing."""
    pairs = [(now, then or 0) for now, then in zip(total, before, strict=True)]
    if any(now is not None and now < then for now, then in pairs):
        return total
    return tuple(None if now is None else now - then for now, then in pairs)


def _failed(result: Any) -> bool | None:
    """Whether a command failed; ``None`` where its result does not say."""
    if isinstance(result, dict) and isinstance(result.get("success"), bool):
        return not result["success"]
    if not isinstance(result, str):
        return None
    code = re.search(r'"exit_code": ?(-?\d{1,9})', result) or EXIT_CODE.search(result)
    return int(code.group(1)) != 0 if code is not None else None
