"""Which runs are packed together, and how thoroughly XLA compiles for them: compiling costs more than counting."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from costmodel_jax.calls import bucket, buckets
from costmodel_jax.flattening import slots
from costmodel_jax.schema import Run

__all__ = ["Group", "compiling_quickly", "grouped"]

SHARED_WORK = 2**28  # runs x calls^2 x segments that are worth padding for one compilation less
MEMORY = 2**28  # runs x calls x segments of one batch
QUICKLY = "jax_disable_most_optimizations"
LITTLE = 2**26  # runs x calls^2 x segments, below which optimising a program takes longer than running it unoptimised


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that are packed together, by index, and the padded shape they share."""

    runs: tuple[int, ...]
    calls: int
    segments: int

    @property
    def work(self) -> int:
        """Of the slowest way to count."""
        return len(self.runs) * self.calls**2 * self.segments


@contextlib.contextmanager
def compiling_quickly(runs: Sequence[Run]) -> Iterator[None]:
    """Let XLA skip its optimisations while there is little to compute; results are the same integers."""
    config: Any = jax.config
    before = config.read(QUICKLY)
    little = sum(group.work for group in grouped(runs, range(len(runs)))) < LITTLE
    config.update(QUICKLY, before or little)
    try:
        yield
    finally:
        config.update(QUICKLY, before)


def grouped(runs: Sequence[Run], which: Sequence[int]) -> list[Group]:
    """Buckets of one shape, joined where padding costs less than compiling again, cut where memory would not do."""
    with_ids = {i for i in which if any(segment.ids is not None for segment in runs[i].segments)}
    groups: list[Group] = []
    for side in ([i for i in which if i not in with_ids], sorted(with_ids)):
        start = len(groups)
        for members in buckets([runs[i] for i in side]):
            indices = tuple(side[member] for member in members)
            group = Group(
                runs=indices,
                calls=max(bucket(len(runs[i].calls)) for i in indices),
                segments=max(bucket(slots(runs[i])) for i in indices),
            )
            if len(groups) > start:
                last = groups[-1]
                joined = Group(
                    runs=last.runs + group.runs,
                    calls=max(last.calls, group.calls),
                    segments=max(last.segments, group.segments),
                )
                if joined.work <= SHARED_WORK:
                    groups[-1] = joined
                    continue
            groups.append(group)
    return [part for group in groups for part in _parts(group)]


def _parts(group: Group) -> Iterator[Group]:
    size = max(MEMORY // (group.calls * group.segments), 1)
    for first in range(0, len(group.runs), size):
        yield dataclasses.replace(group, runs=group.runs[first : first + size])
