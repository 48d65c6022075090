"""Runs as long columns, one entry a segment and one a call: what `costmodel_jax.pack` pads into rectangles.

A segment of a run costs tens of nanoseconds here, because columns are filled by comprehensions over all runs and the
rest is arithmetic on columns. Only runs with recorded edits, whose replacements stand between the recorded segments,
are gone through one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from costmodel_jax.schema import KINDS, Call, Run, Segment

__all__ = ["Flat", "flatten", "slots"]

_KIND = {kind: number for number, kind in enumerate(KINDS)}
_USER = _KIND["user"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Flat:
    """Columns over all runs, run after run; named as in `costmodel_jax.RunBatch`.

    Attributes:
      segments, calls: how many each run has.
      tokens to recorded_end, offset: per segment; ``birth`` of a segment and all that is a call counts within its run.
      first, user, idle: per call.
      ids: token ids of all segments, or None where no segment has some; id_counts: how many each run has.
    """

    segments: np.ndarray
    calls: np.ndarray
    tokens: np.ndarray
    kind: np.ndarray
    call: np.ndarray
    output: np.ndarray
    birth: np.ndarray
    end: np.ndarray
    inserted: np.ndarray
    recorded_end: np.ndarray
    first: np.ndarray
    user: np.ndarray
    idle: np.ndarray
    offset: np.ndarray
    ids: np.ndarray | None
    id_counts: np.ndarray


def slots(run: Run) -> int:
    """Segments of a run, replacements of recorded edits included."""
    return sum(len(c.input) + len(c.output) + sum(e.segment is not None for e in c.edits) for c in run.calls)


def flatten(runs: Sequence[Run]) -> Flat:
    """Columns of at least one run."""
    all_calls = [call for run in runs for call in run.calls]
    calls = np.array([len(run.calls) for run in runs])
    parts = [part for call in all_calls for part in (call.input, call.output)]
    sizes = np.array([len(part) for part in parts])
    segments = [segment for part in parts for segment in part]

    run_of_call = np.repeat(np.arange(len(runs)), calls)
    start = np.cumsum(calls) - calls  # of a run among all calls
    number = np.arange(len(all_calls)) - start[run_of_call]  # of a call within its run
    first = _session_starts(all_calls, number)
    end = _session_ends(first, number, calls[run_of_call])

    half = np.repeat(np.arange(len(parts)), sizes)
    owner, output = half // 2, half % 2 == 1
    kind = np.array([_KIND[segment.kind] for segment in segments], np.int8)
    user = np.zeros(len(all_calls), np.bool_)
    user[owner[(kind == _USER) & ~output]] = True
    columns = {
        "tokens": np.array([segment.tokens for segment in segments], np.int64),
        "kind": kind,
        "call": number[owner],
        "output": output,
        "birth": number[owner] + output,
        "end": end[owner],
        "inserted": np.zeros(len(segments), np.bool_),
        "recorded_end": end[owner],
    }
    counts = np.bincount(run_of_call[owner], minlength=len(runs))
    edited = sorted({int(run_of_call[t]) for t, call in enumerate(all_calls) if call.edits})
    if edited:
        columns, counts, segments = _with_edits(runs, edited, columns, counts, segments, end, start)
    has_ids = [segment.ids is not None for segment in segments]
    offset, ids, id_counts = np.full(len(segments), -1), None, np.zeros(len(runs), np.int64)
    if any(has_ids):
        lengths = np.array([0 if segment.ids is None else len(segment.ids) for segment in segments])
        rows = np.repeat(np.arange(len(runs)), counts)
        id_counts = np.bincount(rows, lengths, len(runs)).astype(np.int64)
        before = np.cumsum(lengths) - lengths - (np.cumsum(id_counts) - id_counts)[rows]
        offset = np.where(has_ids, before, -1)
        ids = np.array([token for segment in segments for token in segment.ids or ()], np.int64)
    return Flat(
        segments=counts,
        calls=calls,
        first=first,
        user=user,
        idle=_idle_times(all_calls, first, number),
        offset=offset,
        ids=ids,
        id_counts=id_counts,
        **columns,
    )


def _session_starts(calls: Sequence[Call], number: np.ndarray) -> np.ndarray:
    """Index of the first call of each call's session, within its run."""
    opens = number == 0
    named = [call.session for call in calls]
    if any(session is not None for session in named):
        session: str | int | None = None
        for t, name in enumerate(named):
            session = name if number[t] == 0 else session
            opens[t] |= name is not None and name != session
            session = name if name is not None else session
    place = np.arange(len(number))
    first: np.ndarray = np.maximum.accumulate(np.where(opens, place, 0)) - (place - number)
    return first


def _session_ends(first: np.ndarray, number: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The first call of the next session, within its run; the number of calls where there is none."""
    opens = np.flatnonzero(first == number)
    ends = np.append(number[opens[1:]], 0)  # a run's first call opens a session too: there the run before has ended
    lengths = np.diff(np.append(opens, len(number)))
    ends = np.where(ends == 0, count[opens], ends)
    return np.repeat(ends, lengths)


def _idle_times(calls: Sequence[Call], first: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Seconds since the call before in the session; 0 at its start, NaN where unknown."""
    times = np.array([np.nan if call.time is None else call.time for call in calls], np.float64)
    since = times - np.append(np.nan, times[:-1])
    return np.where(first == number, np.where(np.isnan(times), np.nan, 0.0), since)


def _with_edits(
    runs: Sequence[Run],
    edited: Sequence[int],
    columns: dict[str, np.ndarray],
    counts: np.ndarray,
    segments: list[Segment],
    end: np.ndarray,
    start: np.ndarray,
) -> tuple[dict[str, np.ndarray], np.ndarray, list[Segment]]:
    """The columns with the recorded ends of edited runs, and their replacements in the places of what they replace."""
    counts = counts.copy()
    begins = np.cumsum(counts) - counts
    places: list[int] = []  # the recorded segment that each replacement stands before, over all runs
    put: list[_Replacement] = []
    recorded_end = columns["recorded_end"].copy()
    for i in edited:
        ends = end[start[i] : start[i] + len(runs[i].calls)].tolist()
        own, found = _replay_edits(runs[i], ends)
        recorded_end[begins[i] : begins[i] + counts[i]] = own
        places += [int(begins[i]) + replacement.start for replacement in found]
        put += found
        counts[i] += len(found)
    values: dict[str, list[int] | list[bool]] = {
        "tokens": [each.segment.tokens for each in put],
        "kind": [_KIND[each.segment.kind] for each in put],
        "call": [each.call for each in put],
        "output": [False] * len(put),
        "birth": [each.call for each in put],
        "end": [each.until for each in put],
        "inserted": [True] * len(put),
        "recorded_end": [each.end for each in put],
    }
    merged = {
        name: np.insert(recorded_end if name == "recorded_end" else column, places, values[name])
        for name, column in columns.items()
    }
    recorded, added = np.empty(len(segments), object), np.empty(len(put), object)
    recorded[:], added[:] = segments, [each.segment for each in put]
    return merged, counts, np.insert(recorded, places, added).tolist()


@dataclasses.dataclass
class _Replacement:
    """What a recorded edit put in the place of segments ``start`` to ``stop``, shown in calls ``call`` to ``end``."""

    start: int
    stop: int
    segment: Segment
    call: int
    end: int
    until: int  # the end of its session


def _replay_edits(run: Run, ends: Sequence[int]) -> tuple[list[int], list[_Replacement]]:
    """The call from which each recorded segment is gone, and replacements in rendered order."""
    recorded = [ends[t] for t, call in enumerate(run.calls) for _ in range(len(call.input) + len(call.output))]
    replacements: list[_Replacement] = []
    for t, call in enumerate(run.calls):
        for edit in call.edits:
            for number in range(edit.start, edit.stop):
                recorded[number] = min(recorded[number], t)
            for earlier in replacements:
                if edit.start <= earlier.start and earlier.stop <= edit.stop:
                    earlier.end = min(earlier.end, t)
            if edit.segment is not None:
                replacements.append(_Replacement(edit.start, edit.stop, edit.segment, t, ends[t], ends[t]))
    return recorded, sorted(replacements, key=lambda each: each.start)  # later ones stand behind earlier ones
