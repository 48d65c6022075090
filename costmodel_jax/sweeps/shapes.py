"""Few shapes for ragged runs: each is one compiled program, so lengths are rounded up to powers of two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodel_jax.flattening import slots
from costmodel_jax.schema import Run

__all__ = ["Group", "Shape", "grouped", "shape_of"]

LEAST_CALLS = 16
MOST_ROWS = 1024
WORK = 2**25  # calls x slots x rows of one batch, which bounds its memory
LEAST_ROWS = 16


@dataclass(frozen=True, order=True)
class Shape:
    """Padded lengths of a batch of runs.

    Attributes:
      calls: of a run.
      slots: segments of a run, replacements of recorded edits included.
      ids: whether its runs carry token ids, which are compared token by token, in rows of their own width.
    """

    calls: int
    slots: int
    ids: bool = False

    @property
    def most_rows(self) -> int:
        """Runs of a full batch: a power of two."""
        return max(1, min(MOST_ROWS, WORK // (self.calls * self.slots)))


@dataclass(frozen=True)
class Group:
    """Runs that are counted together, by index, in a batch of ``rows`` rows."""

    shape: Shape
    runs: tuple[int, ...]
    rows: int


def shape_of(run: Run) -> Shape:
    """The shape a run is padded to."""
    calls = _power(len(run.calls), LEAST_CALLS)
    ids = any(segment.ids is not None for segment in run.segments)
    return Shape(calls, _power(slots(run), 4 * calls), ids)


def grouped(runs: Sequence[Run], *, multiple: int = 1) -> Iterator[Group]:
    """Batches of one shape, the runs of each in their order.

    Args:
      multiple: of rows, such as the devices that share a batch.
    """
    members: dict[Shape, list[int]] = {}
    for index, run in enumerate(runs):
        members.setdefault(shape_of(run), []).append(index)
    for shape in sorted(members):
        indices = members[shape]
        for first in range(0, len(indices), shape.most_rows):
            part = tuple(indices[first : first + shape.most_rows])
            rows = min(_power(len(part), LEAST_ROWS), shape.most_rows)
            yield Group(shape, part, -(-max(rows, len(part)) // multiple) * multiple)


def _power(value: int, least: int) -> int:
    """The next power of two, at least ``least``."""
    return max(1 << max(value - 1, 0).bit_length(), least)
