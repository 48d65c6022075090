"""Which model events of an Inspect sample belong to one conversation.

Spans of agents, branches and graders open threads; so do the nested events of tools and sub-tasks in older logs, and
one-token calls that warm a cache before a thread goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from costmodel_jax.importers import fields

__all__ = ["Event", "Thread", "threads"]

OPENS = ("agent", "branch", "handoff", "scorer", "scorers", "subtask")
GRADERS = ("scorer", "scorers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """A model event that is a call.

    Attributes:
      value: the event.
      index: its position among the sample's events.
      key: what makes it the same call in another file.
      named: whether that key is the log's own.
    """

    value: dict[str, Any]
    index: int
    key: str
    named: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thread:
    """Calls of one conversation; the main one has an empty name, the others name the thread they belong to."""

    name: str
    parent: str | None
    events: tuple[Event, ...]


def threads(events: Sequence[Any]) -> list[Thread]:
    """The threads of a sample, the main one first."""
    spans: dict[str, dict[str, Any]] = {}
    found: dict[str, list[Event]] = {}
    above: dict[str, str] = {}
    met: set[str] = set()
    stack: list[tuple[Any, int, str | None]] = [(event, i, None) for i, event in reversed(list(enumerate(events)))]
    while stack:
        event, index, inside = stack.pop()
        name = fields.text(event, "event")
        if name == "span_begin":
            spans.setdefault(fields.text(event, "id") or "", fields.record(event))
        elif name == "model" and _is_call(event):
            owner = inside or _owner(fields.text(event, "span_id"), spans)
            uuid = fields.text(event, "uuid")
            key = uuid or f"event-{len(met)}"
            if key not in met:
                found.setdefault(owner, []).append(Event(value=event, index=index, key=key, named=uuid is not None))
            met.add(key)
        nested = fields.items(event, "events")
        opened = f"nested-{fields.text(event, 'uuid') or index}"
        if nested:
            above.setdefault(opened, inside or _owner(fields.text(event, "span_id"), spans))
        stack += [(child, index, opened) for child in reversed(nested)]
    for owner in list(found):
        if owner in spans:
            above[owner] = _owner(fields.text(spans[owner], "parent_id"), spans)
    for owner, calls in list(found.items()):
        _split_warm_up(owner, calls, found, above)
    return _named(found, above, spans)


def _is_call(event: dict[str, Any]) -> bool:
    """An event that reached a model and was answered: not pending, not failed, not served from Inspect's own cache."""
    return event.get("cache") != "read" and bool(fields.items(event, "output", "choices"))


def _owner(span: str | None, spans: dict[str, dict[str, Any]]) -> str:
    """The nearest span at or above this one that opens a thread; empty where there is none."""
    passed: set[str] = set()
    while span is not None and span not in passed:
        passed.add(span)
        found = spans.get(span)
        if found is None:
            return ""
        if fields.text(found, "type") in OPENS:
            return span
        span = fields.text(found, "parent_id")
    return ""


def _split_warm_up(owner: str, calls: list[Event], found: dict[str, list[Event]], above: dict[str, str]) -> None:
    """Move one-token calls that come before others of their thread into threads of their own."""
    short = [fields.record(call.value, "config").get("max_tokens") == 1 for call in calls]
    last = max((i for i, one in enumerate(short) if not one), default=-1)
    for call, one in zip(list(calls[:last]), short, strict=False):
        if one:
            calls.remove(call)
            name = f"warm-up-{call.key}"
            found[name] = [call]
            above[name] = owner


def _named(found: dict[str, list[Event]], above: dict[str, str], spans: dict[str, dict[str, Any]]) -> list[Thread]:
    """Give the main thread the empty name, and every other its parent's."""

    def parent(owner: str) -> str | None:
        passed = {owner}
        higher = above.get(owner)
        while higher is not None and higher not in passed:
            if higher in found:
                return higher
            passed.add(higher)
            higher = above.get(higher)
        return None

    parents = {owner: parent(owner) for owner in found}
    grades = {owner for owner in found if fields.text(spans.get(owner), "type") in GRADERS}
    tops = [owner for owner in found if parents[owner] is None and owner not in grades]
    main = tops[0] if tops else next(iter(found), None)
    made = []
    for owner, calls in found.items():
        higher = parents[owner] if owner not in grades or parents[owner] is not None else main
        named = None if higher is None or owner == main else ("" if higher == main else higher)
        made.append(Thread(name="" if owner == main else owner or "root", parent=named, events=tuple(calls)))
    return sorted(made, key=lambda thread: thread.name != "")
