"""Runs as tensors: the padded calls and segments that every policy and cache rule works on.

Segments lie in one row per run in the order in which prompts render them. A segment is shown from the call of its
``birth`` on, so a policy only has to say when it stops being shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from costmodel_jax.errors import CostModelError
from costmodel_jax.pytree import pytree
from costmodel_jax.schema import KINDS, Call, Run, Segment

__all__ = ["Array", "RunBatch", "bucket", "buckets", "pack"]

Array = jax.Array | np.ndarray
NEVER = np.int32(2**31 - 1)


@pytree(static=("has_time", "longest"))
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunBatch:
    """Runs packed into arrays; a pytree whose leaves lead with ``runs``. Index away that axis for a single run.

    Attributes:
      tokens: length of each segment; 0 where padded.
      kind: index into ``schema.KINDS``.
      call: the call that brought or generated the segment.
      output: whether the call generated it.
      birth: first call whose prompt can show it (``call`` for input, ``call + 1`` for output).
      end: first call of the next session; nothing is shown from there on.
      inserted: replacements made by recorded edits, which only ``AsRecorded`` shows.
      recorded_end: the call from which the recorded client no longer showed it.
      mask: which calls exist.
      first: index of the first call of each call's session.
      user: whether the call's input holds a user message.
      idle: seconds since the previous call of the session (0 at its start, NaN where unknown).
      reasoning_known: whether the run's reasoning lengths are known.
      offset: start of the segment's token ids in ``ids``; -1 where it has none.
      ids: the token ids of all segments, or ``None`` when no segment of any run has some.
      has_time: every call has a time.
      longest: upper bound on a prompt, in tokens; 0 when there are no ids (only they need it).
    """

    tokens: Int[Array, "*runs segments"]
    kind: Int[Array, "*runs segments"]
    call: Int[Array, "*runs segments"]
    output: Bool[Array, "*runs segments"]
    birth: Int[Array, "*runs segments"]
    end: Int[Array, "*runs segments"]
    inserted: Bool[Array, "*runs segments"]
    recorded_end: Int[Array, "*runs segments"]
    mask: Bool[Array, "*runs calls"]
    first: Int[Array, "*runs calls"]
    user: Bool[Array, "*runs calls"]
    idle: Float[Array, "*runs calls"]
    reasoning_known: Bool[Array, "*runs"]
    offset: Int[Array, "*runs segments"] | None
    ids: Int[Array, "*runs ids"] | None
    has_time: bool
    longest: int

    @property
    def calls(self) -> int:
        """Length of the calls axis, padding included."""
        return int(self.mask.shape[-1])

    def of_kind(self, kind: str) -> Bool[Array, "*runs segments"]:
        """Mask of the segments of a kind."""
        return self.kind == np.int8(KINDS.index(kind))

    @property
    def reasoning(self) -> Bool[Array, "*runs segments"]:
        """Mask of generated reasoning, which is what reasoning policies hide."""
        return self.output & self.of_kind("reasoning")


def bucket(size: int) -> int:
    """The padded length for ``size``: the next of 8, 12, 16, 24, 32, 48, ... so that few shapes are ever compiled."""
    power = 8
    while power < size:
        if power + power // 2 >= size:
            return power + power // 2
        power *= 2
    return power


def buckets(runs: Sequence[Run]) -> list[list[int]]:
    """Indices of ``runs`` grouped by padded shape, so that a long run does not pad all the short ones."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, run in enumerate(runs):
        slots = sum(len(c.input) + len(c.output) + sum(e.segment is not None for e in c.edits) for c in run.calls)
        groups.setdefault((bucket(len(run.calls)), bucket(slots)), []).append(i)
    return [groups[shape] for shape in sorted(groups)]


def pack(runs: Sequence[Run], *, calls: int | None = None, segments: int | None = None) -> RunBatch:
    """Pack runs into a ``RunBatch`` of NumPy arrays.

    Args:
      runs: at least one run.
      calls, segments: lengths of the padded axes; by default the bucket that holds the longest run.

    Raises:
      CostModelError: for an empty list, axes that are too short, or a run of 2**31 tokens or more.
    """
    if not runs:
        raise CostModelError("pack needs at least one run")
    rows = [_Row(run) for run in runs]
    calls = _axis("calls", calls, max(len(row.run.calls) for row in rows))
    segments = _axis("segments", segments, max(len(row.segments) for row in rows))
    shape = (len(rows), segments)

    def per_segment(name: str, dtype: type, fill: int) -> np.ndarray:
        return _pad([getattr(row, name) for row in rows], shape, dtype, fill)

    def per_call(name: str, dtype: type, fill: int | float) -> np.ndarray:
        return _pad([getattr(row, name) for row in rows], (len(rows), calls), dtype, fill)

    tokens = per_segment("tokens", np.int64, 0)
    for row, total in zip(rows, tokens.sum(axis=1), strict=True):
        if total >= 2**31:
            raise CostModelError(f"run {row.run.id!r} holds {total:,} tokens; counts are exact below {2**31:,}")
    with_ids = any(row.ids for row in rows)
    return RunBatch(
        tokens=tokens.astype(np.int32),
        kind=per_segment("kind", np.int8, 0),
        call=per_segment("call", np.int32, 0),
        output=per_segment("output", np.bool_, False),
        birth=per_segment("birth", np.int32, int(NEVER)),
        end=per_segment("end", np.int32, 0),
        inserted=per_segment("inserted", np.bool_, False),
        recorded_end=per_segment("recorded_end", np.int32, 0),
        mask=per_call("mask", np.bool_, False),
        first=per_call("first", np.int32, 0),
        user=per_call("user", np.bool_, False),
        idle=per_call("idle", np.float32, 0.0),
        reasoning_known=np.array([row.run.evidence.reasoning != "unknown" for row in rows]),
        offset=per_segment("offset", np.int32, -1) if with_ids else None,
        ids=_pad([row.ids for row in rows], (len(rows), bucket(max(len(row.ids) for row in rows))), np.int32, 0)
        if with_ids
        else None,
        has_time=not any(np.isnan(row.idle).any() for row in rows),
        longest=bucket(int(tokens.sum(axis=1).max())) if with_ids else 0,
    )


def _axis(name: str, asked: int | None, needed: int) -> int:
    if asked is None:
        return bucket(needed)
    if asked < needed:
        raise CostModelError(f"{name}={asked} is shorter than the longest run, which has {needed} {name}")
    return asked


def _pad(rows: Sequence[Sequence[object]], shape: tuple[int, int], dtype: type, fill: int | float) -> np.ndarray:
    padded: np.ndarray = np.full(shape, fill, dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


class _Row:
    """One run as flat lists, replacements of recorded edits in their places."""

    def __init__(self, run: Run) -> None:
        self.run = run
        count = len(run.calls)
        self.mask = [True] * count
        self.user = [any(segment.kind == "user" for segment in call.input) for call in run.calls]
        self.first = _session_starts(run.calls)
        self.idle = _idle_times(run.calls, self.first)
        ends = [count] * count
        for t in range(count - 2, -1, -1):
            ends[t] = ends[t + 1] if self.first[t + 1] == self.first[t] else t + 1
        recorded, inserted = _replay_edits(run, ends)
        self.segments: list[Segment] = []
        self.kind: list[int] = []
        self.call: list[int] = []
        self.output: list[bool] = []
        self.birth: list[int] = []
        self.end: list[int] = []
        self.inserted: list[bool] = []
        self.recorded_end: list[int] = []
        for number, (call, output, segment) in enumerate(_numbered(run.calls)):
            for put in inserted.get(number, ()):
                self._add(put.segment, put.call, False, put.call, ends[put.call], True, put.end)
            self._add(segment, call, output, call + output, ends[call], False, recorded[number])
        self.tokens = [segment.tokens for segment in self.segments]
        self.offset: list[int] = []
        self.ids: list[int] = []
        for segment in self.segments:
            self.offset.append(-1 if segment.ids is None else len(self.ids))
            self.ids += segment.ids or ()

    def _add(
        self, segment: Segment, call: int, output: bool, birth: int, end: int, inserted: bool, recorded_end: int
    ) -> None:
        self.segments.append(segment)
        self.kind.append(KINDS.index(segment.kind))
        self.call.append(call)
        self.output.append(output)
        self.birth.append(birth)
        self.end.append(end)
        self.inserted.append(inserted)
        self.recorded_end.append(recorded_end)


def _numbered(calls: Sequence[Call]) -> Iterator[tuple[int, bool, Segment]]:
    """Recorded segments in their numbering, with their call and whether it generated them."""
    for t, call in enumerate(calls):
        for segment in call.input:
            yield t, False, segment
        for segment in call.output:
            yield t, True, segment


def _session_starts(calls: Sequence[Call]) -> list[int]:
    starts: list[int] = []
    session = calls[0].session
    for t, call in enumerate(calls):
        new = t == 0 or (call.session is not None and call.session != session)
        session = call.session if call.session is not None else session
        starts.append(t if new else starts[-1])
    return starts


def _idle_times(calls: Sequence[Call], first: Sequence[int]) -> list[float]:
    idle = []
    for t, call in enumerate(calls):
        if first[t] == t:
            idle.append(float("nan") if call.time is None else 0.0)
        else:
            before = calls[t - 1].time
            idle.append(float("nan") if call.time is None or before is None else call.time - before)
    return idle


@dataclasses.dataclass
class _Replacement:
    """What a recorded edit put in the place of segments ``start`` to ``stop``, shown in calls ``call`` to ``end``."""

    start: int
    stop: int
    segment: Segment
    call: int
    end: int


def _replay_edits(run: Run, ends: Sequence[int]) -> tuple[list[int], dict[int, list[_Replacement]]]:
    """The call from which each recorded segment is gone, and the replacements by the segment they stand before."""
    recorded = [ends[call] for call, _, _ in _numbered(run.calls)]
    replacements: list[_Replacement] = []
    for t, call in enumerate(run.calls):
        for edit in call.edits:
            for number in range(edit.start, edit.stop):
                recorded[number] = min(recorded[number], t)
            for earlier in replacements:
                if edit.start <= earlier.start and earlier.stop <= edit.stop:
                    earlier.end = min(earlier.end, t)
            if edit.segment is not None:
                replacements.append(_Replacement(edit.start, edit.stop, edit.segment, t, ends[t]))
    places: dict[int, list[_Replacement]] = {}
    for replacement in replacements:
        places.setdefault(replacement.start, []).append(replacement)
    return recorded, places
