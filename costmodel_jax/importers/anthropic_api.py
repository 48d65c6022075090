"""Anthropic Messages: pairs of request and response, one a line.

Usage is per call and its parts exclude each other: prompt = input + cache creation + cache read; the output contains
the thinking, which newer responses count apart. Context edits the server applied (``applied_edits``) state what they
cleared from the request as a whole. Source: the Messages API reference (``usage``, ``cache_creation``,
``context_management``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from costmodel_jax.importers.assemble import Piece
from costmodel_jax.importers.fields import (
    Place,
    content_text,
    counter,
    digest,
    fact,
    items,
    json_text,
    made_usage,
    record,
    seconds,
    text,
)
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.pairs import Exchange, Message, grouped, pair, read_pairs, responses
from costmodel_jax.importers.pieces import Tokens, definitions, text_piece, tool_call
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Run, Usage

__all__ = ["IMPORTER", "SPLIT_NOTE", "messages_usage", "output_piece"]

NAME = "anthropic"
SPLIT_NOTE = (
    "cache write lifetimes do not add up to cache_creation_input_tokens; the 1-hour part is kept as far as it fits, "
    "the rest is taken as 5-minute writes"
)


def detect(source: Source) -> bool:
    """Pairs whose response is a ``message``."""
    return any(response.get("type") == "message" for response in responses(source))


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read all pairs."""
    return read_pairs(sources, options, format=NAME, exchange=_exchange, reasoning_shown=False)


def _exchange(value: Any, place: Place, options: Options) -> Exchange | None:
    request, response = pair(value) or ({}, {})
    if response.get("type") != "message":
        return None
    usage, mismatch = None, False
    if isinstance(response.get("usage"), dict):
        usage, mismatch = messages_usage(response["usage"], place.at("usage"))
    tokens = options.count_tokens if usage is None else None
    edits = record(response, "context_management")
    cleared = [
        counter(edit, "cleared_input_tokens", place.at("context_management.applied_edits")) or 0
        for edit in items(edits, "applied_edits")
        if (text(edit, "type") or "").startswith("clear_tool_uses")
    ]
    identity = text(response, "id")
    return Exchange(
        place=place,
        key=identity or (place.path, place.line),
        messages=grouped(_messages(request, tokens)),
        output=tuple(p for block in items(response, "content") if (p := output_piece(block, tokens=tokens))),
        usage=usage,
        model=text(response, "model") or text(request, "model"),
        time=seconds(record(value).get("timestamp")),
        identity=identity,
        cleared=sum(cleared),
        notes=(SPLIT_NOTE,) if mismatch else (),
    )


def _messages(request: dict[str, Any], tokens: Tokens) -> Iterator[Message]:
    """The messages of a request; marks that leave out what clients move about, such as cache breakpoints."""
    tools, system = request.get("tools"), request.get("system")
    if tools:
        yield Message(mark=digest(["tools", json_text(tools)]), role="tools", pieces=(definitions(tools, tokens),))
    if system:
        mark = digest(["system", content_text(system)])
        yield Message(mark=mark, role="system", pieces=(text_piece("system", system, tokens),))
    names: dict[str, str] = {}
    for message in items(request, "messages"):
        content = record(message).get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        assistant = text(message, "role") == "assistant"
        pieces = []
        for block in blocks:
            if text(block, "type") == "tool_use":
                names[text(block, "id") or ""] = text(block, "name") or ""
            piece = output_piece(block, tokens=tokens) if assistant else _given(block, names, tokens)
            pieces += [piece] if piece is not None else []
        role = "assistant" if assistant else "tool" if any(piece.kind == "tool" for piece in pieces) else "user"
        yield Message(mark=digest([role, len(blocks), content_text(content)]), role=role, pieces=tuple(pieces))


def _given(block: Any, names: dict[str, str], tokens: Tokens) -> Piece:
    """A content block of a user message: text, a picture, or a tool's result."""
    if text(block, "type") != "tool_result":
        return text_piece("user", block, tokens)
    result = block.get("content")
    return text_piece(
        "tool",
        result,
        tokens,
        name=names.get(text(block, "tool_use_id") or "") or None,
        error=fact(block, "is_error"),
        result_hash=digest(result),
    )


def messages_usage(usage: dict[str, Any], place: Place) -> tuple[Usage, bool]:
    """A ``usage`` object of the Messages API.

    Cache counters are absent or null where caching was not used, so they count as 0. Writes without a stated lifetime
    are 5-minute writes. A split into lifetimes is trusted if it adds up; otherwise its 1-hour part is kept as far as
    it fits and the rest is 5-minute writes.

    Returns:
      The usage, and whether the split did not add up.

    Raises:
      InputError: if a count is missing, no count, or contradicts another.
    """
    fresh = counter(usage, "input_tokens", place)
    read = counter(usage, "cache_read_input_tokens", place) or 0
    written = counter(usage, "cache_creation_input_tokens", place)
    output = counter(usage, "output_tokens", place)
    for name, count in (("input_tokens", fresh), ("output_tokens", output)):
        if count is None:
            raise place.at(name).error("is missing; a missing count is never read as zero")
    split = record(usage, "cache_creation")
    short = counter(split, "ephemeral_5m_input_tokens", place.at("cache_creation"))
    long = counter(split, "ephemeral_1h_input_tokens", place.at("cache_creation"))
    details = record(usage, "output_tokens_details")
    parts = (short or 0) + (long or 0)
    total = parts if written is None else written
    hour = min(long or 0, total)
    made = made_usage(
        place,
        prompt_tokens=(fresh or 0) + read + total,
        cached_tokens=read,
        cache_write_5m=total - hour,
        cache_write_1h=hour,
        output_tokens=output,
        reasoning_tokens=counter(details, "thinking_tokens", place.at("output_tokens_details")),
    )
    return made, (short is not None or long is not None) and parts != total


def output_piece(block: Any, key: str | None = None, *, tokens: Tokens = None) -> Piece | None:
    """A content block of an answer; ``None`` for what is none."""
    kind = text(block, "type")
    if kind is None:
        return None
    if kind in ("thinking", "redacted_thinking"):
        return text_piece("reasoning", block, tokens, key=key)
    name = text(block, "name")
    if name is None:
        return text_piece("assistant", block, tokens, key=key)
    return tool_call(name, block.get("input"), tokens, key=key)


IMPORTER = Importer(
    name=NAME,
    title="Anthropic Messages, request and response pairs",
    convention="per call, exclusive parts: prompt = input + cache creation + cache read",
    key="response id",
    reuse="measured",
    reasoning="billed where thinking is counted apart, else unknown where it is shown",
    detect=detect,
    read=read,
)
