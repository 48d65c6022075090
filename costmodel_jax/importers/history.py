"""The recorded client's history: which earlier segments a prompt still shows, and the edits that changed it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import msgspec

from costmodel_jax.schema import Edit, Segment

__all__ = ["Cause", "History", "Removal", "Shown"]

Cause = Literal["compaction", "clear_tool_results", "reasoning_dropped", "rewind", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """Why a piece left the context, and how many characters of text were put in its place."""

    cause: Cause
    left: int = 0


@dataclasses.dataclass
class Shown:
    """A segment in the client's history: the recorded range it stands for, and what is left of it.

    Attributes:
      start, stop: the range of recorded segments.
      segment: what is shown.
      key: the importer's name of the piece it came from.
    """

    start: int
    stop: int
    segment: Segment
    key: str | None = None

    @property
    def kind(self) -> str:
        """The segment's kind."""
        return self.segment.kind

    @property
    def tokens(self) -> int:
        """The segment's length."""
        return self.segment.tokens

    def cut(self, left: int, cause: Cause) -> Edit:
        """Leave ``left`` tokens, and say so as an edit."""
        self.segment = msgspec.structs.replace(self.segment, tokens=left, ids=None)
        return Edit(start=self.start, stop=self.stop, segment=self.segment if left else None, cause=cause)


class History:
    """What a session shows.

    Every method that changes it returns the edits that say so. The common ones (append, drop what was just generated,
    cut the end) take time in what they touch, not in the length of the history: threads may have many thousand calls.

    Attributes:
      entries: what is shown, in order.
      tokens: its length.
    """

    def __init__(self) -> None:
        self.entries: list[Shown] = []
        self.tokens = 0
        self._recorded = 0
        self._clean = 0  # so many leading entries hold no reasoning

    def append(self, segment: Segment, key: str | None) -> None:
        """Show a segment that was just recorded."""
        self.entries.append(Shown(self._recorded, self._recorded + 1, segment, key))
        self._recorded += 1
        self.tokens += segment.tokens

    def clear(self) -> None:
        """Begin anew, as a session does; recorded segments keep their numbers."""
        self.entries, self.tokens, self._clean = [], 0, 0

    def drop_reasoning(self) -> list[Edit]:
        """Hide all reasoning: a client that never sends it again."""
        recent = self.entries[self._clean :]
        gone = [entry for entry in recent if entry.kind == "reasoning" and entry.tokens]
        self.entries[self._clean :] = [entry for entry in recent if entry.kind != "reasoning"]
        self._clean = len(self.entries)
        self.tokens -= sum(entry.tokens for entry in gone)
        return [Edit(start=entry.start, stop=entry.stop, cause="reasoning_dropped") for entry in gone]

    def remove(self, removed: Mapping[str, Removal], ratio: float) -> list[Edit]:
        """Hide the pieces the log shows to be gone, neighbours with one edit; a replacement keeps its place.

        Args:
          removed: by key of the piece.
          ratio: characters per token, for the size of a replacement.
        """
        edits: list[Edit] = []
        kept: list[Shown] = []
        neighbours = False  # the entry before this one was hidden too
        for entry in self.entries:
            removal = removed.get(entry.key) if entry.key is not None else None
            if removal is None or removal.left:
                kept.append(entry)
            if removal is None:
                neighbours = False
            elif removal.left:
                edits.append(entry.cut(min(entry.tokens, max(1, round(removal.left / ratio))), removal.cause))
                neighbours = False
            elif neighbours and edits[-1].cause == removal.cause:
                edits[-1] = msgspec.structs.replace(edits[-1], stop=max(edits[-1].stop, entry.stop))
            else:
                edits.append(Edit(start=entry.start, stop=entry.stop, cause=removal.cause))
                neighbours = True
        self._keep(kept)
        return edits

    def compact(self, prompt: int | None, cached: int | None) -> list[Edit]:
        """Hide everything after the kept head: what was read from the cache, or else the system prompt and tools.

        Args:
          prompt: length of the prompt that follows, where measured.
          cached: how much of that prompt the server read from its cache, where measured.
        """
        room = self.tokens if prompt is None else min(prompt, self.tokens)
        kept, tokens = 0, 0
        for entry in self.entries:
            inside = tokens + entry.tokens <= cached if cached else entry.kind in ("system", "tools")
            if not inside or tokens + entry.tokens > room:
                break
            kept, tokens = kept + 1, tokens + entry.tokens
        if kept == len(self.entries):
            # Even a full hit cannot mean that nothing was compacted: the last segment at least made way.
            kept, tokens = kept - 1, tokens - self.entries[-1].tokens
        # A hit inside a segment shows that its beginning survived, which only a part of the segment can express.
        left = max(0, min(cached or 0, room) - tokens)
        return [self._merge(kept, len(self.entries), left, "compaction")]

    def clear_tools(self, amount: int) -> list[Edit]:
        """Clear tool results, oldest first, until ``amount`` tokens are gone or none is left."""
        return self._cut_kind("tool", amount, 0, "clear_tool_results")

    def shrink(self, least: int, amount: int, cached: int | None, *, user_turn: bool) -> list[Edit]:
        """Remove tokens from a history that turned out longer than the prompt, where the log's evidence puts the break.

        What the server read from its cache is not touched unless nothing else is left. At a user message the reasoning
        of earlier turns goes, if there is enough of it; otherwise the cause stays unknown.

        Args:
          least: tokens that must go for the prompt to hold the rest.
          amount: tokens to remove for the estimated new input to fit as well.
          cached: how much of the prompt the server read from its cache, where measured.
          user_turn: whether a user message arrived.
        """
        head = next((i for i, e in enumerate(self.entries) if e.kind not in ("system", "tools")), len(self.entries))
        first, tail, thoughts = len(self.entries), 0, 0
        while first > head and self.tokens - tail - self.entries[first - 1].tokens >= (cached or 0):
            first -= 1
            tail += self.entries[first].tokens
            thoughts += self.entries[first].tokens if self.entries[first].kind == "reasoning" else 0
        if user_turn and thoughts >= least:
            return self._cut_kind("reasoning", min(amount, thoughts), first, "reasoning_dropped")
        while first > 0 and tail < least:
            first -= 1
            tail += self.entries[first].tokens
        last, gone = first, 0
        while gone < min(amount, tail):
            gone += self.entries[last].tokens
            last += 1
        return [self._merge(first, last, max(0, gone - amount), "unknown")]

    def _cut_kind(self, kind: str, amount: int, first: int, cause: Cause) -> list[Edit]:
        """Remove ``amount`` tokens from the segments of one kind, oldest first."""
        edits = []
        for entry in self.entries[first:]:
            if entry.kind == kind and entry.tokens and amount:
                gone = min(amount, entry.tokens)
                edits.append(entry.cut(entry.tokens - gone, cause))
                amount -= gone
        self._keep(self.entries)
        return edits

    def _merge(self, first: int, last: int, left: int, cause: Cause) -> Edit:
        """Leave ``left`` tokens of the entries ``first`` to ``last``, and say so as one edit."""
        entries = self.entries[first:last]
        merged = Shown(min(e.start for e in entries), max(e.stop for e in entries), entries[0].segment, entries[0].key)
        self.tokens -= sum(entry.tokens for entry in entries) - left
        edit = merged.cut(left, cause)
        self.entries[first:last] = [merged] if left else []
        self._clean = min(self._clean, first)
        return edit

    def _keep(self, entries: list[Shown]) -> None:
        self.entries = [entry for entry in entries if entry.tokens]
        self.tokens = sum(entry.tokens for entry in self.entries)
        self._clean = 0
