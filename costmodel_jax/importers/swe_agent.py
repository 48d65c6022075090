"""SWE-agent trajectories (``.traj``): steps and a message history; usage only as totals of the run, so not per call.

Format: the trajectory files of ``SWE-agent/SWE-agent``. A step is a call. Its prompt is the ``query`` of the step, or
the ``messages`` saved after the step before it (both as the history processors left them, with old observations cut),
or else the part of ``history`` before its answer. ``model_stats`` holds totals only and is zero in replays.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.chat import Part, Turn
from costmodel_jax.importers.completion import completion_usage
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Kind, Run, Usage

__all__ = ["IMPORTER"]


def detect(source: Source) -> bool:
    """A history of messages that name their agent, or steps of action, observation and response."""
    first = source.first
    if not isinstance(first, dict) or not isinstance(first.get("history"), list):
        return False
    step, message = fields.items(first, "trajectory")[:1], fields.items(first, "history")[:1]
    steps = bool(step) and {"action", "observation", "response"} <= fields.record(step[0]).keys()
    return steps or (bool(message) and {"role", "content", "agent"} <= fields.record(message[0]).keys())


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every trajectory; a file that is a copy of another counts once."""
    runs: list[Run] = []
    seen: set[str] = set()
    for source in sources:
        try:
            document = source.document()
            mark = fields.digest(document)
            run = _run(document, source, options) if mark not in seen else None
            seen.add(mark)
        except InputError as error:
            options.skip("skipped_file", error)
        else:
            runs += [run] if run is not None else []
    return runs


def _run(document: Any, source: Source, options: Options) -> Run | None:
    place = Place(path=source.path)
    if not isinstance(document, dict):
        raise place.error(f"is {fields.describe(document)}; a trajectory is an object with a history")
    turns = _turns(document, place)
    if not turns:
        return None
    config = fields.record(document, "replay_config", "agent", "model")
    return Run(
        id=Path(source.path).stem,
        calls=chat.calls(turns, source, options),
        task=fields.text(document, "replay_config", "problem_statement", "id"),
        model=fields.text(config, "name"),
        format="swe_agent",
        evidence=chat.evidence(turns, shows_reasoning=False),
        notes=_notes(document, turns),
    )


def _turns(document: dict[str, Any], place: Place) -> list[Turn]:
    """The calls: one per step, or per answer of the history where there are no steps."""
    history = _History(fields.items(document, "history"), place.at("history"))
    steps = fields.items(document, "trajectory")
    if not steps:
        return [Turn(prompt=history.before(i), answer=history.parts[i]) for i in history.answers]
    matched = history.match([fields.text(step, "response") or "" for step in steps])
    turns: list[Turn] = []
    end = 0
    for i, step in enumerate(steps):
        at = place.at(f"trajectory[{i}]")
        if matched[i] is not None:
            end = matched[i] or 0
            prompt, answer = history.before(end), history.parts[end]
            end += 1
        else:
            # An answer that the history did not keep was still asked with all that stood there.
            end = next((j for j in history.answers if j >= end), len(history.parts))
            prompt, answer = history.before(end), _response(step)
        sent = _sent(steps, i, at)
        turns.append(Turn(prompt=prompt if sent is None else sent, answer=answer, usage=_usage(step, at)))
    return turns


class _History:
    """The messages of a history as parts, and where the agent's answers stand."""

    def __init__(self, messages: Sequence[Any], place: Place) -> None:
        self.parts: list[tuple[Part, ...]] = []
        self.answers: list[int] = []
        self.spoken: list[str] = []
        tools: dict[str, str] = {}
        for i, message in enumerate(messages):
            shown = fields.fact(message, "is_demo") is True
            user: Kind = "tool" if self.answers else "user"
            parts = chat.message_parts(message, place.at(f"[{i}]"), user=user, tools=tools)
            if shown:
                # A demonstration is part of the instructions, not of this run.
                parts = (Part(kind="system", text="\n".join(part.text for part in parts)),)
            elif message["role"] == "assistant":
                self.answers.append(i)
                self.spoken.append(fields.content_text(message.get("content")))
            self.parts.append(parts)

    def before(self, end: int) -> tuple[Part, ...]:
        """All parts before a message."""
        return tuple(part for parts in self.parts[:end] for part in parts)

    def match(self, responses: Sequence[str]) -> list[int | None]:
        """The message that holds each response; ``None`` for a response that the history did not keep."""
        found: list[int | None] = [None] * len(responses)
        blocks = difflib.SequenceMatcher(None, responses, self.spoken, autojunk=False).get_matching_blocks()
        for block in blocks:
            for k in range(block.size):
                found[block.a + k] = self.answers[block.b + k]
        if all(index is None for index in found) and len(self.answers) == len(responses):
            return list(self.answers)
        return found


def _response(step: Any) -> tuple[Part, ...]:
    """The answer of a step that the history does not hold."""
    said, action = fields.text(step, "response") or "", fields.text(step, "action") or ""
    parts = [Part(kind="assistant", text=said)]
    if action and action.strip() not in said:
        # The action of a tool call stands apart from what was said.
        parts.append(Part(kind="assistant", text=action, arguments_hash=fields.digest(action)))
    return tuple(parts)


def _sent(steps: Sequence[Any], i: int, place: Place) -> tuple[Part, ...] | None:
    """The messages really sent for a step, where the file has them."""
    query = fields.items(steps[i], "query")
    if query:
        return _flat(query, place.at("query"))
    if i and fields.items(steps[i - 1], "messages"):
        return _flat(fields.items(steps[i - 1], "messages"), place.at("messages"))
    own = fields.items(steps[i], "messages")
    answered = [j for j, message in enumerate(own) if fields.text(message, "role") == "assistant"]
    return _flat(own[: answered[-1]], place.at("messages")) if answered and not i else None


def _flat(messages: Sequence[Any], place: Place) -> tuple[Part, ...]:
    history = _History(messages, place)
    return history.before(len(history.parts))


def _usage(step: Any, place: Place) -> Usage | None:
    """Usage of a single call, which few forks of the tool write."""
    usage = fields.record(step, "usage") or fields.record(step, "extra_info", "usage")
    return completion_usage(usage, place.at("usage")) if usage else None


def _notes(document: dict[str, Any], turns: Sequence[Turn]) -> tuple[str, ...]:
    """What the run's own totals say, since they cannot be split over calls."""
    stats = fields.record(document, "info", "model_stats")
    sent, received, made = (stats.get(name) for name in ("tokens_sent", "tokens_received", "api_calls"))
    notes = []
    if isinstance(sent, int) and isinstance(received, int) and sent:
        notes.append(f"model_stats counts {sent} tokens sent and {received} received in the whole run")
    if isinstance(made, int) and made and made != len(turns):
        notes.append(f"model_stats counts {made} calls, the file holds {len(turns)} (errors are asked again)")
    return tuple(notes)


IMPORTER = Importer(
    name="swe_agent",
    title="SWE-agent trajectory",
    convention="no usage per call (model_stats has totals only): lengths are counted with a tokenizer",
    key="one step of the trajectory; one answer where a file has only a history",
    reuse="unknown",
    reasoning="unknown",
    detect=detect,
    read=read,
)
