"""The recorded client's history: which earlier segments a prompt still shows, and the edits that changed it.

A history is a list of ``Shown`` entries. Every function here changes such a list in place and returns the edits that
say so, in the numbering of ``schema.Edit``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import msgspec

from costmodel_jax.schema import Edit, Segment

__all__ = ["Cause", "Removal", "Shown", "compact", "drop_reasoning", "remove", "shown_tokens", "shrink", "shrink_tools"]

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


def shown_tokens(history: list[Shown]) -> int:
    """Length of what the history shows."""
    return sum(entry.tokens for entry in history)


def drop_reasoning(history: list[Shown], start: int) -> list[Edit]:
    """Hide all reasoning from entry ``start`` on: a client that never sends it again."""
    edits = [
        Edit(start=entry.start, stop=entry.stop, cause="reasoning_dropped")
        for entry in history[start:]
        if entry.kind == "reasoning" and entry.tokens
    ]
    history[start:] = [entry for entry in history[start:] if entry.kind != "reasoning"]
    return edits


def remove(history: list[Shown], removed: Mapping[str, Removal], ratio: float) -> list[Edit]:
    """Hide the pieces the log shows to be gone, neighbours with one edit; what replaced them keeps their place.

    Args:
      history: what was shown before.
      removed: by key of the piece.
      ratio: characters per token, for the size of a replacement.
    """
    edits: list[Edit] = []
    kept: list[Shown] = []
    gone: Shown | None = None  # the neighbour an edit just hid, so that one edit can go on over both
    for entry in history:
        removal = removed.get(entry.key) if entry.key is not None else None
        if removal is None or removal.left:
            gone = None
            kept.append(entry)
        if removal is None:
            continue
        if removal.left:
            left = min(entry.tokens, max(1, round(removal.left / ratio)))
            edits.append(_cut(entry, left, removal.cause))
        elif gone is not None and edits[-1].cause == removal.cause:
            edits[-1] = msgspec.structs.replace(edits[-1], stop=max(edits[-1].stop, entry.stop))
        else:
            edits.append(Edit(start=entry.start, stop=entry.stop, cause=removal.cause))
        if not removal.left:
            gone = entry
    history[:] = [entry for entry in kept if entry.tokens]
    return edits


def compact(history: list[Shown], prompt: int | None, cached: int | None) -> list[Edit]:
    """Hide everything after the kept head: what was read from the cache, or else the system prompt and tools.

    Args:
      history: what was shown before, not empty.
      prompt: length of the prompt that follows, where measured.
      cached: how much of that prompt the server read from its cache, where measured.
    """
    room = shown_tokens(history) if prompt is None else min(prompt, shown_tokens(history))
    kept, tokens = 0, 0
    for entry in history:
        inside = tokens + entry.tokens <= cached if cached else entry.kind in ("system", "tools")
        if not inside or tokens + entry.tokens > room:
            break
        kept, tokens = kept + 1, tokens + entry.tokens
    if kept == len(history):
        # Even a full hit cannot mean that nothing was compacted: the last segment at least made way.
        kept, tokens = kept - 1, tokens - history[-1].tokens
    # A hit inside a segment shows that its beginning survived, which only a part of the segment can express.
    left = max(0, min(cached or 0, room) - tokens)
    return [_merge(history, kept, len(history), left, "compaction")]


def shrink_tools(history: list[Shown], amount: int) -> list[Edit]:
    """Clear tool results, oldest first, until ``amount`` tokens are gone or none is left."""
    return _shrink_kind(history, amount, "tool", 0, "clear_tool_results")


def shrink(history: list[Shown], least: int, amount: int, cached: int | None, *, user_turn: bool) -> list[Edit]:
    """Remove tokens from a history that turned out longer than the prompt, where the log's evidence puts the break.

    What the server read from its cache is not touched unless nothing else is left. At a user message the reasoning of
    earlier turns goes, if there is enough of it; otherwise the cause stays unknown.

    Args:
      history: what was shown before.
      least: tokens that must go for the prompt to hold the rest.
      amount: tokens to remove for the estimated new input to fit as well.
      cached: how much of the prompt the server read from its cache, where measured.
      user_turn: whether a user message arrived.
    """
    positions = [0]
    for entry in history:
        positions.append(positions[-1] + entry.tokens)
    head = next((i for i, entry in enumerate(history) if entry.kind not in ("system", "tools")), len(history))
    from_cache = next((i for i, position in enumerate(positions) if position >= (cached or 0)), len(history))
    first = max(head, from_cache)
    thoughts = sum(entry.tokens for entry in history[first:] if entry.kind == "reasoning")
    if user_turn and thoughts >= least:
        return _shrink_kind(history, min(amount, thoughts), "reasoning", first, "reasoning_dropped")
    while first > 0 and positions[-1] - positions[first] < least:
        first -= 1
    amount = min(amount, positions[-1] - positions[first])
    last = next(i for i in range(first, len(history) + 1) if positions[i] - positions[first] >= amount)
    return [_merge(history, first, last, positions[last] - positions[first] - amount, "unknown")]


def _shrink_kind(history: list[Shown], amount: int, kind: str, first: int, cause: Cause) -> list[Edit]:
    """Remove ``amount`` tokens from the segments of one kind, oldest first."""
    edits = []
    for entry in history[first:]:
        if entry.kind == kind and entry.tokens and amount:
            cut = min(amount, entry.tokens)
            edits.append(_cut(entry, entry.tokens - cut, cause))
            amount -= cut
    history[:] = [entry for entry in history if entry.tokens]
    return edits


def _cut(entry: Shown, left: int, cause: Cause) -> Edit:
    """Leave ``left`` tokens of an entry, and say so as an edit."""
    entry.segment = msgspec.structs.replace(entry.segment, tokens=left, ids=None)
    return Edit(start=entry.start, stop=entry.stop, segment=entry.segment if left else None, cause=cause)


def _merge(history: list[Shown], first: int, last: int, left: int, cause: Cause) -> Edit:
    """Leave ``left`` tokens of the entries ``first`` to ``last``, and say so as one edit."""
    entries = history[first:last]
    merged = Shown(
        min(entry.start for entry in entries),
        max(entry.stop for entry in entries),
        entries[0].segment,
        entries[0].key,
    )
    edit = _cut(merged, left, cause)
    history[first:last] = [merged] if left else []
    return edit
