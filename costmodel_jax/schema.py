"""The canonical run format ``agent-run/1``: what a run is, how it is read, written and checked.

A run is a list of model calls of one agent thread. Each call holds the segments that are new since the previous call
(``input``) and the segments it generated (``output``); lengths in tokens are enough, text is never part of the format.
On disk: one JSON document (a run or an array of runs) or JSON Lines with one run a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from costmodel_jax.errors import InputError

__all__ = [
    "KINDS",
    "SCHEMA",
    "Call",
    "Edit",
    "Evidence",
    "Run",
    "Segment",
    "Usage",
    "dump_runs",
    "json_schema",
]

SCHEMA: Literal["agent-run/1"] = "agent-run/1"
Kind = Literal["system", "tools", "user", "tool", "reasoning", "assistant", "summary", "memory"]
KINDS: tuple[Kind, ...] = ("system", "tools", "user", "tool", "reasoning", "assistant", "summary", "memory")
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stretch of tokens that is shown or hidden as a whole.

    Attributes:
      kind: who wrote it: ``system``, ``tools`` (definitions), ``user``, ``tool`` (a result), ``reasoning``,
        ``assistant`` (answers and tool calls), ``summary`` or ``memory`` (soft rows).
      tokens: length in tokens.
      ids: token ids, ``tokens`` of them; they enable a common prefix over tokens instead of segments.
      name: the tool called or answering.
      error: whether the tool reported an error.
      arguments_hash, result_hash: hashes of a tool call's arguments and result, for behaviour metrics.
    """

    kind: Kind
    tokens: Count
    ids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...] | None = None
    name: str | None = None
    error: bool | None = None
    arguments_hash: str | None = None
    result_hash: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the server measured for one call, in tokens. ``None`` means that the log does not say.

    Attributes:
      prompt_tokens: the whole prompt, cache reads and writes included.
      cached_tokens: the part of the prompt read from the cache.
      cache_write_5m, cache_write_1h: the part of the prompt written to the cache, by lifetime.
      output_tokens: everything generated, reasoning included.
      reasoning_tokens: the part of the output that is reasoning.
    """

    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    cache_write_5m: Count | None = None
    cache_write_1h: Count | None = None
    output_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the recorded client did to its history before a call: hide a range, or put one segment in its place.

    Segments are numbered through the run in recorded order (input of call 0, output of call 0, input of call 1, ...).
    A replacement disappears with the first later edit that covers the whole range it stands for.

    Attributes:
      start, stop: the range of earlier segments, ``stop`` excluded.
      segment: what is shown instead (``None`` drops the range).
      cause: ``compaction``, ``clear_tool_results``, ``reasoning_dropped``, ``rewind`` or ``unknown``.
    """

    start: Annotated[int, msgspec.Meta(ge=0)]
    stop: Annotated[int, msgspec.Meta(ge=0)]
    segment: Segment | None = None
    cause: Literal["compaction", "clear_tool_results", "reasoning_dropped", "rewind", "unknown"] = "unknown"


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One model call.

    Attributes:
      input: segments that are new since the previous call of the session.
      output: segments this call generated.
      usage: what the server measured.
      time: seconds (any origin) at which the call was sent.
      session: a value that differs from the previous call's starts an empty history; ``None`` goes on.
      edits: what the client did to earlier segments before this call.
    """

    input: tuple[Segment, ...] = ()
    output: tuple[Segment, ...] = ()
    usage: Usage | None = None
    time: float | None = None
    session: str | int | None = None
    edits: tuple[Edit, ...] = ()


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a run's numbers come from.

    Attributes:
      lengths: ``measured`` (counted by the server, or stated by the file) or ``modelled`` (counted with a tokenizer).
      cached: ``measured``, or ``unknown`` where the log has no cache counter.
      reasoning: ``observed`` (its own segments), ``billed`` (a counter only), ``unknown`` (inside the output, length
        not recoverable: policies over reasoning are not computable for the run).
    """

    lengths: Literal["measured", "modelled"] = "measured"
    cached: Literal["measured", "unknown"] = "unknown"
    reasoning: Literal["observed", "billed", "unknown"] = "observed"


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A list of model calls of one agent thread.

    Attributes:
      id: unique within what is loaded together.
      task: what was worked on; paired statistics cluster over it.
      chain: a group of runs that continue each other.
      model: the model that was recorded.
      solved: whether the task was solved.
      format: the log format it was imported from.
      parent: id of the run that spawned this one (a helper agent).
      evidence: where the numbers come from.
      notes: what a reader of the numbers must know; never text of the log.
    """

    id: str
    calls: tuple[Call, ...]
    schema: Literal["agent-run/1"] = SCHEMA
    task: str | None = None
    chain: str | None = None
    model: str | None = None
    solved: bool | None = None
    format: str | None = None
    parent: str | None = None
    evidence: Evidence = Evidence()
    notes: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Run:
        """Build and check a run from plain Python data.

        Raises:
          InputError: naming the field path, the value and the rule that was broken.
        """
        try:
            run = msgspec.convert(value, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InputError(_explain(error, value)) from None
        _check(run)
        return run

    def to_dict(self) -> dict[str, Any]:
        """The run as plain Python data, ready for JSON."""
        return {"schema": SCHEMA, **msgspec.to_builtins(self)}

    @property
    def segments(self) -> list[Segment]:
        """All recorded segments in order: input of call 0, output of call 0, input of call 1, ..."""
        return [segment for call in self.calls for segment in (*call.input, *call.output)]


def dump_runs(runs: Iterable[Run], path: str | Path) -> None:
    """Write runs as JSON Lines. The file appears whole or not at all."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(b"".join(msgspec.json.encode(run.to_dict()) + b"\n" for run in runs))
    partial.replace(path)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``agent-run/1``, generated from the structs that decode it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **msgspec.json.schema(Run)}


def _explain(error: Exception, value: object) -> str:
    """Turn msgspec's message into ``field.path = value: rule``, showing numbers and booleans but never text."""
    if isinstance(error, RecursionError):
        return "nested too deeply to be a run"
    message, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    found: Any = value
    for part in re.findall(r"[^.\[\]]+", path):
        try:
            found = found[int(part)] if isinstance(found, Sequence) and not isinstance(found, str) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            found = None
            break
    shown = f" = {found}" if isinstance(found, (int, float)) else ""
    if path.endswith(".kind"):
        message = f"unknown kind; use one of {', '.join(KINDS)}"
    if message.startswith("Invalid enum value"):  # msgspec would quote the file's own text
        message = "unknown value"
    message = message.replace("Object contains unknown field", "unknown field")
    message = message.replace("Object missing required field", "missing field")
    return f"{path}{shown}: {message}" if path else message


def _check(run: Run) -> None:
    """The rules that types alone do not express."""
    if not run.calls:
        raise InputError("calls: a run needs at least one call")
    seen = 0
    session_start = 0
    session: str | int | None = run.calls[0].session
    time: float | None = None
    for t, call in enumerate(run.calls):
        where = f"calls[{t}]"
        if call.session is not None and call.session != session:
            session, session_start, time = call.session, seen, None
        if call.time is not None:
            if time is not None and call.time < time:
                raise InputError(
                    f"{where}.time = {call.time} is before the previous call's {time}; order calls by time"
                )
            time = call.time
        for e, edit in enumerate(call.edits):
            if not session_start <= edit.start < edit.stop <= seen:
                raise InputError(
                    f"{where}.edits[{e}] covers segments {edit.start} to {edit.stop}, but before this call its session "
                    f"holds segments {session_start} to {seen}; an edit changes earlier segments of its own session"
                )
            if edit.segment is not None:
                _check_ids(f"{where}.edits[{e}].segment", edit.segment)
        for side, segments in (("input", call.input), ("output", call.output)):
            for s, segment in enumerate(segments):
                _check_ids(f"{where}.{side}[{s}]", segment)
        if call.usage is not None:
            _check_usage(f"{where}.usage", call.usage)
        seen += len(call.input) + len(call.output)


def _check_ids(where: str, segment: Segment) -> None:
    if segment.ids is not None and len(segment.ids) != segment.tokens:
        raise InputError(f"{where}.ids has {len(segment.ids)} entries but tokens = {segment.tokens}; they must agree")


def _check_usage(where: str, usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        if usage.cached_tokens is not None and usage.cached_tokens > usage.prompt_tokens:
            raise InputError(
                f"{where}.cached_tokens = {usage.cached_tokens} exceeds prompt_tokens = {usage.prompt_tokens} "
                "(was cached counted outside the input?)"
            )
        written = (usage.cache_write_5m or 0) + (usage.cache_write_1h or 0)
        if (usage.cached_tokens or 0) + written > usage.prompt_tokens:
            raise InputError(
                f"{where}: cached_tokens + cache writes = {(usage.cached_tokens or 0) + written} exceeds "
                f"prompt_tokens = {usage.prompt_tokens} (were the writes counted outside the input?)"
            )
    if (
        usage.output_tokens is not None
        and usage.reasoning_tokens is not None
        and usage.reasoning_tokens > usage.output_tokens
    ):
        raise InputError(
            f"{where}.reasoning_tokens = {usage.reasoning_tokens} exceeds output_tokens = {usage.output_tokens} "
            "(was reasoning counted outside the output?)"
        )
