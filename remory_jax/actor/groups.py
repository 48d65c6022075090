"""Repeating blocks of layers: equal layers are stacked and scanned, so a deep model compiles like a shallow one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remory_jax.actor.config import LayerConfig

__all__ = ["Group", "repeating_groups"]


@dataclass(frozen=True, kw_only=True)
class Group:
    """``repeats`` times the layers of ``pattern``, from layer ``first`` on."""

    first: int
    pattern: tuple[LayerConfig, ...]
    repeats: int

    def layers(self, position: int) -> tuple[int, ...]:
        """Indices of the layers at one position of the pattern."""
        step = len(self.pattern)
        return tuple(range(self.first + position, self.first + step * self.repeats, step))


def repeating_groups(layers: Sequence[LayerConfig]) -> tuple[Group, ...]:
    """Split layers into repeated patterns with as few layers to trace as possible, then as few groups.

    A dynamic program over the ends of groups; 100 layers take milliseconds.
    """
    count = len(layers)
    best: list[tuple[int, int, tuple[Group, ...]]] = [(0, 0, ())]  # (layers traced, groups, the groups) of each prefix
    best += [(count + 1, 0, ())] * count
    for start in range(count):
        traced, groups, before = best[start]
        for width in range(1, count - start + 1):
            pattern = tuple(layers[start : start + width])
            repeats = 1
            while start + width * (repeats + 1) <= count and all(
                layers[start + width * repeats + i] == pattern[i] for i in range(width)
            ):
                repeats += 1
            for times in range(1, repeats + 1):
                end = start + width * times
                cost = (traced + width, groups + 1)
                if cost < best[end][:2]:
                    best[end] = (*cost, (*before, Group(first=start, pattern=pattern, repeats=times)))
    return best[count][2]
