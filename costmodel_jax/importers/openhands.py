"""OpenHands event lists and the ``output.jsonl`` of its evaluation runs.

Format: an event is an action or an observation. A model's response is attached as ``tool_call_metadata.model_response``
to every action it asked for and to every observation that answers one, so the response id is what makes a call. In
``output.jsonl`` (one run a line) ``metrics.token_usages`` has one entry per call and is preferred. Usage is LiteLLM's:
``prompt_tokens`` includes cache reads and writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.assemble import Observation, Piece
from costmodel_jax.importers.chat import Count, Part
from costmodel_jax.importers.completion import completion_usage
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.pieces import unanswered_note
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.importers.threads import Thread, count_once, runs_of
from costmodel_jax.schema import Run, Usage

__all__ = ["IMPORTER"]

# Actions of the agent's side that no model wrote, and observations that no prompt shows.
NOT_ANSWERS = (
    "system",
    "recall",
    "condensation",
    "condensation_request",
    "change_agent_state",
    "loop_recovery",
    "null",
)
NOT_SHOWN = ("agent_state_changed", "null", "agent_thought", "user_rejected_state")


def detect(source: Source) -> bool:
    """Events, or runs with a history of events."""
    first = source.first
    if isinstance(first, list):
        first = first[0] if first else None
    return _is_event(first) or _is_run(first)


def _is_event(value: Any) -> bool:
    acts = isinstance(value, dict) and ("action" in value or "observation" in value)
    return acts and "id" in value and fields.text(value, "source") in ("agent", "user", "environment")


def _is_run(value: Any) -> bool:
    events = _flat(fields.items(value, "history"))
    return bool(events) and _is_event(events[0]) and isinstance(value.get("instance_id"), (str, int))


def _flat(history: Sequence[Any]) -> list[Any]:
    """Events; older versions paired every action with its observation."""
    return [event for entry in history for event in (entry if isinstance(entry, list) else [entry])]


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every run; a response that occurs in two files counts once."""
    threads: list[Thread] = []
    for source in sources:
        events: list[Any] = []
        try:
            for number, (line, value) in enumerate(source.values(options)):
                if not _is_run(value):
                    events.append(value)
                    continue
                name = fields.text(value, "instance_id") or f"{Path(source.path).stem}/{value['instance_id']}"
                place = Place(path=source.path, line=line, field="" if line is not None else f"[{number}]")
                try:
                    threads += _thread(_flat(value["history"]), value, name, place, _counter(options, source))
                except InputError as error:
                    options.skip("skipped_run", error)
            if events:
                place = Place(path=source.path)
                threads += _thread(events, {}, Path(source.path).stem, place, _counter(options, source))
        except InputError as error:
            options.skip("skipped_file", error)
    count_once(threads)
    return runs_of(threads, "openhands", options)


def _counter(options: Options, source: Source) -> Count:
    return chat.counting(options, source)


@dataclasses.dataclass
class _Reader:
    """The walk over the events of one run.

    Attributes:
      thread: what it adds calls to.
      queue: usage of every call, in order, where the run has a list of them.
      visible: ids of the responses that the events show.
      count: the tokenizer, for a run without any usage.
      pending: what entered the context since the last call.
      compacted: a condensation came since the last call.
      silent: answers that are no calls because nothing measured them.
    """

    thread: Thread
    queue: list[tuple[str, Usage]]
    visible: set[str]
    count: Count | None
    pending: list[Piece] = dataclasses.field(default_factory=list)
    compacted: bool = False
    silent: int = 0

    def call(self, key: object, usage: Usage | None, answer: Sequence[Part], time: float | None) -> None:
        """Add a call."""
        output = [part.piece(self.count) for part in answer]
        observation = Observation(
            usage=usage, input=tuple(self.pending), output=output, time=time, compacted=self.compacted
        )
        self.thread.keys.append(str(key))
        self.thread.observations.append(observation)
        self.pending, self.compacted = [], False

    def unseen(self, until: str | None = None) -> None:
        """Add the calls that only the list of usages shows, up to the one that comes next."""
        while self.queue and self.queue[0][0] != until and self.queue[0][0] not in self.visible:
            name, usage = self.queue.pop(0)
            self.call(name, usage, (), None)

    def show(self, part: Part) -> None:
        """Add to the next prompt."""
        self.pending.append(part.piece(self.count))


def _thread(events: Sequence[Any], run: dict[str, Any], name: str, place: Place, count: Count) -> list[Thread]:
    """The thread of calls of one run."""
    responses = [fields.record(event, "tool_call_metadata", "model_response") for event in events]
    at = place.at("metrics.token_usages")
    queue = [
        (fields.text(entry, "response_id") or f"{name}#{i}", _listed(fields.record(entry), at.at(f"[{i}]")))
        for i, entry in enumerate(fields.items(run, "metrics", "token_usages"))
    ]
    queue = list(dict(queue).items())
    measured = bool(queue) or any(fields.record(response, "usage") for response in responses)
    model = fields.text(run, "metadata", "llm_config", "model")
    thread = Thread(
        id=name,
        path=place.path,
        model=model or next((told for answer in responses if (told := fields.text(answer, "model"))), None),
        task=fields.text(run, "instance_id"),
        solved=next((found for found in _verdicts(run) if found is not None), None),
    )
    reader = _Reader(
        thread=thread,
        queue=queue,
        visible={told for event, answer in zip(events, responses, strict=True) if (told := _key(event, answer))},
        count=None if measured else count,
    )
    thoughts = _walk(reader, events, responses, dict(queue), place)
    reader.unseen()
    thread.reasoning_shown = thoughts if measured else None
    if not thoughts:
        # Reasoning that no response shows cannot be sent again by a client of chat completions.
        thread.observations = [dataclasses.replace(call, resends_reasoning=False) for call in thread.observations]
    if reader.silent:
        thread.notes.append(f"answers without usage: {reader.silent}; they are no calls, their texts count as input")
    waiting = sum(piece.kind == "user" for piece in reader.pending)
    if waiting:
        thread.notes.append(unanswered_note(waiting))
    thread.notes += _totals(run, events, thread)
    return [thread] if thread.observations else []


def _walk(
    reader: _Reader, events: Sequence[Any], responses: Sequence[dict[str, Any]], listed: dict[str, Usage], place: Place
) -> bool:
    """Add the calls that the events show; true if any answer holds reasoning."""
    last: dict[str, Usage] = dict(listed)
    for i, (event, response) in enumerate(zip(events, responses, strict=True)):
        told, usage = _key(event, response), fields.record(response, "usage")
        if told and usage and told not in listed:
            at = place.at(f"[{i}].tool_call_metadata.model_response.usage")
            last[told] = completion_usage(usage, at)
    done: set[str] = set()
    thoughts = False
    if not any(fields.text(event, "action") == "system" for event in events):
        reader.show(Part(kind="system"))
    for event, response in zip(events, responses, strict=True):
        told = _key(event, response)
        acted, time = fields.text(event, "action"), fields.seconds(fields.record(event).get("timestamp"))
        if told in last and told is not None:
            if told not in done:
                answer = _response(response)
                thoughts = thoughts or any(part.kind == "reasoning" for part in answer)
                reader.unseen(told)
                reader.queue = [entry for entry in reader.queue if entry[0] != told]
                reader.call(told, last[told], answer, time)
                done.add(told)
            if acted is not None:
                continue
        elif acted is not None and fields.text(event, "source") == "agent" and acted not in NOT_ANSWERS:
            _answer(reader, event, time)
            continue
        for part in _shown(event):
            reader.show(part)
        reader.compacted = reader.compacted or acted == "condensation"
    return thoughts


def _key(event: Any, response: dict[str, Any]) -> str | None:
    """What makes a call: the response's id, or where it has none the tool call it answered with."""
    return fields.text(response, "id") or fields.text(event, "tool_call_metadata", "tool_call_id")


def _answer(reader: _Reader, event: Any, time: float | None) -> None:
    """An action of the agent without a response attached."""
    texts = fields.record(event, "args")
    part = Part(kind="assistant", text=fields.content_text(texts), arguments_hash=fields.digest(texts))
    if reader.count is not None:
        reader.call(f"{reader.thread.id}/{len(reader.thread.keys)}", None, (part,), time)
    elif reader.queue and reader.queue[0][0] not in reader.visible:
        name, usage = reader.queue.pop(0)
        reader.call(name, usage, (part,), time)
    else:
        reader.silent += 1
        reader.show(part)


def _response(response: dict[str, Any]) -> tuple[Part, ...]:
    """What a model's response generated."""
    choice = next(iter(fields.items(response, "choices")), None)
    message = {**fields.record(choice, "message"), "role": "assistant"}
    return chat.message_parts(message, Place(path=""))


def _shown(event: Any) -> Iterator[Part]:
    """What an event adds to the next prompt."""
    acted, observed = fields.text(event, "action"), fields.text(event, "observation")
    arguments = fields.record(event, "args")
    if acted == "system":
        yield Part(kind="system", text=fields.content_text(arguments.get("content")))
        if fields.items(arguments, "tools"):
            yield Part(kind="tools", text=fields.content_text(arguments["tools"]))
    elif acted == "condensation":
        yield Part(kind="summary", text=fields.text(arguments, "summary") or "")
    elif acted == "message" and fields.text(event, "source") == "user":
        yield Part(kind="user", text=fields.text(arguments, "content") or "")
    elif observed is not None and observed not in NOT_SHOWN:
        text = fields.content_text(fields.record(event).get("content"))
        if observed == "recall":
            # Workspace facts that the client adds on its own, whoever it says they come from.
            yield Part(kind="system", text=text)
            return
        failed = observed == "error" or fields.fact(event, "success") is False
        name = fields.text(event, "tool_call_metadata", "function_name")
        yield Part(kind="tool", text=text, name=name, error=failed, result_hash=fields.digest(text))


def _listed(entry: dict[str, Any], place: Place) -> Usage:
    """An entry of ``metrics.token_usages``."""
    return fields.made_usage(
        place,
        prompt_tokens=fields.counter(entry, "prompt_tokens", place),
        cached_tokens=fields.counter(entry, "cache_read_tokens", place),
        cache_write_5m=fields.counter(entry, "cache_write_tokens", place),
        cache_write_1h=None if entry.get("cache_write_tokens") is None else 0,
        output_tokens=fields.counter(entry, "completion_tokens", place),
        reasoning_tokens=fields.counter(entry, "reasoning_tokens", place),
    )


def _verdicts(run: dict[str, Any]) -> Iterator[bool | None]:
    for path in (("report",), ("test_result", "report"), ("test_result",), ()):
        yield fields.fact(fields.record(run, *path), "resolved")


def _totals(run: dict[str, Any], events: Sequence[Any], thread: Thread) -> list[str]:
    """Where the tool's own running total differs, calls are missing here."""
    totals = [fields.record(event, "llm_metrics", "accumulated_token_usage") for event in events]
    totals.append(fields.record(run, "metrics", "accumulated_token_usage"))
    told = next((found for total in reversed(totals) if isinstance(found := total.get("prompt_tokens"), int)), None)
    counted = sum(call.usage.prompt_tokens or 0 for call in thread.observations if call.usage is not None)
    if told is None or told == counted:
        return []
    return [f"the tool's own total is {told} prompt tokens, the calls here add up to {counted}"]


IMPORTER = Importer(
    name="openhands",
    title="OpenHands events or output.jsonl",
    convention="LiteLLM usage of each response: prompt_tokens includes cache reads and writes, completion_tokens "
    "reasoning; writes have no lifetime and are taken as 5 minutes",
    key="model_response.id (metrics.token_usages[].response_id)",
    reuse="measured",
    reasoning="billed",
    detect=detect,
    read=read,
)
