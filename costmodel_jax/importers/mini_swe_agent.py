"""mini-swe-agent trajectories (``.traj.json``): messages whose answers carry the LiteLLM response, or bare messages.

Format: ``trajectory_format: mini-swe-agent-1``, or the plain list of messages that older versions saved. The usage of
an answer is ``extra.response.usage``. User messages after the first answer are observations of the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.chat import Turn
from costmodel_jax.importers.completion import completion_usage
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Run

__all__ = ["IMPORTER"]

ROLES = ("system", "user", "assistant", "tool")
EXIT = "exit"  # the role of the agent's own closing message


def detect(source: Source) -> bool:
    """A trajectory by its format mark, or a document that is a bare list of messages."""
    first = source.first
    if isinstance(first, dict):
        mark = fields.text(first, "trajectory_format") or ""
        told = mark.startswith("mini-swe-agent") or fields.text(first, "info", "mini_version") is not None
        return told and isinstance(first.get("messages"), list)
    bare = isinstance(first, list) and bool(first) and all(_is_bare(message) for message in first)
    return bare and any(message["role"] == "assistant" for message in first)


def _is_bare(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in (*ROLES, EXIT) and "content" in message


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every trajectory; a response that another file already holds counts once."""
    runs: list[Run] = []
    seen: set[str] = set()
    for source in sources:
        try:
            runs += _runs(source, options, seen)
        except InputError as error:
            options.skip("skipped_file", error)
    return runs


def _runs(source: Source, options: Options, seen: set[str]) -> list[Run]:
    document = source.document()
    messages = document if isinstance(document, list) else fields.items(document, "messages")
    place = Place(path=source.path, field="" if isinstance(document, list) else "messages")
    responses = [fields.record(message, "extra", "response") for message in messages]
    ids = {name for response in responses if (name := fields.text(response, "id"))}
    if ids and ids <= seen:
        options.report("skipped_file", place.error("holds only responses that another file holds too"))
        return []
    seen |= ids
    kept = [i for i, message in enumerate(messages) if fields.text(message, "role") != EXIT]
    turns = chat.transcript([messages[i] for i in kept], place, observations=True)
    answers = [i for i in kept if messages[i]["role"] == "assistant"]
    if any("usage" in response for response in responses):
        turns = _measured(turns, answers, responses, place, options)
    if not turns:
        return []
    named = fields.text(document, "info", "config", "model", "model_name")
    return [
        Run(
            id=source.name.removesuffix(".json").removesuffix(".traj") or Path(source.path).stem,
            calls=chat.calls(turns, source, options),
            task=fields.text(document, "instance_id"),
            model=named or next((name for answer in responses if (name := fields.text(answer, "model"))), None),
            format="mini_swe_agent",
            evidence=chat.evidence(turns, shows_reasoning=turns[0].usage is not None),
            notes=_notes(document, turns),
        )
    ]


def _measured(
    turns: Sequence[Turn], answers: Sequence[int], responses: Sequence[dict[str, Any]], place: Place, options: Options
) -> list[Turn]:
    """The turns with their usage; an answer without usage in a log that has usage is a fault."""
    measured = []
    for turn, i in zip(turns, answers, strict=True):
        at = place.at(f"[{i}].extra.response.usage")
        usage = fields.record(responses[i], "usage")
        if not usage:
            error = at.error("is missing, other answers have it; a missing count is never read as zero")
            options.skip("skipped_record", error)
            continue
        time = fields.seconds(responses[i].get("created"))
        measured.append(dataclasses.replace(turn, usage=completion_usage(usage, at), time=time))
    return measured


def _notes(document: Any, turns: Sequence[Turn]) -> tuple[str, ...]:
    made = fields.record(document, "info", "model_stats").get("api_calls")
    if isinstance(made, int) and made != len(turns):
        return (f"model_stats counts {made} calls to the model, the messages hold {len(turns)} answers",)
    return ()


IMPORTER = Importer(
    name="mini_swe_agent",
    title="mini-swe-agent trajectory",
    convention="LiteLLM usage of each response: prompt_tokens includes cached tokens, completion_tokens reasoning; "
    "older files have no usage",
    key="response id; one assistant message where there is none",
    reuse="measured",
    reasoning="billed",
    detect=detect,
    read=read,
)
