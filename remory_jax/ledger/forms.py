"""The contexts in which the ledger's actor will be asked: what it is trained on, so that it knows them all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.ledger.episodes import Episodes
from remory_jax.ledger.task import PREFIX, LedgerTask

__all__ = ["Lines", "answer_noise", "draw_lines", "full_lines", "longest", "stated_lines"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Lines:
    """Sequences that all end with the response, padded on the left.

    Attributes:
      tokens: ids [B, W].
      real: what is no padding [B, W].
      soft: rows of memory, whose id says nothing [B, W].
      scale: of the noise that stands in a soft row, relative to an embedding's; 0 for a row of zeros [B, W].
    """

    tokens: Int[np.ndarray, "batch length"]
    real: Bool[np.ndarray, "batch length"]
    soft: Bool[np.ndarray, "batch length"]
    scale: Float[np.ndarray, "batch length"]


def longest(task: LedgerTask, rows: int) -> int:
    """Tokens of the longest of these sequences where memory has ``rows`` rows at most."""
    stated = 4 + task.facts * task.unit + _most_filler(task) + rows
    after = task.history // task.boundaries * (task.boundaries - 1)  # histories that may follow a summary
    return len(PREFIX) + max(task.history, stated + after) + task.response


def _most_filler(task: LedgerTask) -> int:
    """After the facts of a summary: as summary++ has where its last positions hold no whole fact, and a few more."""
    return task.unit + 2


def _lines(parts: list[np.ndarray], width: int, soft: int = -1, rows: int = 0, scale: float = 0.0) -> Lines:
    """Parts side by side; ``rows`` columns from column ``soft`` of them on are soft."""
    tokens = np.concatenate(parts, axis=1)
    columns = np.arange(tokens.shape[1])
    is_soft = np.broadcast_to((columns >= soft) & (columns < soft + rows), tokens.shape)
    left = ((0, 0), (width - tokens.shape[1], 0))
    padded = np.pad(is_soft, left)
    return Lines(
        tokens=np.pad(tokens, left),
        real=np.pad(np.ones(tokens.shape, bool), left),
        soft=padded,
        scale=(padded * scale).astype(np.float32),
    )


def _columns(ids: tuple[int, ...], count: int) -> np.ndarray:
    return np.tile(np.asarray(ids, np.int32), (count, 1))


def full_lines(episodes: Episodes, response: Int[np.ndarray, "batch length"], width: int) -> Lines:
    """The teacher's form: instructions, all histories, response."""
    return _lines([_columns(PREFIX, len(response)), *episodes.histories, response], width)


def stated_lines(
    episodes: Episodes,
    response: Int[np.ndarray, "batch length"],
    width: int,
    *,
    count: int,
    terse: bool,
    filler: int = 0,
    rows: int | None = None,
    scale: float = 0.0,
    after: int = 0,
) -> Lines:
    """The student's form: instructions, a summary of ``count`` facts, memory without content, response.

    Args:
      terse: facts without filler.
      filler: tokens of it after the facts.
      rows: of memory, with noise of ``scale``; None for no memory, not even its markers.
      after: number of last histories that follow, as they do when the next boundary is reached.
    """
    template, batch = episodes.task.template, len(response)
    each = 1 + episodes.task.answers if terse else episodes.task.unit
    summary = episodes.stated(count, terse=terse, width=count * each + filler)
    parts = [_columns((*PREFIX, *template.s_open), batch), summary, _columns(template.s_close, batch)]
    at = -1
    if rows is not None:
        at = sum(part.shape[1] for part in parts) + len(template.m_open)
        parts.append(_columns((*template.m_open, *(0,) * rows, *template.m_close), batch))
    histories = episodes.histories[len(episodes.histories) - after :]
    return _lines([*parts, *histories, response], width, at, rows or 0, scale)


def answer_noise(episodes: Episodes, share: float, random: np.random.Generator) -> Int[np.ndarray, "batch length"]:
    """Responses in which a ``share`` of the values are random ones, so that the actor is never certain."""
    response = episodes.response
    task = episodes.task
    other = random.integers(task.first_value, task.first_value + task.values, response.shape, np.int32)
    return np.where(episodes.judged & (random.random(response.shape) < share), other, response)


def draw_lines(
    episodes: Episodes, width: int, rows: int, wrong: float, chunk: int, random: np.random.Generator
) -> Lines:
    """A quarter of the episodes in the teacher's form, the others in the student's, ``chunk`` of them alike.

    Summaries of more facts come more often: they are harder to look up in.

    Args:
      rows: most rows of memory.
      wrong: share of random values among the answers.
    """
    task = episodes.task
    response = answer_noise(episodes, wrong, random)
    full = len(response) // 4
    found = [full_lines(_part(episodes, slice(0, full)), response[:full], width)]
    for start in range(full, len(response), chunk):
        part = slice(start, min(start + chunk, len(response)))
        empty = random.random() < 0.25
        found.append(
            stated_lines(
                _part(episodes, part),
                response[part],
                width,
                count=int(random.integers(0, task.facts + 1, 2).max()),
                terse=bool(random.random() < 0.6),
                filler=int(random.integers(0, _most_filler(task) + 1)) if random.random() < 0.5 else 0,
                rows=None if empty else int(random.integers(0, rows + 1)),
                scale=0.0 if random.random() < 0.25 else float(random.uniform(0, 2)),
                after=int(random.integers(0, task.boundaries)),
            )
        )
    return Lines(**{name: np.concatenate([getattr(line, name) for line in found]) for name in vars(found[0])})


def _part(episodes: Episodes, rows: slice) -> Episodes:
    return Episodes(
        task=episodes.task,
        index=episodes.index[rows],
        units=episodes.units[rows],
        histories=tuple(history[rows] for history in episodes.histories),
        priority=episodes.priority[rows],
        asked=episodes.asked[rows],
        fill=episodes.fill[rows],
    )
