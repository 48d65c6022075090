"""`LedgerTask`: a history of facts, a summary that keeps some of them, and a response that asks for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from remory_jax.data.template import Template

__all__ = ["ASK", "PREFIX", "LedgerTask"]

PREFIX = (1, 2)
"""Ids of the persistent instructions."""

_S_OPEN, _S_CLOSE, _M_OPEN, _M_CLOSE, ASK, _FIRST = 3, 4, 5, 6, 7, 8


@dataclass(frozen=True, kw_only=True)
class LedgerTask:
    """The ledger: what the summary leaves out can only come from the memory.

    Every episode draws its keys (distinct) and values afresh, so nothing but looking up in the context answers it. The
    history holds the facts in random places with filler around them. A fact reads, by variant::

        A   key value                     2 tokens: nothing in it is superfluous
        B   key value value value         4 tokens, all informative
        C   key value filler filler       4 tokens, half of them filler

    The response is ``ask`` and then every key with its values, in random order; only values are judged. Summaries state
    facts as the history does, or, with ``terse``, without filler: the summary's cost of a fact is `fact_tokens`.

    Raises:
      ValueError: sizes that contradict one another.
    """

    facts: int = 8  # over all histories
    kept: int = 2  # of them in the last summary
    variant: Literal["A", "B", "C"] = "C"
    history: int = 64  # tokens over all histories, facts and filler
    keys: int = 32  # vocabulary of keys, of values and of filler
    values: int = 32
    fillers: int = 16
    slots: int = 8  # rows of memory at the last boundary: the budget that summary++ spends on text instead
    boundaries: int = 1  # compactions; facts, kept ones and tokens are spread evenly over their histories
    terse: bool = False  # summaries without filler

    def __post_init__(self) -> None:
        if self.variant not in ("A", "B", "C"):
            raise ValueError(f"variant = {self.variant!r}; it is A, B or C")
        for name in ("facts", "history", "keys", "values", "fillers", "slots", "boundaries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.kept <= self.facts:
            raise ValueError(f"kept = {self.kept} of {self.facts} facts; it must be from 0 to all of them")
        if self.keys < self.facts:
            raise ValueError(f"keys = {self.keys} are too few for {self.facts} facts with distinct keys")
        for name in ("facts", "kept", "history"):
            if getattr(self, name) % self.boundaries:
                raise ValueError(f"{name} = {getattr(self, name)} is no multiple of boundaries = {self.boundaries}")
        if self.history < self.facts * self.unit:
            raise ValueError(
                f"history = {self.history} tokens are too few for {self.facts} facts of {self.unit} tokens each"
            )

    @property
    def answers(self) -> int:
        """Values of a fact."""
        return 3 if self.variant == "B" else 1

    @property
    def unit(self) -> int:
        """Tokens of a fact in the history."""
        return 2 if self.variant == "A" else 4

    @property
    def fact_tokens(self) -> int:
        """Tokens of a fact in a summary: C costs 4, or 2 where it is terse."""
        return 1 + self.answers if self.terse else self.unit

    @property
    def response(self) -> int:
        """Tokens of the response."""
        return 1 + self.facts * (1 + self.answers)

    @property
    def first_key(self) -> int:
        """The id of the first key; values and filler follow."""
        return _FIRST

    @property
    def first_value(self) -> int:
        """The id of the first value."""
        return _FIRST + self.keys

    @property
    def first_filler(self) -> int:
        """The id of the first filler token."""
        return _FIRST + self.keys + self.values

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return _FIRST + self.keys + self.values + self.fillers

    @property
    def template(self) -> Template:
        """The markers."""
        return Template(s_open=(_S_OPEN,), s_close=(_S_CLOSE,), m_open=(_M_OPEN,), m_close=(_M_CLOSE,))

    def extra_positions(self, rows: int | None = None) -> int:
        """What ``rows`` of memory (`slots`) cost the actor's context: the rows and their markers."""
        template = self.template
        return (self.slots if rows is None else rows) + len(template.m_open) + len(template.m_close)

    def extra_facts(self, rows: int | None = None) -> int:
        """Whole facts that summary++ states in those positions."""
        return min(self.extra_positions(rows) // self.fact_tokens, self.facts - self.kept)
