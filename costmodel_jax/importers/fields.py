"""Typed access to the fields of foreign JSON: nothing raises but InputError, and no message holds text of a log."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from costmodel_jax.errors import InputError
from costmodel_jax.schema import Evidence, Usage

__all__ = [
    "Place",
    "content_size",
    "content_text",
    "counter",
    "describe",
    "digest",
    "evidence",
    "fact",
    "items",
    "json_size",
    "json_text",
    "made_usage",
    "record",
    "seconds",
    "text",
]

# Names of block types, ids, signatures and media inside a message's content: no text of the prompt.
NOT_TEXT = {"type", "id", "role", "status", "call_id", "callId", "tool_use_id", "tool_call_id", "signature"}
NOT_TEXT |= {"thoughtSignature", "encrypted_content", "cache_control", "media_type", "mimeType", "data", "image_url"}
LIMIT = 2**31  # of a count, as in the schema
# Logs published with their texts taken out state the length of each; it apportions tokens as the text would.
REDACTED = re.compile(r"\[REDACTED_[A-Z_]+ len=(\d{1,9})\b[^\]]*\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a log something stands: file, line, and the path of fields that leads to it."""

    path: str
    line: int | None = None
    field: str = ""

    def at(self, field: str) -> Place:
        """A field below this one."""
        return dataclasses.replace(self, field=f"{self.field}.{field}" if self.field else field)

    def error(self, rule: str) -> InputError:
        """An error that names file, line, field and the rule broken."""
        return InputError(f"{self.field} {rule}" if self.field else rule, path=self.path, line=self.line)


def describe(value: Any) -> str:
    """A value for a message: numbers as they are, of everything else only the type."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value)) or f"{value}"


def record(value: Any, *names: str) -> dict[str, Any]:
    """The object below ``names``; empty where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: Any, *names: str) -> list[Any]:
    """The array below ``names``; empty where there is none."""
    found = record(value, *names[:-1]).get(names[-1]) if names else value
    return found if isinstance(found, list) else []


def text(value: Any, *names: str) -> str | None:
    """The string below ``names``; ``None`` where there is none or it is empty."""
    found = record(value, *names[:-1]).get(names[-1]) if names else value
    return found if isinstance(found, str) and found else None


def fact(value: Any, *names: str) -> bool | None:
    """The boolean below ``names``; ``None`` where there is none."""
    found = record(value, *names[:-1]).get(names[-1])
    return found if isinstance(found, bool) else None


def counter(value: Mapping[str, Any], name: str, place: Place) -> int | None:
    """A token count, or ``None`` where the log does not say.

    Raises:
      InputError: if there is something else than a whole number from 0 to 2^31 - 1.
    """
    found = value.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int):
        raise place.at(name).error(f"is {describe(found)}; a token count is a whole number")
    if not 0 <= found < LIMIT:
        raise place.at(name).error(f"= {found}; a token count is at least 0 and below 2^31")
    return found


def made_usage(place: Place, **counts: int | None) -> Usage:
    """A ``Usage`` whose parts do not contradict each other.

    Args:
      place: the usage object, for messages.
      counts: the fields of ``Usage``.

    Raises:
      InputError: if a part exceeds its whole, or a sum leaves the range of a count.
    """
    usage = Usage(**counts)
    for name, count in counts.items():
        if count is not None and count >= LIMIT:
            raise place.error(f"gives {name} = {count}; a token count is below 2^31")
    whole, cached = usage.prompt_tokens, usage.cached_tokens or 0
    if whole is not None and cached > whole:
        raise place.error(f"gives {cached} cached tokens of a prompt of {whole}; was cached counted outside the input?")
    written = (usage.cache_write_5m or 0) + (usage.cache_write_1h or 0)
    if whole is not None and cached + written > whole:
        raise place.error(
            f"gives {cached + written} tokens read from and written to the cache of a prompt of {whole}; "
            "were they counted outside the input?"
        )
    reasoning = usage.reasoning_tokens or 0
    if usage.output_tokens is not None and reasoning > usage.output_tokens:
        raise place.error(
            f"gives {reasoning} reasoning tokens of an output of {usage.output_tokens}; "
            "was reasoning counted outside the output?"
        )
    return usage


def evidence(usages: Sequence[Usage | None], *, reasoning_shown: bool | None) -> Evidence:
    """Where a run's numbers come from.

    Args:
      usages: of every call; ``None`` where the lengths were counted with a tokenizer.
      reasoning_shown: without a reasoning counter: whether the log shows any reasoning, or ``None`` if the format could
        not show it. Reasoning that is shown but not counted is of unknown length; none at all is an observation.
    """
    counted = all(usage is not None and usage.reasoning_tokens is not None for usage in usages)
    if any(usage is not None and usage.reasoning_tokens for usage in usages):
        reasoning_shown = True  # counted on some calls only
    return Evidence(
        lengths="measured" if all(usage is not None for usage in usages) else "modelled",
        cached="measured" if all(u is not None and u.cached_tokens is not None for u in usages) else "unknown",
        reasoning="billed" if counted else "observed" if reasoning_shown is False else "unknown",
    )


def seconds(value: Any) -> float | None:
    """An ISO 8601 timestamp, or seconds or milliseconds since 1970, as seconds; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            stamp = datetime.datetime.fromisoformat(value)
        except ValueError:
            return None
        if stamp.tzinfo is None:
            stamp = stamp.replace(tzinfo=datetime.UTC)
        return (stamp - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)).total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1e15:
        # No log is from before 2001 in milliseconds, nor from after 5138 in seconds.
        return value / 1000.0 if value >= 1e11 else float(value)
    return None


def digest(value: Any) -> str:
    """A short stable hash of a tool's arguments or result: equal values give equal hashes, the text is gone.

    A string that holds JSON is hashed as that JSON, so spelling does not matter.
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    try:
        data = msgspec.json.encode(value, order="deterministic")
    except RecursionError:
        data = str(content_size(value)).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def content_text(value: Any) -> str:
    """All text in a message's content (a string, blocks, parts), joined: what a tokenizer counts."""
    return "\n".join(_strings(value))


def content_size(value: Any) -> int:
    """Length in characters of all text in a message's content; of a redacted text, the length it had."""
    size = 0
    for string in _strings(value):
        redacted = REDACTED.fullmatch(string) if string.startswith("[REDACTED_") else None
        size += int(redacted.group(1)) if redacted else len(string)
    return size


def json_text(value: Any) -> str:
    """A value as the model sees it in a tool call: a string as it is, the rest as JSON."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else msgspec.json.encode(value).decode()
    except RecursionError:
        return content_text(value)


def json_size(value: Any) -> int:
    """Length in characters of a value as the model sees it in a tool call."""
    return content_size(value) if isinstance(value, str) else len(json_text(value))


def _strings(value: Any) -> list[str]:
    """Every string inside a JSON value, in order, without recursion: logs nest as they please."""
    found: list[str] = []
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            kept = [part for name, part in value.items() if name not in NOT_TEXT]
            pending.extend(reversed(kept))
        elif isinstance(value, list):
            pending.extend(reversed(value))
    return found
