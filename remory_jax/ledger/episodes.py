"""Episodes of the ledger, many at once: each is a function of the seed, the split and its own index alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from remory_jax.data.batch import Batch
from remory_jax.ledger.task import ASK, PREFIX, LedgerTask

__all__ = ["SPLITS", "Episodes", "LedgerSource", "Split", "draw_episodes"]

Split = Literal["train", "held_out", "actor", "actor_check"]

SPLITS: tuple[Split, ...] = ("train", "held_out", "actor", "actor_check")
"""The memory network is trained on ``train`` and evaluated on ``held_out``, the actor on the other two: each split is a
stream of random numbers of its own, so no episode of one is ever drawn for another."""

_WORDS = 4  # of 64 bits that one count of the generator gives


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Some episodes of one task.

    Attributes:
      index: of each episode [B].
      units: the facts as the history states them [B, facts, unit].
      histories: per boundary the new tokens [B, history / boundaries].
      priority: facts in the order in which summaries take them [B, facts]: first those that are kept, oldest
        history first, then the others at random.
      asked: facts in the order of the response [B, facts].
      fill: filler to use up what positions of a summary are left [B, unit + history].
    """

    task: LedgerTask
    index: Int[np.ndarray, " batch"]
    units: Int[np.ndarray, "batch facts unit"]
    histories: tuple[Int[np.ndarray, "batch length"], ...]
    priority: Int[np.ndarray, "batch facts"]
    asked: Int[np.ndarray, "batch facts"]
    fill: Int[np.ndarray, "batch fill"]

    def stated(self, count: int, *, terse: bool, width: int = 0) -> Int[np.ndarray, "batch length"]:
        """The first ``count`` facts by priority as text, with filler behind them up to ``width`` tokens."""
        task = self.task
        taken = np.take_along_axis(self.units, self.priority[:, :count, None], axis=1)
        text = taken[:, :, : 1 + task.answers if terse else task.unit].reshape(len(self.index), -1)
        return np.concatenate([text, self.fill[:, : max(width - text.shape[1], 0)]], axis=1)

    def summary(self, boundary: int) -> Int[np.ndarray, "batch length"]:
        """The summary at a boundary, from 0: what is kept of the histories so far."""
        task = self.task
        return self.stated(task.kept // task.boundaries * (boundary + 1), terse=task.terse)

    def summary_plus(self, rows: int | None = None) -> Int[np.ndarray, "batch length"]:
        """The last summary with as many further facts as the positions of ``rows`` of memory (`slots`) hold.

        Which ones is random. Positions that no whole fact fits into hold filler, so it is as long as summary and
        memory together, markers included.
        """
        task = self.task
        width = task.kept * task.fact_tokens + task.extra_positions(rows)
        return self.stated(task.kept + task.extra_facts(rows), terse=task.terse, width=width)

    @property
    def response(self) -> Int[np.ndarray, "batch length"]:
        """``ask``, then every key with its values."""
        asked = np.take_along_axis(self.units, self.asked[:, :, None], axis=1)[:, :, : 1 + self.task.answers]
        answers = asked.reshape(len(self.index), -1)
        return np.concatenate([np.full_like(answers[:, :1], ASK), answers], axis=1)

    @property
    def judged(self) -> Bool[np.ndarray, "batch length"]:
        """Which response tokens are values."""
        return self._spread(np.ones_like(self.asked)) > 0

    @property
    def known(self) -> Bool[np.ndarray, "batch length"]:
        """Which response tokens are values of a fact in the last summary."""
        rank = np.argsort(self.priority, axis=1)
        return self._spread((np.take_along_axis(rank, self.asked, axis=1) < self.task.kept).astype(np.int32)) > 0

    @property
    def origin(self) -> Int[np.ndarray, "batch length"]:
        """The boundary whose history holds the fact of each value, from 0; -1 for other response tokens."""
        return self._spread(self.asked // (self.task.facts // self.task.boundaries) + 1) - 1

    def _spread(self, of_fact: Int[np.ndarray, "batch facts"]) -> Int[np.ndarray, "batch length"]:
        """A number of each asked fact at its values in the response; 0 elsewhere."""
        task = self.task
        spread = np.zeros((len(self.index), task.facts, 1 + task.answers), np.int32)
        spread[:, :, 1:] = of_fact[:, :, None]
        return np.pad(spread.reshape(len(self.index), -1), ((0, 0), (1, 0)))

    def batch(self, *, plus: bool = False, rows: int | None = None) -> Batch:
        """The episodes as a training batch; with ``plus`` the last summary is `summary_plus`."""
        task, count = self.task, len(self.index)

        def lengths(columns: Int[np.ndarray, "batch length"]) -> Int[np.ndarray, " batch"]:
            return np.full(count, columns.shape[1], np.int32)

        prefix = np.tile(np.asarray(PREFIX, np.int32), (count, 1))
        summaries = [self.summary(boundary) for boundary in range(task.boundaries)]
        if plus:
            summaries[-1] = self.summary_plus(rows)
        return Batch(
            prefix=prefix,
            prefix_length=lengths(prefix),
            histories=self.histories,
            history_lengths=tuple(lengths(history) for history in self.histories),
            summaries=tuple(summaries),
            summary_lengths=tuple(lengths(summary) for summary in summaries),
            response=self.response,
            response_length=lengths(self.response),
            weights=self.judged.astype(np.float32),
            index=self.index,
        )


def draw_episodes(task: LedgerTask, seed: int, split: Split, start: int, count: int) -> Episodes:
    """Episodes ``start`` to ``start + count - 1`` of a split.

    The counter-based generator Philox is keyed by seed and split and set to the episode's index, so an episode does not
    depend on which batch it is drawn in.

    Raises:
      ValueError: an unknown split, or a negative seed or index.
    """
    if split not in SPLITS:
        raise ValueError(f"split = {split!r}; use one of {', '.join(SPLITS)}")
    if min(seed, start) < 0 or count < 1 or start + count > 2**31:
        raise ValueError(f"seed = {seed}, episodes {start} to {start + count}; they count from 0 and are below 2**31")
    words = _Words(task, seed, split, start, count)
    facts, per = task.facts, task.facts // task.boundaries

    units = np.empty((count, facts, task.unit), np.int32)
    units[:, :, 0] = task.first_key + np.argsort(words.take(task.keys), axis=1)[:, :facts]
    answers = units[:, :, 1 : 1 + task.answers]
    answers[:] = task.first_value + words.below(task.values, answers.shape[1:])
    rest = units[:, :, 1 + task.answers :]
    rest[:] = task.first_filler + words.below(task.fillers, rest.shape[1:])

    length = task.history // task.boundaries
    histories = tuple(
        _history(task, words, units[:, boundary * per : (boundary + 1) * per], length)
        for boundary in range(task.boundaries)
    )
    chosen = words.take(facts).reshape(count, task.boundaries, per)
    kept = (np.argsort(np.argsort(chosen, axis=2), axis=2) < task.kept // task.boundaries).reshape(count, facts)
    origin = np.repeat(np.arange(task.boundaries), per)[None, :]
    return Episodes(
        task=task,
        index=np.arange(start, start + count, dtype=np.int32),
        units=units,
        histories=histories,
        priority=np.lexsort((words.take(facts), np.where(kept, origin, 0), ~kept), axis=1).astype(np.int32),
        asked=np.argsort(words.take(facts), axis=1).astype(np.int32),
        fill=(task.first_filler + words.below(task.fillers, (task.unit + task.history,))).astype(np.int32),
    )


def _history(
    task: LedgerTask, words: _Words, units: Int[np.ndarray, "batch facts unit"], length: int
) -> Int[np.ndarray, "batch length"]:
    """Facts in random places, in random order as they are drawn, with filler between."""
    count, facts, unit = units.shape
    text = (task.first_filler + words.below(task.fillers, (length,))).astype(np.int32)
    items = facts + length - facts * unit  # facts and single filler tokens
    places = np.sort(np.argsort(words.take(items), axis=1)[:, :facts], axis=1)
    starts = places + np.arange(facts)[None, :] * (unit - 1)
    np.put_along_axis(text, (starts[:, :, None] + np.arange(unit)).reshape(count, -1), units.reshape(count, -1), axis=1)
    return text


class _Words:
    """The random words of each episode, taken from left to right."""

    def __init__(self, task: LedgerTask, seed: int, split: Split, start: int, count: int) -> None:
        length = task.history + task.facts  # an upper bound of the items to place, over all histories
        needed = task.keys + task.facts * (task.unit + 2) + 2 * length + 2 * task.history + task.unit + task.facts
        blocks = -(-needed // _WORDS)
        generator = np.random.Philox(key=np.asarray([seed, SPLITS.index(split)], np.uint64))
        generator.advance(start * blocks)
        self._words = generator.random_raw(count * blocks * _WORDS).reshape(count, blocks * _WORDS)
        self._taken = 0

    def take(self, number: int) -> np.ndarray:
        """The next words of each episode [B, number]."""
        self._taken += number
        assert self._taken <= self._words.shape[1]
        return self._words[:, self._taken - number : self._taken]

    def below(self, limit: int, shape: tuple[int, ...]) -> np.ndarray:
        """Integers from 0 to ``limit - 1`` [B, *shape]."""
        flat = self.take(int(np.prod(shape, dtype=np.int64)))
        return (flat % np.uint64(limit)).astype(np.int64).reshape(len(flat), *shape)


@dataclass(frozen=True, kw_only=True)
class LedgerSource:
    """Batches of the ledger as a random-access source, as Grain takes one: entry i is episodes i B to (i + 1) B - 1.

    Example:
      >>> source = LedgerSource(task=LedgerTask(), seed=0, split="train", batch_size=4, batches=10)
      >>> source[3].response.shape
      (4, 17)
    """

    task: LedgerTask
    seed: int
    split: Split
    batch_size: int
    batches: int
    plus: bool = False  # summary++ instead of the summary

    def __len__(self) -> int:
        """Number of batches."""
        return self.batches

    def episodes(self, index: int) -> Episodes:
        """The episodes of batch ``index``, with what a batch does not say: which facts are known, and whence.

        Raises:
          IndexError: there is no such batch.
        """
        if not 0 <= index < self.batches:
            raise IndexError(f"batch {index} of {self.batches}")
        return draw_episodes(self.task, self.seed, self.split, int(index) * self.batch_size, self.batch_size)

    def __getitem__(self, index: int) -> Batch:
        """Batch ``index``."""
        return self.episodes(index).batch(plus=self.plus)
