"""Conversations and trajectories cut into examples at the boundaries of a context policy (Stage II)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from costmodel_jax.compaction import Compact
from remory_jax.data.boundaries import Boundary, policy_boundaries, recorded_boundaries
from remory_jax.data.examples import Example, Ids, join_ids
from remory_jax.data.problems import Problems, RefusedError
from remory_jax.data.records import Conversation, Passage, Record, Trajectory
from remory_jax.data.rendering import Renderer, TokenSegment

__all__ = ["SUMMARISE", "Cutting", "cut_records"]

SUMMARISE = (
    "Summarise everything above for somebody who will continue without it: facts, names, numbers, decisions and what "
    "is still open. Write the summary only."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting:
    """How conversations and trajectories are cut.

    Attributes:
      policy: compacts at ``trigger`` tokens; ``None`` takes the compactions that a run recorded, with their summaries.
      keep_task: the first user message stays in the prefix with system prompt and tools (REMORY, section 3).
      response: most tokens of a response; it ends there or at the next boundary.
      boundaries: most boundaries of one example; what earlier ones replaced joins its first history.
      instruction: what asks the actor for a summary.
    """

    policy: Compact | None = dataclasses.field(default_factory=lambda: Compact(8192))
    keep_task: bool = True
    response: int = 1024
    boundaries: int = 1
    instruction: str = SUMMARISE

    def __post_init__(self) -> None:
        check_positive(self, "response", "boundaries")


def cut_records(
    records: Iterable[Record], renderer: Renderer, problems: Problems, cutting: Cutting
) -> Iterator[Example]:
    """Stage II: conversations and trajectories, one example for each boundary."""
    request = renderer.request(cutting.instruction)
    for record in records:
        try:
            for name, segments, boundaries in _streams(record, renderer, cutting):
                if not boundaries:
                    problems.report("no_boundary", "compacts nothing; lower the trigger to use this record", id=name)
                for number in range(len(boundaries)):
                    try:
                        yield _example(name, record.id, segments, boundaries, number, cutting, request, problems)
                    except RefusedError as refused:
                        problems.report(refused.reason, str(refused), id=f"{name}#{number}")
        except RefusedError as refused:
            problems.report(refused.reason, str(refused), id=record.id)


def _streams(
    record: Record, renderer: Renderer, cutting: Cutting
) -> Iterator[tuple[str, list[TokenSegment], list[Boundary]]]:
    """Each session of a record: its name, segments and boundaries."""
    if isinstance(record, Passage):
        raise TypeError("passages are cut by reconstructions() or continuations()")
    if isinstance(record, Conversation):
        segments = renderer.conversation(record)
        yield record.id, segments, _boundaries(segments, cutting, None, renderer)
        return
    calls = record.run.calls
    if any(edit.cause == "rewind" for call in calls for edit in call.edits):
        raise RefusedError("several_streams", "the run rewinds; export the branch that was kept")
    starts = [0]
    session = calls[0].session
    for t, call in enumerate(calls):
        if call.session not in (None, session):
            session = call.session
            starts.append(t)
    if len(starts) > 1 and cutting.policy is None:
        raise RefusedError(
            "several_streams", "recorded compactions need a run of one session; name a policy, or split it"
        )
    whole = renderer.trajectory(record)
    for start, stop in zip(starts, [*starts[1:], len(calls)], strict=True):
        segments = [
            dataclasses.replace(segment, call=segment.call - start) for segment in whole if start <= segment.call < stop
        ]
        name = record.id if len(starts) == 1 else f"{record.id}@{start}"
        yield name, segments, _boundaries(segments, cutting, record, renderer)


def _boundaries(
    segments: Sequence[TokenSegment], cutting: Cutting, run: Trajectory | None, renderer: Renderer
) -> list[Boundary]:
    if cutting.policy is None:
        return [] if run is None else recorded_boundaries(segments, run, renderer)
    policy = cutting.policy
    if cutting.keep_task:
        task = next((i for i, segment in enumerate(segments) if segment.kind == "user" and segment.call == 0), -1)
        length = sum(len(segment.ids) for segment in segments[: task + 1])
        policy = dataclasses.replace(policy, keep_head=max(int(policy.keep_head), length))
    return policy_boundaries(segments, policy)


def _example(
    name: str,
    group: str,
    segments: Sequence[TokenSegment],
    boundaries: Sequence[Boundary],
    number: int,
    cutting: Cutting,
    request: Ids,
    problems: Problems,
) -> Example:
    here = boundaries[number]
    first = max(0, number + 1 - cutting.boundaries)
    histories = [join_ids([segments[i].ids for b in boundaries[: first + 1] for i in b.removed])]
    histories += [join_ids([segments[i].ids for i in b.removed]) for b in boundaries[first + 1 : number + 1]]
    given = [b.summary for b in boundaries[first : number + 1]]
    summaries = tuple(summary for summary in given if summary is not None)
    if len(summaries) < len(given):
        summaries = ()
    response, judged, cut_off = _response(segments, boundaries, number, cutting.response)
    if not judged:
        before = sum(len(segments[i].ids) for i in here.kept)
        raise RefusedError(
            "empty_response",
            f"no generated token within {cutting.response} of the boundary ({before} tokens were kept verbatim there); "
            "raise `response`",
        )
    if cut_off:
        problems.report("response_truncated", f"the answer was cut at {cutting.response} tokens", id=f"{name}#{number}")
    return Example(
        id=f"{name}#{number}",
        group=group,
        prefix=join_ids([segments[i].ids for i in here.head]),
        histories=tuple(histories),
        summaries=summaries,
        response=response,
        judged=judged,
        request=request,
    )


def _response(
    segments: Sequence[TokenSegment], boundaries: Sequence[Boundary], number: int, longest: int
) -> tuple[Ids, tuple[tuple[int, int], ...], bool]:
    """What follows a boundary up to the next one, cut to ``longest`` tokens and to its last judged one.

    Returns:
      Token ids, judged stretches, and whether the answer right behind the boundary was cut off.
    """
    here = boundaries[number]
    end = boundaries[number + 1].call if number + 1 < len(boundaries) else np.iinfo(np.int32).max
    following = [segments[i] for i in here.kept] + [s for s in segments if here.call <= s.call < end]
    parts: list[Ids] = []
    judged: list[tuple[int, int]] = []
    length, cut_off = 0, False
    for i, segment in enumerate(following):
        ids = segment.ids[: longest - length]
        if segment.output and i >= len(here.kept):
            cut_off |= segment.call == here.call and len(ids) < len(segment.ids)
            judged += [(length, length + len(ids))] if len(ids) else []
        parts.append(ids)
        length += len(ids)
    return join_ids(parts)[: judged[-1][1] if judged else 0], tuple(judged), cut_off


def check_positive(config: object, *names: str) -> None:
    """Refuse fields below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{type(config).__name__}.{name} = {getattr(config, name)}; it must be at least 1")
