"""OpenTelemetry spans with ``gen_ai`` attributes: one span a line with flat attributes, or an OTLP JSON export.

Format: OpenTelemetry semantic conventions for generative AI. ``gen_ai.usage.input_tokens`` includes cache reads and
writes, ``gen_ai.usage.output_tokens`` includes reasoning. A span that calls a model is a call; an agent's span carries
the sum of its children and is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.assemble import Observation
from costmodel_jax.importers.chat import Part
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.importers.threads import Thread, runs_of
from costmodel_jax.schema import Run, Usage

__all__ = ["IMPORTER"]

CALLS = ("chat", "text_completion", "generate_content")
AGENT, TOOL = "invoke_agent", "execute_tool"
# Current names first, then those that earlier versions and vendors wrote.
INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
READ = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens")
WRITTEN = ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens")
REASONING = ("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Span:
    """A span: ids, attributes, start in seconds, and where it stands."""

    trace: str
    id: str
    above: str | None
    attributes: dict[str, Any]
    start: float
    failed: bool
    place: Place

    @property
    def operation(self) -> str | None:
        """What it does: chat, execute_tool, invoke_agent, ..."""
        return fields.text(self.attributes, "gen_ai.operation.name")


def detect(source: Source) -> bool:
    """Spans of which one has an attribute of the ``gen_ai`` family."""
    for value in source.head():
        for span in _raw(value):
            if any(name.startswith("gen_ai.") for name in _attributes(span)):
                return True
    return False


def _raw(value: Any) -> Iterator[dict[str, Any]]:
    """The spans of a line: the span itself, a list of spans, or an export with resources and scopes."""
    for entry in value if isinstance(value, list) else [value]:
        if fields.text(entry, "spanId") or fields.text(entry, "span_id"):
            yield entry
        for resource in fields.items(entry, "resourceSpans"):
            for scope in fields.items(resource, "scopeSpans"):
                for span in fields.items(scope, "spans"):
                    if fields.text(span, "spanId"):
                        yield span


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Attributes by name, from a flat object or from OTLP's list of typed values."""
    given = span.get("attributes")
    if isinstance(given, dict):
        return given
    attributes = {}
    for entry in fields.items(given):
        name, value = fields.text(entry, "key"), fields.record(entry, "value")
        if name is None or not value:
            continue
        kind, content = next(iter(value.items()))
        # OTLP spells 64-bit integers as strings.
        whole = kind == "intValue" and isinstance(content, str) and content.isdecimal() and len(content) < 20
        attributes[name] = int(content) if whole else content
    return attributes


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every span once (a span exported twice counts once, the last wins); every agent is a run of its own."""
    spans: dict[tuple[str, str], _Span] = {}
    for source in sources:
        try:
            for line, value in source.values(options):
                place = Place(path=source.path, line=line)
                found = [_span(raw, place) for raw in _raw(value)]
                spans |= {(span.trace, span.id): span for span in found}
                if not found:
                    options.report("skipped_record", place.error("holds no span with a spanId"))
        except InputError as error:
            options.skip("skipped_file", error)
    return runs_of(_threads(spans, options), "otel_gen_ai", options)


def _span(raw: dict[str, Any], place: Place) -> _Span:
    nanoseconds = raw.get("startTimeUnixNano", raw.get("start_time_unix_nano"))
    if isinstance(nanoseconds, str) and nanoseconds.isdecimal() and len(nanoseconds) < 20:
        nanoseconds = int(nanoseconds)
    start = nanoseconds / 1e9 if isinstance(nanoseconds, (int, float)) else fields.seconds(raw.get("start_time"))
    attributes = _attributes(raw)
    status = fields.record(raw, "status")
    failed = status.get("code") in (2, "ERROR", "STATUS_CODE_ERROR") or "error.type" in attributes
    return _Span(
        trace=fields.text(raw, "traceId") or fields.text(raw, "trace_id") or "",
        id=fields.text(raw, "spanId") or fields.text(raw, "span_id") or "",
        above=fields.text(raw, "parentSpanId") or fields.text(raw, "parent_span_id"),
        attributes=attributes,
        start=start or 0.0,
        failed=failed,
        place=place.at("attributes"),
    )


def _threads(spans: dict[tuple[str, str], _Span], options: Options) -> list[Thread]:
    """The calls of every agent, in order of time, with the tools that ran between them."""
    threads: dict[tuple[str, str], Thread] = {}
    waiting: dict[tuple[str, str], list[Part]] = {}
    answered: set[tuple[str, str]] = set()
    parents = {(span.trace, span.above) for span in spans.values() if span.above is not None and _counts(span)}
    for span in sorted(spans.values(), key=lambda span: span.start):
        agent = _agent(span, spans)
        owner = (span.trace, agent.id if agent is not None else "")
        if span.operation == TOOL:
            name = fields.text(span.attributes, "gen_ai.tool.name")
            waiting.setdefault(owner, []).append(_result(span, name))
            continue
        named = span.operation in CALLS or (span.operation is None and (span.trace, span.id) not in parents)
        if not named or not _counts(span):
            continue
        response = fields.text(span.attributes, "gen_ai.response.id")
        if response is not None and (span.trace, response) in answered:
            continue  # two instrumentations of one call
        try:
            usage = _usage(span)
        except InputError as error:
            options.skip("skipped_record", error)
            continue
        answered.add((span.trace, response or span.id))
        thread = threads.setdefault(owner, _thread(span, agent, spans))
        thread.keys.append(response or span.id)
        try:
            arrived = _arrived(span, begins=not thread.observations) or waiting.pop(owner, [])
            answer = _messages(span, "gen_ai.output.messages")
        except InputError as error:
            options.skip("skipped_record", error)
            arrived, answer = [], []
        waiting.pop(owner, None)
        thread.observations.append(
            Observation(
                usage=usage,
                input=[part.piece() for part in arrived],
                output=[part.piece() for _, part in answer],
                time=span.start or None,
            )
        )
    for (trace, _), thread in threads.items():
        outer = spans.get((trace, thread.parent or ""))
        while outer is not None and (trace, outer.id) not in threads:
            outer = _agent(outer, spans)
        thread.parent = threads[trace, outer.id].id if outer is not None else None
    return list(threads.values())


def _counts(span: _Span) -> bool:
    return any(span.attributes.get(name) is not None for name in (*INPUT, *OUTPUT))


def _agent(span: _Span, spans: dict[tuple[str, str], _Span]) -> _Span | None:
    """The agent a span belongs to: the nearest agent's span above it."""
    above, passed = span.above, {span.id}
    while above is not None and above not in passed:
        passed.add(above)
        found = spans.get((span.trace, above))
        if found is None or found.operation == AGENT:
            return found
        above = found.above
    return None


def _thread(span: _Span, agent: _Span | None, spans: dict[tuple[str, str], _Span]) -> Thread:
    outer = _agent(agent, spans) if agent is not None else None
    model = ("gen_ai.response.model", "gen_ai.request.model")
    return Thread(
        id=f"{span.trace}/{agent.id}" if agent is not None else span.trace,
        path=span.place.path,
        model=next((told for name in model if (told := fields.text(span.attributes, name))), None),
        parent=outer.id if outer is not None else None,
        chain=fields.text(span.attributes, "gen_ai.conversation.id"),
    )


def _result(span: _Span, name: str | None) -> Part:
    """What a tool's span adds to the next prompt."""
    text = _content(span.attributes.get("gen_ai.tool.call.result"))
    hashed = fields.digest(text) if text else None
    return Part(kind="tool", text=text, name=name, error=span.failed, result_hash=hashed)


def _messages(span: _Span, attribute: str) -> list[tuple[str, Part]]:
    """The parts of the messages in an attribute, each with its role, where the spans were told to hold messages."""
    told = _decoded(span.attributes.get(attribute))
    parts = []
    for message in told if isinstance(told, list) else []:
        role = fields.text(message, "role") or ""
        parts += [(role, part) for part in chat.message_parts(message, span.place.at(attribute))]
    return parts


def _arrived(span: _Span, *, begins: bool) -> list[Part]:
    """What is new in the messages sent: all of them at first, later what follows the last answer."""
    sent = _messages(span, "gen_ai.input.messages")
    if not begins:
        last = max((i for i, (role, _) in enumerate(sent) if role == "assistant"), default=-1)
        return [part for _, part in sent[last + 1 :]]
    names = ("gen_ai.system_instructions", "gen_ai.tool.definitions")
    told = [_content(span.attributes.get(name)) for name in names] if sent else []
    head = [Part(kind="system", text=told[0]), Part(kind="tools", text=told[1])] if sent else []
    return [*(part for part in head if part.text), *(part for _, part in sent)]


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _content(value: Any) -> str:
    return fields.content_text(_decoded(value))


def _usage(span: _Span) -> Usage:
    def first(names: Sequence[str]) -> int | None:
        counts = (fields.counter(span.attributes, name, span.place) for name in names)
        return next((count for count in counts if count is not None), None)

    written = first(WRITTEN)
    return fields.made_usage(
        span.place,
        prompt_tokens=first(INPUT),
        cached_tokens=first(READ),
        cache_write_5m=written,
        cache_write_1h=None if written is None else 0,
        output_tokens=first(OUTPUT),
        reasoning_tokens=first(REASONING),
    )


IMPORTER = Importer(
    name="otel_gen_ai",
    title="OpenTelemetry gen_ai spans",
    convention="input_tokens includes cache reads and writes, output_tokens includes reasoning; per span; writes have "
    "no lifetime and are taken as 5 minutes",
    key="trace and span id; response id within a trace",
    reuse="measured",
    reasoning="billed",
    detect=detect,
    read=read,
)
