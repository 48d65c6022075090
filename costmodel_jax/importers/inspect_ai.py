"""Inspect AI logs: ``.eval`` archives, ``.json`` logs, and event lists.

Format: the log files of ``UKGovernmentBEIS/inspect_ai``. A model event is a call. ``input_tokens``,
``input_tokens_cache_read`` and ``input_tokens_cache_write`` exclude each other; ``output_tokens`` includes reasoning.
Newer files keep messages in a pool and long texts as attachments. Agents, branches, graders and one-token warm-up
calls are threads of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.chat import Part, Turn
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.inspect_archive import is_archive, samples
from costmodel_jax.importers.inspect_threads import Event, threads
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Evidence, Run, Usage

__all__ = ["IMPORTER"]

ATTACHMENT = "attachment://"
VERDICTS = {"C": True, "I": False}


def detect(source: Source) -> bool:
    """An archive of samples, a log with samples, or a list of events."""
    first = source.first
    if isinstance(first, dict):
        event = next(iter(fields.items(first, "events")), None)
        log = isinstance(first.get("eval"), dict) and isinstance(first.get("samples"), list)
        return log or (fields.text(event, "event") is not None and not fields.text(first, "schema"))
    return is_archive(source)


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every sample; a sample that two files hold counts once."""
    runs: list[Run] = []
    seen: dict[tuple[str, ...], str] = {}
    for source in sources:
        try:
            for name, sample in _samples(source):
                place = Place(path=source.path, field=f"samples/{name}" if name else "")
                base = f"{Path(source.path).stem}/{name}" if name else Path(source.path).stem
                if not isinstance(sample, dict):
                    options.skip("skipped_record", place.error("is no object with events"))
                    continue
                runs += _runs(sample, base, place, source, options, seen)
        except InputError as error:
            options.skip("skipped_file", error)
    return runs


def _samples(source: Source) -> Iterator[tuple[str, Any]]:
    if is_archive(source):
        yield from samples(source)
        return
    document = source.document()
    if not isinstance(document, dict) or "samples" not in document:
        yield "", document
        return
    for i, sample in enumerate(fields.items(document, "samples")):
        name = fields.record(sample).get("id")
        named = name if isinstance(name, (str, int)) else i
        yield f"{named}_epoch_{fields.record(sample).get('epoch', 1)}", sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Texts:
    """What events of a sample refer to: its message pool and its attachments."""

    pool: Sequence[Any]
    attachments: dict[str, Any]
    known: dict[str, tuple[Any, tuple[Part, ...]]] = dataclasses.field(default_factory=dict)  # by message id

    def resolve(self, value: Any) -> Any:
        """A text, or the text of the attachment it stands for."""
        if isinstance(value, str) and value.startswith(ATTACHMENT):
            return self.attachments.get(value.removeprefix(ATTACHMENT), "")
        return value

    def message(self, message: Any) -> Any:
        """A message with its attachments put back."""
        if not isinstance(message, dict):
            return message
        content = message.get("content")
        if isinstance(content, list):
            blocks = [
                {name: self.resolve(value) for name, value in block.items()} if isinstance(block, dict) else block
                for block in content
            ]
            return {**message, "content": blocks}
        return {**message, "content": self.resolve(content)}

    def sent(self, event: Any, place: Place) -> list[Any]:
        """The messages a model event was sent."""
        messages = list(fields.items(event, "input"))
        for i, span in enumerate(fields.items(event, "input_refs")):
            bounds = span if isinstance(span, list) else []
            whole = len(bounds) == 2 and all(isinstance(bound, int) for bound in bounds)
            if not whole or not 0 <= bounds[0] <= bounds[1] <= len(self.pool):
                rule = f"must be a range of the message pool, which has {len(self.pool)} messages"
                raise place.at(f"input_refs[{i}]").error(rule)
            messages += self.pool[bounds[0] : bounds[1]]
        return messages

    def parts(self, message: Any, place: Place) -> tuple[Part, ...]:
        """The parts of a message; events repeat the whole history, so a message is taken apart once."""
        name = fields.text(message, "id")
        if name is None:
            return chat.message_parts(self.message(message), place)
        if name not in self.known or self.known[name][0] != message:
            self.known[name] = (message, chat.message_parts(self.message(message), place))
        return self.known[name][1]


def _runs(
    sample: dict[str, Any],
    base: str,
    place: Place,
    source: Source,
    options: Options,
    seen: dict[tuple[str, ...], str],
) -> list[Run]:
    """The threads of a sample; the first is the agent under test, the others name the run they belong to."""
    pool = fields.items(sample, "message_pool") or fields.items(sample, "events_data", "messages")
    texts = _Texts(pool=pool, attachments=fields.record(sample, "attachments"))
    runs = []
    for thread in threads(fields.items(sample, "events")):
        mark = tuple(event.key for event in thread.events)
        if all(event.named for event in thread.events) and seen.setdefault(mark, source.path) != source.path:
            continue
        try:
            turns = _turns(thread.events, texts, place, options)
            if not turns:
                continue
            name = fields.record(sample).get("id")
            runs.append(
                Run(
                    id=f"{base}/{thread.name}" if thread.name else base,
                    calls=chat.calls(turns, source, options),
                    task=str(name) if isinstance(name, (str, int)) else None,
                    model=fields.text(thread.events[0].value, "model"),
                    solved=_solved(sample) if thread.parent is None else None,
                    format="inspect_ai",
                    parent=None if thread.parent is None else f"{base}/{thread.parent}".rstrip("/"),
                    evidence=_evidence(thread.events, turns),
                )
            )
        except InputError as error:
            options.skip("skipped_run", error)
    return runs


def _evidence(events: Sequence[Event], turns: Sequence[Turn]) -> Evidence:
    """R is observed only where a provider reported its cache; a total that adds up does not show a hit."""
    made = chat.evidence(turns, shows_reasoning=True)
    usages = [fields.record(event.value, "output", "usage") for event in events]
    stated = any(usage.get("input_tokens_cache_read") is not None for usage in usages)
    return made if stated else msgspec.structs.replace(made, cached="unknown")


def _turns(events: Sequence[Event], texts: _Texts, place: Place, options: Options) -> list[Turn]:
    usages = [fields.record(event.value, "output", "usage") for event in events]
    measured = any(usages)
    turns = []
    for event, usage in zip(events, usages, strict=True):
        at = place.at(f"events[{event.index}]")
        if measured and not usage:
            rule = "is missing, other model events have it; a missing count is never read as zero"
            options.skip("skipped_record", at.at("output.usage").error(rule))
            continue
        prompt = [Part(kind="tools", text=text) for text in [_definitions(event.value, texts)] if text]
        for i, message in enumerate(texts.sent(event.value, at)):
            prompt += texts.parts(message, at.at(f"input[{i}]"))
        choice = fields.items(event.value, "output", "choices")[0]
        message = {**fields.record(texts.message(fields.record(choice, "message"))), "role": "assistant"}
        turns.append(
            Turn(
                prompt=tuple(prompt),
                answer=chat.message_parts(message, at),
                usage=_usage(usage, at.at("output.usage")) if measured else None,
                time=fields.seconds(event.value.get("timestamp")),
            )
        )
    return turns


def _definitions(event: dict[str, Any], texts: _Texts) -> str:
    tools = [
        {name: texts.resolve(value) for name, value in tool.items()}
        for tool in fields.items(event, "tools")
        if isinstance(tool, dict)
    ]
    return fields.content_text(tools)


def _usage(usage: dict[str, Any], place: Place) -> Usage:
    """The parts of a usage object; ``total_tokens`` tells what a missing part was, and what includes what.

    Providers that report no cache leave its counters out. The total then shows that no part is missing: none was read
    or written apart from the input. Where the total shows that the cached part was inside the input, it stays there;
    where it shows that reasoning was outside the output, it is added.
    """
    names = ("input_tokens", "input_tokens_cache_read", "input_tokens_cache_write", "output_tokens", "total_tokens")
    fresh, cached, written, output, total = (fields.counter(usage, name, place) for name in names)
    reasoning = fields.counter(usage, "reasoning_tokens", place)
    prompt = None if fresh is None else fresh + (cached or 0) + (written or 0)
    if prompt is not None and output is not None and total is not None:
        if total != prompt + output and total == prompt + output + (reasoning or 0):
            output += reasoning or 0
        if total == prompt + output:
            cached, written = cached or 0, written or 0
        elif total == (fresh or 0) + output:
            prompt = fresh
    return fields.made_usage(
        place,
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_5m=written,
        cache_write_1h=None if written is None else 0,
        output_tokens=output,
        reasoning_tokens=reasoning,
    )


def _solved(sample: dict[str, Any]) -> bool | None:
    """The verdict of the only scorer."""
    scores = list(fields.record(sample, "scores").values())
    value = fields.record(scores[0]).get("value") if len(scores) == 1 else None
    if isinstance(value, str):
        return VERDICTS.get(value)
    return value == 1 if isinstance(value, (int, float)) and value in (0, 1) else None


IMPORTER = Importer(
    name="inspect_ai",
    title="Inspect AI log",
    convention="input_tokens, cache read and cache write exclude each other, output_tokens includes reasoning; "
    "per call",
    key="uuid of the model event",
    reuse="measured",
    reasoning="billed",
    detect=detect,
    read=read,
)
