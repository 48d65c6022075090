"""ATIF trajectories (Agent Trajectory Interchange Format, v1.x) and the chat export that Harbor writes beside them.

Format: Harbor RFC 0001, "Agent Trajectory Interchange Format (ATIF) Specification". A trajectory is a list of steps;
an agent step with metrics is a model call. ``metrics.prompt_tokens`` counts all input, cached or not,
``metrics.cached_tokens`` is a part of it, ``metrics.completion_tokens`` includes reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers import atif_links as links
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.assemble import Observation, Piece, assemble
from costmodel_jax.importers.atif_export import export_runs, is_export
from costmodel_jax.importers.atif_links import Trajectory, documents, references
from costmodel_jax.importers.chat import Part
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.pieces import unanswered_note
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Evidence, Kind, Run, Usage

__all__ = ["IMPORTER"]

REASONING = ("reasoning_tokens", "reasoning_output_tokens")
WRITTEN = ("cache_creation_input_tokens", "cache_write_tokens")


def detect(source: Source) -> bool:
    """A trajectory by its schema version, or rows of a chat export."""
    first = source.first
    if isinstance(first, list):
        first = first[0] if first else None
    return _is_trajectory(first) or is_export(first)


def _is_trajectory(value: Any) -> bool:
    return (fields.text(value, "schema_version") or "").startswith("ATIF-")


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every trajectory once; helpers' trajectories become runs of their own with their parent's id."""
    found: list[Trajectory] = []
    exported: list[tuple[Source, list[Any]]] = []
    for source in sources:
        rows = []
        try:
            for line, value in source.values(options):
                if _is_trajectory(value):
                    found += documents(value, source, Place(path=source.path, line=line))
                elif is_export(value):
                    rows.append(value)
                else:
                    error = Place(path=source.path, line=line).error("is neither a trajectory nor a row of an export")
                    options.skip("skipped_record", error)
        except InputError as error:
            options.skip("skipped_file", error)
        if rows:
            exported.append((source, rows))
    found = list({fields.digest(trajectory.value): trajectory for trajectory in reversed(found)}.values())[::-1]
    runs = []
    parents, chains = links.parents(found), links.chains(found)
    for trajectory in found:
        try:
            run = _run(trajectory, parents.get(id(trajectory)), chains.get(id(trajectory)), options)
        except InputError as error:
            options.skip("skipped_run", error)
        else:
            runs += [run] if run is not None else []
    folders = {Path(trajectory.source.path).parent for trajectory in found}
    for source, rows in exported:
        if Path(source.path).parent in folders:
            twice = InputError("a chat export of the trajectories beside it: the same calls again", path=source.path)
            options.report("skipped_file", twice)
        else:
            runs += export_runs(source, rows, options)
    return runs


def _run(trajectory: Trajectory, parent: str | None, chain: str | None, options: Options) -> Run | None:
    value, place = trajectory.value, trajectory.place
    steps = fields.items(value, "steps")
    usages = [_usage(step, place.at(f"steps[{i}]")) for i, step in enumerate(steps)]
    measured = any(usage is not None for usage in usages)
    count = None if measured else chat.counting(options, trajectory.source)
    pending: list[Piece] = []
    definitions = fields.items(value, "agent", "tool_definitions")
    if definitions:
        pending.append(Part(kind="tools", text=fields.content_text(definitions)).piece(count))
    observations: list[Observation] = []
    compacted, thoughts, silent = False, False, 0
    for i, (step, usage) in enumerate(zip(steps, usages, strict=True)):
        origin = fields.text(step, "source")
        if origin not in ("system", "user", "agent"):
            raise place.at(f"steps[{i}].source").error("is not one of system, user, agent")
        copied = fields.fact(step, "is_copied_context") is True
        if origin == "agent":
            answer, results = _answer(step)
            thoughts = thoughts or any(part.kind == "reasoning" for part in answer)
            if copied or (measured and usage is None):
                silent += not copied
                pending += [part.piece(count) for part in answer if part.kind != "reasoning"]
            else:
                output = [part.piece(count) for part in answer]
                time = fields.seconds(fields.record(step).get("timestamp"))
                observations.append(
                    Observation(usage=usage, input=pending, output=output, time=time, compacted=compacted)
                )
                pending, compacted = [], False
            pending += [part.piece(count) for part in results]
        elif origin == "system" and references(step):
            # The step reports what the client did; its helpers' calls are runs of their own.
            compacted = compacted or _summarises(references(step))
        else:
            # A parent's task that a helper was handed is no user turn of the helper's.
            kind: Kind = "user" if origin == "user" and not copied else "system"
            pending.append(Part(kind=kind, text=fields.content_text(step.get("message"))).piece(count))
    if not observations:
        return None
    return Run(
        id=trajectory.id,
        calls=assemble(observations, path=place.path),
        chain=chain,
        model=fields.text(value, "agent", "model_name") or _model(steps),
        format="atif",
        parent=parent,
        evidence=_evidence(steps, observations, thoughts),
        notes=tuple(_notes(value, observations, silent, sum(piece.kind == "user" for piece in pending))),
    )


def _answer(step: Any) -> tuple[list[Part], list[Part]]:
    """What an agent step generated, and the results that followed."""
    message = {
        "role": "assistant",
        "content": fields.content_text(fields.record(step).get("message")),
        "reasoning_content": fields.text(step, "reasoning_content"),
        "tool_calls": [
            {"id": fields.text(call, "tool_call_id"), "name": fields.text(call, "function_name"), **_arguments(call)}
            for call in fields.items(step, "tool_calls")
        ],
    }
    tools: dict[str, str] = {}
    answer = list(chat.message_parts(message, Place(path=""), tools=tools))
    names = [part.name for part in answer if part.name is not None]
    results = []
    for i, result in enumerate(fields.items(step, "observation", "results")):
        text = fields.content_text(fields.record(result).get("content"))
        called = tools.get(fields.text(result, "source_call_id") or "")
        name = called or (names[i] if i < len(names) else None)
        results.append(Part(kind="tool", text=text, name=name, result_hash=fields.digest(text)))
    return answer, results


def _arguments(call: Any) -> dict[str, Any]:
    return {"arguments": fields.record(call).get("arguments")}


def _usage(step: Any, place: Place) -> Usage | None:
    """The usage of a step that is a model call with metrics."""
    metrics = fields.record(step, "metrics")
    if fields.text(step, "source") != "agent" or fields.fact(step, "is_copied_context"):
        return None
    if fields.record(step).get("llm_call_count") == 0:
        return None
    at = place.at("metrics")
    prompt = fields.counter(metrics, "prompt_tokens", at)
    output = fields.counter(metrics, "completion_tokens", at)
    if prompt is None and output is None:
        return None
    extra = fields.record(metrics, "extra")
    # Writers leave a counter out when it is zero, and the format has none for cache writes.
    written = [fields.counter(extra, name, at.at("extra")) for name in WRITTEN]
    return fields.made_usage(
        at,
        prompt_tokens=prompt,
        cached_tokens=fields.counter(metrics, "cached_tokens", at) or 0,
        cache_write_5m=next((count for count in written if count), 0),
        cache_write_1h=0,
        output_tokens=output,
        reasoning_tokens=next(
            (count for name in REASONING if (count := fields.counter(extra, name, at.at("extra"))) is not None), None
        ),
    )


def _summarises(references: Sequence[dict[str, Any]]) -> bool:
    names = ("trajectory_path", "trajectory_id", "session_id")
    return any("summar" in (fields.text(ref, name) or "").lower() for ref in references for name in names)


def _model(steps: Sequence[Any]) -> str | None:
    return next((name for step in steps if (name := fields.text(step, "model_name"))), None)


def _evidence(steps: Sequence[Any], observations: Sequence[Observation], thoughts: bool) -> Evidence:
    usages = [observation.usage for observation in observations]
    if usages[0] is None:
        return Evidence(lengths="modelled", reasoning="observed")
    stated = any(fields.record(step, "metrics").get("cached_tokens") is not None for step in steps)
    made = fields.evidence(usages, reasoning_shown=thoughts)
    return made if stated else Evidence(lengths=made.lengths, reasoning=made.reasoning)


def _notes(value: dict[str, Any], observations: Sequence[Observation], silent: int, waiting: int) -> list[str]:
    notes = []
    if silent:
        notes.append(f"agent steps without metrics: {silent}; they are no calls, their texts count as input")
    if waiting:
        notes.append(unanswered_note(waiting))
    total = fields.record(value, "final_metrics").get("total_prompt_tokens")
    counted = sum((call.usage.prompt_tokens or 0) if call.usage is not None else 0 for call in observations)
    if isinstance(total, int) and observations[0].usage is not None and total != counted:
        notes.append(
            f"final_metrics counts {total} prompt tokens, the steps {counted}: the rest belongs to helpers, to another "
            "part of the session, or to calls that are no steps"
        )
    return notes


IMPORTER = Importer(
    name="atif",
    title="ATIF (Harbor) trajectory",
    convention="prompt_tokens includes cached tokens, completion_tokens includes reasoning; per call",
    key="one agent step with metrics that is not copied context; equal documents count once",
    reuse="measured",
    reasoning="unknown",
    detect=detect,
    read=read,
)
