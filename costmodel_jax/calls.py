"""Runs as tensors: the padded calls and segments that every policy and cache rule works on.

Segments lie in one row per run in the order in which prompts render them. A segment is shown from the call of its
``birth`` on, so a policy only has to say when it stops being shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from costmodel_jax.errors import CostModelError
from costmodel_jax.flattening import flatten, slots
from costmodel_jax.pytree import pytree
from costmodel_jax.schema import KINDS, Run

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
        groups.setdefault((bucket(len(run.calls)), bucket(slots(run))), []).append(i)
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
    flat = flatten(runs)
    calls = _axis("calls", calls, int(flat.calls.max()))
    segments = _axis("segments", segments, int(flat.segments.max()))

    def per_segment(values: np.ndarray, dtype: type, fill: int) -> np.ndarray:
        return _padded(values, flat.segments, segments, dtype, fill)

    def per_call(values: np.ndarray, dtype: type, fill: int | float) -> np.ndarray:
        return _padded(values, flat.calls, calls, dtype, fill)

    tokens = per_segment(flat.tokens, np.int64, 0)
    totals = tokens.sum(axis=1)
    if totals.max(initial=0) >= 2**31:
        run = int(np.argmax(totals))
        raise CostModelError(f"run {runs[run].id!r} holds {totals[run]:,} tokens; counts are exact below {2**31:,}")
    return RunBatch(
        tokens=tokens.astype(np.int32),
        kind=per_segment(flat.kind, np.int8, 0),
        call=per_segment(flat.call, np.int32, 0),
        output=per_segment(flat.output, np.bool_, False),
        birth=per_segment(flat.birth, np.int32, int(NEVER)),
        end=per_segment(flat.end, np.int32, 0),
        inserted=per_segment(flat.inserted, np.bool_, False),
        recorded_end=per_segment(flat.recorded_end, np.int32, 0),
        mask=per_call(np.ones(len(flat.first), np.bool_), np.bool_, False),
        first=per_call(flat.first, np.int32, 0),
        user=per_call(flat.user, np.bool_, False),
        idle=per_call(flat.idle, np.float32, 0.0),
        reasoning_known=np.array([run.evidence.reasoning != "unknown" for run in runs]),
        offset=None if flat.ids is None else per_segment(flat.offset, np.int32, -1),
        ids=None
        if flat.ids is None
        else _padded(flat.ids, flat.id_counts, bucket(int(flat.id_counts.max())), np.int32, 0),
        has_time=not np.isnan(flat.idle).any(),
        longest=0 if flat.ids is None else bucket(int(totals.max())),
    )


def _axis(name: str, asked: int | None, needed: int) -> int:
    if asked is None:
        return bucket(needed)
    if asked < needed:
        raise CostModelError(f"{name}={asked} is shorter than the longest run, which has {needed} {name}")
    return asked


def _padded(values: np.ndarray, lengths: np.ndarray, width: int, dtype: type, fill: int | float) -> np.ndarray:
    """Consecutive rows of ``lengths`` values as the rows of a rectangle."""
    padded: np.ndarray = np.full((len(lengths), width), fill, dtype)
    padded[np.arange(width) < lengths[:, None]] = values
    return padded
