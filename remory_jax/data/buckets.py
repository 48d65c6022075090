"""Shapes that batches come in: every bucket is one compiled program, so there are few of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from remory_jax.data.examples import Example
from remory_jax.data.problems import Problems

__all__ = ["Bucket", "Buckets", "Lengths", "assign_buckets"]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Widths of a batch in tokens: of the prefix, of each boundary's history and summary, of the response."""

    prefix: int
    histories: tuple[int, ...]
    summaries: tuple[int, ...]
    response: int

    @property
    def tokens(self) -> int:
        """Width of a row, everything together."""
        return self.prefix + sum(self.histories) + sum(self.summaries) + self.response

    def __str__(self) -> str:
        middle = " ".join(f"{h}+{s}" for h, s in zip(self.histories, self.summaries, strict=True))
        return f"{self.prefix} | {middle} | {self.response}"


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Widths to choose from, in tokens.

    Attributes:
      history: of a boundary's history, one bucket for each width.
      prefix, summary, response: the same in every bucket.
      boundaries: numbers of boundaries; each makes buckets of its own.
    """

    history: tuple[int, ...] = (512, 1024, 2048, 4096)
    prefix: int = 256
    summary: int = 256
    response: int = 512
    boundaries: tuple[int, ...] = (1,)

    def shapes(self) -> tuple[Bucket, ...]:
        """Every bucket, the smallest first.

        Raises:
          ValueError: for widths or numbers that are not positive.
        """
        for name in ("history", "boundaries"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"Buckets.{name} = {getattr(self, name)}; give one or more positive numbers")
        if min(self.prefix, self.summary) < 0 or self.response < 1:
            raise ValueError(f"{self}: widths cannot be negative, and a response needs at least one token")
        made = [
            Bucket(prefix=self.prefix, histories=(h,) * n, summaries=(self.summary,) * n, response=self.response)
            for n in sorted(set(self.boundaries))
            for h in sorted(set(self.history))
        ]
        return tuple(sorted(made, key=lambda bucket: bucket.tokens))


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths of all examples of a source in tokens, which decide their buckets without reading them.

    Attributes:
      ids: names, for messages.
      prefix, response, judged: [n].
      histories: [n, most boundaries], padded with -1.
      summaries: likewise; -1 also where an example has none.
      asked: whether it can only be used with summaries [n].
      draw: a number in [0, 1) drawn from a hash of the example's group [n], for splits.
    """

    ids: tuple[str, ...]
    prefix: Int[np.ndarray, " n"]
    histories: Int[np.ndarray, "n boundaries"]
    summaries: Int[np.ndarray, "n boundaries"]
    response: Int[np.ndarray, " n"]
    judged: Int[np.ndarray, " n"]
    asked: Bool[np.ndarray, " n"]
    draw: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Lengths:
        """Measure examples."""
        rows = [
            (
                example.id,
                example.group,
                len(example.prefix),
                [len(history) for history in example.histories],
                [len(summary) for summary in example.summaries],
                len(example.response),
                example.judged_tokens,
                bool(len(example.request)) or bool(example.summaries),
            )
            for example in examples
        ]
        return cls.of_columns(*(list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 8)

    @classmethod
    def of_columns(
        cls,
        ids: Sequence[str],
        groups: Sequence[str],
        prefix: Sequence[int],
        histories: Sequence[Sequence[int]],
        summaries: Sequence[Sequence[int]],
        response: Sequence[int],
        judged: Sequence[int],
        asked: Sequence[bool],
    ) -> Lengths:
        """Take what `of` measured."""
        most = max(map(len, histories), default=0)
        return cls(
            ids=tuple(ids),
            prefix=np.asarray(prefix, np.int32),
            histories=_padded(histories, most),
            summaries=_padded(summaries, most),
            response=np.asarray(response, np.int32),
            judged=np.asarray(judged, np.int32),
            asked=np.asarray(asked, np.bool_),
            draw=np.asarray([_draw(group) for group in groups], np.float64),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def boundaries(self) -> Int[np.ndarray, " n"]:
        """Boundaries of each example."""
        return np.asarray(np.sum(self.histories >= 0, axis=1), np.int32)

    @property
    def history(self) -> Int[np.ndarray, " n"]:
        """Tokens of all histories of each example."""
        return np.asarray(np.sum(np.maximum(self.histories, 0), axis=1), np.int32)


def assign_buckets(
    lengths: Lengths,
    shapes: Sequence[Bucket],
    problems: Problems,
    *,
    summaries: Literal["required", "ignored"] = "required",
    wanted: Bool[np.ndarray, " n"] | None = None,
) -> tuple[Int[np.ndarray, " n"], tuple[Bucket, ...]]:
    """The smallest bucket that holds each example.

    Args:
      shapes: buckets, the smallest first.
      problems: told about each example that fits none, by reason.
      summaries: ``required`` where an example's source asks for them; ``ignored`` trains with memory alone.
      wanted: examples to place; the others get -1 without being reported.

    Returns:
      Index of each example's bucket, -1 for those that cannot be used, and the buckets; where examples have no
      summaries these are further ones, with summaries of width 0.
    """
    most = lengths.histories.shape[1]
    count = lengths.boundaries
    given = lengths.asked & (summaries == "required")
    bare = tuple(replace(shape, summaries=(0,) * len(shape.summaries)) for shape in shapes)
    placed = np.full(len(lengths), -1, np.int32)
    for b, shape in reversed(list(enumerate(shapes))):
        if len(shape.histories) > most:
            continue
        fits = (count == len(shape.histories)) & (lengths.prefix <= shape.prefix) & (lengths.response <= shape.response)
        for i in range(len(shape.histories)):
            fits &= lengths.histories[:, i] <= shape.histories[i]
            fits &= ~given | (lengths.summaries[:, i] <= shape.summaries[i])
        placed = np.where(fits, b + np.where(given, 0, len(shapes)), placed).astype(np.int32)
    placed[_unusable(lengths, given)] = -1
    if wanted is not None:
        placed[~wanted] = -1
    for i in np.flatnonzero((placed < 0) if wanted is None else ((placed < 0) & wanted)).tolist():
        reason, message = _why(lengths, shapes, i, bool(given[i]))
        problems.report(reason, message, id=lengths.ids[i])
    return placed, (*shapes, *bare)


def _unusable(lengths: Lengths, given: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    real = lengths.histories >= 0
    bad_summary = given & np.any(real & (lengths.summaries <= 0), axis=1)
    empty = np.any(real & (lengths.histories == 0), axis=1) | ~np.any(real, axis=1)
    return np.asarray(bad_summary | empty | (lengths.judged == 0))


def _why(lengths: Lengths, shapes: Sequence[Bucket], i: int, given: bool) -> tuple[str, str]:
    histories = [int(n) for n in lengths.histories[i] if n >= 0]
    summary = [int(n) for n in lengths.summaries[i][: len(histories)]] if given else []
    fitting = [shape for shape in shapes if len(shape.histories) == len(histories)]
    if not histories or min(histories) == 0:
        return "empty_history", "a boundary replaces no tokens; leave such records out"
    if lengths.judged[i] == 0:
        return "empty_response", "no token of the response is judged"
    if summary and min(summary) < 0:
        return "no_summary", "has no summary yet; make them with `python -m launch.prepare_data summaries`"
    if summary and min(summary) == 0:
        return "empty_summary", "a summary of zero tokens cannot stand for a history"
    if not fitting:
        return "too_many_boundaries", f"{len(histories)} boundaries, and no bucket has that many"
    rules = (
        ("prefix_too_long", "prefix", int(lengths.prefix[i]), max(shape.prefix for shape in fitting)),
        ("response_too_long", "response", int(lengths.response[i]), max(shape.response for shape in fitting)),
        ("history_too_long", "history", max(histories), max(max(shape.histories) for shape in fitting)),
        ("summary_too_long", "summary", max(summary, default=0), max(max(shape.summaries) for shape in fitting)),
    )
    for reason, what, found, most in rules:
        if found > most:
            return reason, f"a {what} of {found} tokens; the largest bucket holds {most}"
    return "history_too_long", "no bucket holds all of its parts at once"


def _padded(rows: Sequence[Sequence[int]], width: int) -> Int[np.ndarray, "n boundaries"]:
    padded = np.full((len(rows), width), -1, np.int32)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _draw(group: str) -> float:
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:6], "big") / 2**48
