"""Examples to a `Batch`: right-padded to their bucket, with the weights of the judged tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from remory_jax.data.batch import Batch
from remory_jax.data.buckets import Bucket
from remory_jax.data.examples import Example
from remory_jax.objective.weights import position_weights

__all__ = ["collate"]

FILLER = -1


def collate(
    examples: Sequence[Example | None],
    index: Sequence[int],
    bucket: Bucket,
    *,
    tau: float | int = 256.0,
    floor: float | int = 0.5,
) -> Batch:
    """Stack examples of one bucket.

    Args:
      examples: one per row; ``None`` is a filler: all lengths and weights 0.
      index: of each in its source; that of a filler is not looked at.
      bucket: widths. Summaries are left out where it gives them width 0.
      tau, floor: of the weights ``floor + (1 - floor) exp(-j / tau)``, where j counts the judged tokens of a response.

    Returns:
      NumPy arrays; fillers have index -1.

    Raises:
      ValueError: an example that does not fit.
    """
    rows = len(examples)
    boundaries = range(len(bucket.histories))
    weights = np.zeros((rows, bucket.response), np.float32)
    counts = np.asarray([0 if example is None else example.judged_tokens for example in examples], np.int32)
    values = np.asarray(position_weights(counts, max(int(counts.max(initial=0)), 1), floor=floor, tau=tau))
    for row, example in enumerate(examples):
        if example is None:
            continue
        if len(example.histories) != len(boundaries):
            raise ValueError(f"example {example.id} has {len(example.histories)} boundaries, its bucket {bucket}")
        judged = np.concatenate([np.arange(start, stop) for start, stop in example.judged] or [np.zeros(0, np.int64)])
        weights[row, judged] = values[row, : len(judged)]

    def part(ids: Sequence[Int[np.ndarray, " _"] | None], width: int) -> tuple[np.ndarray, np.ndarray]:
        padded = np.zeros((rows, width), np.int32)
        lengths = np.zeros(rows, np.int32)
        for row, values in enumerate(ids):
            if values is None:
                continue
            if len(values) > width:
                raise ValueError(f"{len(values)} tokens do not fit a width of {width} (bucket {bucket})")
            padded[row, : len(values)] = values
            lengths[row] = len(values)
        return padded, lengths

    def summary(example: Example | None, i: int) -> np.ndarray | None:
        return None if example is None or not bucket.summaries[i] else example.summaries[i]

    prefix, prefix_length = part([None if e is None else e.prefix for e in examples], bucket.prefix)
    response, response_length = part([None if e is None else e.response for e in examples], bucket.response)
    histories = [
        part([None if e is None else e.histories[i] for e in examples], bucket.histories[i]) for i in boundaries
    ]
    summaries = [part([summary(e, i) for e in examples], bucket.summaries[i]) for i in boundaries]
    return Batch(
        prefix=prefix,
        prefix_length=prefix_length,
        histories=tuple(ids for ids, _ in histories),
        history_lengths=tuple(lengths for _, lengths in histories),
        summaries=tuple(ids for ids, _ in summaries),
        summary_lengths=tuple(lengths for _, lengths in summaries),
        response=response,
        response_length=response_length,
        weights=weights,
        index=np.asarray([FILLER if e is None else i for e, i in zip(examples, index, strict=True)], np.int32),
    )
