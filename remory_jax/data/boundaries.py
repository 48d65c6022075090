"""Where a context policy compacts a stream of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel_jax.compaction import Compact, CompactWithMemory
from remory_jax.data.examples import Ids
from remory_jax.data.records import Trajectory
from remory_jax.data.rendering import Renderer, TokenSegment

__all__ = ["Boundary", "policy_boundaries", "recorded_boundaries"]


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """One compaction.

    Attributes:
      call: the call before which it happens.
      head: segments (indices) that no compaction touches.
      removed: segments that this one replaces and no earlier one had.
      kept: segments of the history that stay behind the summary.
      summary: what the record itself put in their place.
    """

    call: int
    head: tuple[int, ...]
    removed: tuple[int, ...]
    kept: tuple[int, ...]
    summary: Ids | None = None


def policy_boundaries(segments: Sequence[TokenSegment], policy: Compact) -> list[Boundary]:
    """Boundaries of one session under ``costmodel_jax.Compact``, by the rule of its docstring.

    Its ``trigger``, ``keep_head``, ``keep_tail`` and ``summary`` (the expected length of one) decide; this is the same
    walk as the policy's own, segment by segment instead of compiled over padded tensors.
    """
    tokens = [len(segment.ids) for segment in segments]
    head = _head(segments, tokens, int(policy.keep_head))
    standing = int(policy.summary) + int(policy.slots if isinstance(policy, CompactWithMemory) else 0)
    gone: set[int] = set()
    found: list[Boundary] = []
    for call in range(1, 1 + max((segment.call for segment in segments), default=0)):
        history = [i for i, segment in enumerate(segments) if segment.call < call and i not in gone]
        arriving = sum(
            n for n, segment in zip(tokens, segments, strict=True) if segment.call == call and not segment.output
        )
        prompt = sum(tokens[i] for i in history) + arriving + (standing if found else 0)
        middle, behind = [], 0
        for i in reversed(history):
            behind += tokens[i]
            if i not in head and behind > int(policy.keep_tail) and tokens[i]:
                middle.append(i)
        if prompt <= int(policy.trigger) or not middle:
            continue
        middle.reverse()
        gone.update(middle)
        found.append(
            Boundary(
                call=call,
                head=tuple(sorted(head)),
                removed=tuple(middle),
                kept=tuple(i for i in history if i not in gone and i not in head),
            )
        )
    return found


def recorded_boundaries(segments: Sequence[TokenSegment], trajectory: Trajectory, renderer: Renderer) -> list[Boundary]:
    """Boundaries that the recorded client made: edits with cause ``compaction``, and the summaries it put there."""
    gone: set[int] = set()
    found: list[Boundary] = []
    for call, start, stop, piece in trajectory.replacements():
        head = found[0].head if found else tuple(range(start))
        removed = tuple(i for i in range(start, stop) if i not in gone and i not in head)
        gone.update(removed)
        history = [i for i, segment in enumerate(segments) if segment.call < call]
        found.append(
            Boundary(
                call=call,
                head=head,
                removed=removed,
                kept=tuple(i for i in history if i not in gone and i not in head),
                summary=None if piece is None else renderer.piece(piece),
            )
        )
    return found


def _head(segments: Sequence[TokenSegment], tokens: Sequence[int], keep: int) -> set[int]:
    """Leading system prompt and tools, then further leading segments while the total stays within ``keep``."""
    head: set[int] = set()
    total, leading = 0, True
    for i, segment in enumerate(segments):
        total += tokens[i]
        leading = leading and (segment.kind in ("system", "tools") or tokens[i] == 0)
        if (leading and segment.kind in ("system", "tools")) or total <= keep:
            head.add(i)
    return head
