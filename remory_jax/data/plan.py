"""Which examples make up which batch: decided from lengths and a seed alone, before anything is read."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from jaxtyping import Int

from remory_jax.data.batching import FILLER

__all__ = ["Plan", "Rows"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """A planned batch.

    Attributes:
      source: which of the mixed sources it is of.
      bucket: index of its bucket.
      index: its examples [B], -1 for rows that fill it up.
    """

    source: int
    bucket: int
    index: Int[np.ndarray, " batch"]


class Plan(grain.MapDataset[Rows]):
    """The batches of one source, addressable by number over any number of epochs.

    An epoch visits every usable example once. Examples go through it in a random order into the open batch of their
    bucket; full batches come out in the order in which they fill, the rest, filled up with -1, at the end. Batch i is
    batch ``i mod len`` of epoch ``i // len``; every epoch has another order and the same number of batches.

    Args:
      buckets: of each example [n], -1 for those that cannot be used.
      history: tokens of each example's history [n], which the curriculum sorts by.
      batch: examples of a global batch.
      seed: of the orders.
      shuffle: else every epoch has the order of the source.
      curriculum: 0 to 1. The first epoch's examples are ordered by ``(1 - c) u + c q`` with u uniform in [0, 1] and q
        the rank of the history's length: 1 strictly grows, 0 is no curriculum.
      horizon: batches over which the curriculum stretches where training ends before the epoch does; the examples for
        them are still drawn from all.
      source: number that its `Rows` carry.

    Raises:
      ValueError: no example can be used, or an argument makes no sense.
    """

    def __init__(
        self,
        buckets: Int[np.ndarray, " n"],
        history: Int[np.ndarray, " n"],
        *,
        batch: int,
        seed: int,
        shuffle: bool = True,
        curriculum: float | int = 0.0,
        horizon: int | None = None,
        source: int = 0,
    ) -> None:
        super().__init__()
        if batch < 1:
            raise ValueError(f"batch = {batch}; it must be at least 1")
        if not 0 <= curriculum <= 1:
            raise ValueError(f"curriculum = {curriculum}; use 0 (none) to 1 (strictly by length)")
        if curriculum and not shuffle:
            raise ValueError("a curriculum needs shuffle=True: it says how far the random order gives way to length")
        self._usable = np.flatnonzero(buckets >= 0)
        if not len(self._usable):
            raise ValueError("no example can be used; see the problems that were reported for the reasons")
        self._buckets = buckets
        self._history = history
        self._batch = batch
        self._seed = seed
        self._shuffle = shuffle
        self._curriculum = float(curriculum)
        self._horizon = horizon
        self._source = source
        _, counts = np.unique(buckets[self._usable], return_counts=True)
        self._length = int(np.sum(-(-counts // batch)))
        self._made: tuple[int, list[Rows]] | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        epoch, number = divmod(int(index), self._length)
        made = self._made  # one read, as threads share the plan
        if made is None or made[0] != epoch:
            made = self._made = (epoch, self._epoch(epoch))
        return made[1][number]

    @property
    def usable(self) -> int:
        """Examples of an epoch."""
        return len(self._usable)

    def _order(self, epoch: int) -> Int[np.ndarray, " usable"]:
        if not self._shuffle:
            return self._usable
        draw = np.random.default_rng([self._seed, self._source, epoch])
        order = self._usable[np.argsort(draw.random(len(self._usable)), kind="stable")]
        if self._curriculum and epoch == 0:
            reach = len(order) if self._horizon is None else min(len(order), self._horizon * self._batch)
            first = order[:reach]
            # Equal lengths share a rank, so that one bucket's worth of equal texts stays in random order.
            _, rank = np.unique(self._history[first], return_inverse=True)
            quantile = rank / max(int(rank.max()), 1)
            key = (1 - self._curriculum) * draw.random(reach) + self._curriculum * quantile
            order = np.concatenate([first[np.argsort(key, kind="stable")], order[reach:]])
        return order

    def _epoch(self, epoch: int) -> list[Rows]:
        order = self._order(epoch)
        where = self._buckets[order]
        found: list[tuple[int, Rows]] = []
        for bucket in np.unique(where).tolist():
            places = np.flatnonzero(where == bucket)
            for start in range(0, len(places), self._batch):
                chosen = places[start : start + self._batch]
                index = np.full(self._batch, FILLER, np.int64)
                index[: len(chosen)] = order[chosen]
                full = len(chosen) == self._batch
                rows = Rows(source=self._source, bucket=bucket, index=index)
                found.append((int(chosen[-1]) if full else len(order) + bucket, rows))
        return [rows for _, rows in sorted(found, key=lambda item: item[0])]

    def __str__(self) -> str:
        return f"Plan({self._length} batches of {self._batch})"
