"""Grain pipelines: plan, mix, shard by process, and only then read, batch and prefetch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import grain
import jax
import numpy as np
from jaxtyping import Bool

from remory_jax.data.batch import Batch
from remory_jax.data.batching import collate
from remory_jax.data.buckets import Bucket, Buckets, Lengths, assign_buckets
from remory_jax.data.examples import Example
from remory_jax.data.iteration import Batches
from remory_jax.data.plan import Plan, Rows
from remory_jax.data.problems import Problems

__all__ = ["BatchSequence", "ExampleSequence", "batches_of", "make_pipeline", "process_rows"]


@runtime_checkable
class ExampleSequence(Protocol):
    """Examples by number, with what is known of them without reading: a prepared folder, or a list in memory."""

    @property
    def lengths(self) -> Lengths:
        """Of all of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Example: ...

    def describe(self) -> dict[str, Any]:
        """JSON-able; equal where and only where the examples are."""


@runtime_checkable
class BatchSequence(Protocol):
    """Ready global batches by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Batch: ...


def make_pipeline(
    source: ExampleSequence,
    *,
    buckets: Buckets | Sequence[Bucket],
    batch: int,
    seed: int,
    replay: ExampleSequence | None = None,
    replay_share: float | int = 0.2,
    shuffle: bool = True,
    curriculum: float | int = 0.0,
    curriculum_batches: int | None = None,
    epochs: int | None = None,
    summaries: Literal["required", "ignored"] = "required",
    wanted: Bool[np.ndarray, " n"] | None = None,
    replay_wanted: Bool[np.ndarray, " m"] | None = None,
    process_index: int = 0,
    process_count: int = 1,
    tau: float | int = 256.0,
    floor: float | int = 0.5,
    threads: int = 1,
    prefetch: int = 2,
    problems: Problems | None = None,
) -> Batches:
    """Batches of this process.

    A global batch holds examples of one bucket and of one source, so that its shape is static. With a replay, batches
    of the two sources alternate so that every stretch of them has its share (REMORY, section 6: Stage I within Stage
    II, 20% in ours).

    Args:
      source: what is trained on.
      buckets: widths; a batch is as wide as its bucket, the smallest that holds its examples.
      batch: examples of a global batch, a multiple of ``process_count``.
      seed: of the order.
      replay: another source, mixed in by ``replay_share`` of the batches.
      shuffle, curriculum, curriculum_batches: of ``source``; see `Plan`. A replay has no curriculum.
      epochs: over ``source``; ``None`` never ends.
      summaries: ``ignored`` leaves them out, and memory alone stands for the history.
      wanted, replay_wanted: examples to use, for example those that are not held out.
      process_index, process_count: of this process; it gets consecutive rows of each global batch.
      tau, floor: of the weights, see `collate`.
      threads, prefetch: read that many batches ahead in that many threads; 0 reads when asked.
      problems: told of each example that fits no bucket.

    Returns:
      Grain's iterable; ``index`` of a replayed example counts on behind those of ``source``.

    Raises:
      ValueError: arguments that make no sense, or nothing to train on.
    """
    problems = problems or Problems()
    shapes = buckets.shapes() if isinstance(buckets, Buckets) else sorted(buckets, key=lambda bucket: bucket.tokens)
    low, high = process_rows(batch, process_index, process_count)
    sources = [source] if replay is None else [source, replay]
    plans: list[Plan] = []
    all_shapes: tuple[Bucket, ...] = ()
    for number, (examples, chosen) in enumerate(zip(sources, (wanted, replay_wanted), strict=False)):
        placed, all_shapes = assign_buckets(examples.lengths, shapes, problems, summaries=summaries, wanted=chosen)
        plans.append(
            Plan(
                placed,
                examples.lengths.history,
                batch=batch,
                seed=seed,
                shuffle=shuffle,
                curriculum=0.0 if number else curriculum,
                horizon=curriculum_batches,
                source=number,
            )
        )
    rows: grain.MapDataset[Rows] = plans[0].repeat(epochs)
    if replay is not None:
        if not 0 < replay_share < 1:
            raise ValueError(f"replay_share = {replay_share}; it is a share of the batches, above 0 and below 1")
        rows = grain.MapDataset.mix([rows, plans[1].repeat()], [1 - replay_share, replay_share])
    read = _Read(sources, all_shapes, low, high, tau, floor)
    identity = {
        "data": [examples.describe() for examples in sources],
        "usable": [plan.usable for plan in plans],
        "buckets": [str(shape) for shape in shapes],
        "batch": batch,
        "seed": seed,
        "shuffle": shuffle,
        "curriculum": [curriculum, curriculum_batches],
        "replay_share": None if replay is None else replay_share,
        "summaries": summaries,
        "weights": [tau, floor],
    }
    return Batches(rows.map(read), identity, threads=threads, prefetch=prefetch)


def batches_of(
    source: BatchSequence,
    *,
    seed: int,
    shuffle: bool = False,
    process_index: int = 0,
    process_count: int = 1,
    epochs: int | None = None,
    identity: Mapping[str, Any] | None = None,
    threads: int = 1,
    prefetch: int = 2,
) -> Batches:
    """Batches of this process from a source that makes whole global batches, such as a task with fresh episodes.

    Args:
      source: ``source[i]`` is global batch i, a pure function of i.
      seed: of the order where ``shuffle`` is set; part of the identity in any case.
      epochs: times through the source; ``None`` never ends.
      identity: what else decides the batches, JSON-able; compared when a position is restored.
    """
    whole: grain.MapDataset[Batch] = grain.MapDataset.source(source)
    if shuffle:
        whole = whole.shuffle(seed)
    whole = whole.repeat(epochs)
    known = {"seed": seed, "shuffle": shuffle, "length": len(source), **(identity or {})}
    return Batches(whole.map(_Part(process_index, process_count)), known, threads=threads, prefetch=prefetch)


def process_rows(batch: int, process_index: int, process_count: int) -> tuple[int, int]:
    """The rows of a global batch that a process loads: consecutive ones, as many in every process.

    Raises:
      ValueError: the batch cannot be shared out evenly, or there is no such process.
    """
    if process_count < 1 or not 0 <= process_index < process_count:
        raise ValueError(f"process_index = {process_index} of process_count = {process_count}")
    if batch < 1 or batch % process_count:
        raise ValueError(
            f"batch = {batch} is no multiple of process_count = {process_count}; each process loads as many rows"
        )
    share = batch // process_count
    return process_index * share, (process_index + 1) * share


class _Read:
    """Reads this process's rows of a planned batch."""

    def __init__(
        self,
        sources: Sequence[ExampleSequence],
        shapes: Sequence[Bucket],
        low: int,
        high: int,
        tau: float | int,
        floor: float | int,
    ) -> None:
        self._sources = tuple(sources)
        self._offsets = np.cumsum([0, *(len(source) for source in sources)]).tolist()
        self._shapes = tuple(shapes)
        self._low, self._high = low, high
        self._tau, self._floor = tau, floor

    def __call__(self, rows: Rows) -> Batch:
        source, offset = self._sources[rows.source], self._offsets[rows.source]
        index = rows.index[self._low : self._high].tolist()
        examples = [None if i < 0 else source[i] for i in index]
        shape = self._shapes[rows.bucket]
        return collate(examples, [i + offset for i in index], shape, tau=self._tau, floor=self._floor)


class _Part:
    """This process's rows of a ready batch."""

    def __init__(self, process_index: int, process_count: int) -> None:
        process_rows(process_count, process_index, process_count)
        self._index, self._count = process_index, process_count

    def __call__(self, batch: Batch) -> Batch:
        low, high = process_rows(len(batch.index), self._index, self._count)
        part: Batch = jax.tree.map(lambda values: np.asarray(values[low:high]), batch)
        return part
