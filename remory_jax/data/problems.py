"""Records that cannot be used: each is reported with its file, row and reason, counted, and skipped or fatal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from costmodel_jax.errors import CostModelError, InputError

__all__ = ["REASONS", "OnProblem", "Problem", "Problems", "RefusedError"]

OnProblem = Literal["skip", "fatal"]

REASONS: dict[str, str] = {
    "unreadable": "the file or row is not JSON Lines or Parquet that can be decoded",
    "wrong_shape": "a field is missing or of another type than its format says",
    "empty_text": "nothing to read: no question, answer, reasoning or message text",
    "no_tokens": "a run of lengths only: its segments hold neither token ids nor text",
    "template_rewrites": "the chat template changes earlier messages in a way that tokens cannot follow",
    "template_refuses": "the chat template refuses the conversation, for example because roles do not alternate",
    "several_streams": "a run that rewinds, or starts anew and compacts as recorded, is no single stream of tokens",
    "no_boundary": "too short for the policy to compact, or nothing left to continue with",
    "too_short": "fewer tokens than the least that is asked for",
    "empty_history": "a boundary that replaces no tokens",
    "empty_summary": "a summary of zero tokens",
    "no_summary": "no summary yet: make them with `python -m launch.prepare_data summaries`",
    "empty_response": "no response token that is judged",
    "prefix_too_long": "the prefix is longer than that of any bucket",
    "history_too_long": "a history is longer than that of the largest bucket",
    "summary_too_long": "a summary is longer than that of any bucket",
    "response_too_long": "the response is longer than that of any bucket",
    "too_many_boundaries": "more boundaries than any bucket has",
    "response_truncated": "used, but the end of the response was cut off to fit",
}
"""Every reason that is ever counted. Only ``response_truncated`` leaves a usable example."""


class RefusedError(CostModelError):
    """A record or example that is of no use, raised by what found out and reported by who knows where it came from.

    Args:
      reason: key of ``REASONS``.
      message: as of `Problem`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record that could not be used.

    Attributes:
      reason: key of ``REASONS``.
      message: what is wrong, which rule and how to mend it; never text of the record.
      path: its file.
      row: 1-based line of a JSON Lines file, 0-based row of a Parquet file.
      id: of the record, once it has one.
    """

    reason: str
    message: str
    path: str | None = None
    row: int | None = None
    id: str | None = None

    def __str__(self) -> str:
        place = "" if self.path is None else self.path if self.row is None else f"{self.path}:{self.row}"
        named = "" if self.id is None else f"{self.id}"
        where = ", ".join(part for part in (place, named) if part)
        return f"{where}: {self.message} [{self.reason}]" if where else f"{self.message} [{self.reason}]"


class Problems:
    """What reading, cutting and bucketing passed over.

    Args:
      on_problem: ``fatal`` raises at the first one, ``skip`` counts it and goes on.
      log: a JSON Lines file that every problem is appended to.
      kept: how many are kept in memory one by one; beyond that they are counted (and logged) only.
    """

    def __init__(self, on_problem: OnProblem = "skip", *, log: str | Path | None = None, kept: int = 1000) -> None:
        if on_problem not in ("skip", "fatal"):
            raise ValueError(f"on_problem = {on_problem!r}; use 'skip' or 'fatal'")
        self.on_problem = on_problem
        self.counts: Counter[str] = Counter()
        self.list: list[Problem] = []
        self._log = None if log is None else Path(log)
        self._kept = kept

    def report(
        self,
        reason: str,
        message: str,
        *,
        path: str | Path | None = None,
        row: int | None = None,
        id: str | None = None,
    ) -> None:
        """Count a problem and keep it.

        Raises:
          InputError: where problems are fatal; a truncated response is not.
        """
        if reason not in REASONS:
            raise ValueError(f"reason {reason!r} is none of {', '.join(REASONS)}")
        problem = Problem(reason=reason, message=message, path=None if path is None else str(path), row=row, id=id)
        if self.on_problem == "fatal" and reason != "response_truncated":
            raise InputError(str(problem))
        self.counts[reason] += 1
        if len(self.list) < self._kept:
            self.list.append(problem)
        if self._log is not None:
            with self._log.open("ab") as stream:
                stream.write(msgspec.json.encode(problem) + b"\n")

    @property
    def passed_over(self) -> int:
        """Records or examples that are not used."""
        return sum(count for reason, count in self.counts.items() if reason != "response_truncated")

    def summary(self) -> dict[str, int]:
        """Counts by reason, the most frequent first."""
        return dict(self.counts.most_common())
