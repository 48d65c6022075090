"""OpenAI Chat Completions and Responses, and DeepSeek's variant: pairs of request and response, one a line.

Usage is per call and inclusive: cached tokens are part of the prompt, reasoning tokens part of the output. DeepSeek
gives hits and misses that add up to the prompt. Earlier reasoning is not sent again by Chat Completions, and dropped
by Responses at the next user message. Sources: the API references (``usage``, ``previous_response_id``) and DeepSeek's
guide to context caching.
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

__all__ = ["IMPORTER"]

NAME = "openai"
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def detect(source: Source) -> bool:
    """Pairs whose response has choices, or is a ``response`` object."""
    return any(_chat(response) or _responses(response) for response in responses(source))


def _chat(response: dict[str, Any]) -> bool:
    return isinstance(response.get("choices"), list)


def _responses(response: dict[str, Any]) -> bool:
    return response.get("object") == "response" and isinstance(response.get("output"), list)


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read all pairs."""
    return read_pairs(sources, options, format=NAME, exchange=_exchange, reasoning_shown=None)


def _exchange(value: Any, place: Place, options: Options) -> Exchange | None:
    request, response = pair(value) or ({}, {})
    if not _chat(response) and not _responses(response):
        return None
    usage = None
    if isinstance(response.get("usage"), dict):
        usage = (_chat_usage if _chat(response) else _responses_usage)(response["usage"], place.at("usage"))
    tokens = options.count_tokens if usage is None else None
    identity = text(response, "id")
    output = _choices(response, tokens) if _chat(response) else _items(response["output"], tokens)
    return Exchange(
        place=place,
        key=identity or (place.path, place.line),
        messages=grouped(_messages(request, tokens)),
        output=tuple(output),
        usage=usage,
        model=text(response, "model") or text(request, "model"),
        time=seconds(response.get("created", response.get("created_at"))),
        identity=identity,
        previous=text(request, "previous_response_id"),
        hides_reasoning=True,
    )


def _chat_usage(usage: dict[str, Any], place: Place) -> Usage:
    """``usage`` of Chat Completions; DeepSeek's hits and misses where it has those."""
    prompt = _required(usage, "prompt_tokens", place)
    details = record(usage, "prompt_tokens_details")
    hit = counter(usage, "prompt_cache_hit_tokens", place)
    miss = counter(usage, "prompt_cache_miss_tokens", place)
    if hit is not None and miss is not None and hit + miss != prompt:
        raise place.error(f"gives {hit} hit and {miss} missed tokens of a prompt of {prompt}; they must add up to it")
    cached = hit if hit is not None else counter(details, "cached_tokens", place.at("prompt_tokens_details"))
    written = counter(details, "cache_write_tokens", place.at("prompt_tokens_details"))
    return _usage(usage, place, prompt, cached, written, "completion_tokens")


def _responses_usage(usage: dict[str, Any], place: Place) -> Usage:
    """``usage`` of Responses."""
    prompt = _required(usage, "input_tokens", place)
    details = record(usage, "input_tokens_details")
    cached = counter(details, "cached_tokens", place.at("input_tokens_details"))
    written = counter(details, "cache_write_tokens", place.at("input_tokens_details"))
    return _usage(usage, place, prompt, cached, written, "output_tokens")


def _usage(
    usage: dict[str, Any], place: Place, prompt: int, cached: int | None, written: int | None, output: str
) -> Usage:
    # Writes are not billed apart, so a log that counts reads and no writes has none.
    writes = written if written is not None or cached is None else 0
    details = record(usage, f"{output}_details")
    return made_usage(
        place,
        prompt_tokens=prompt,
        cached_tokens=cached,
        cache_write_5m=writes,
        cache_write_1h=None if writes is None else 0,
        output_tokens=_required(usage, output, place),
        reasoning_tokens=counter(details, "reasoning_tokens", place.at(f"{output}_details")),
    )


def _required(usage: dict[str, Any], name: str, place: Place) -> int:
    count = counter(usage, name, place)
    if count is None:
        raise place.at(name).error("is missing; a missing count is never read as zero")
    return count


def _messages(request: dict[str, Any], tokens: Tokens) -> Iterator[Message]:
    """The messages of a request, tools and instructions first."""
    tools, instructions = request.get("tools"), request.get("instructions")
    if tools:
        yield Message(mark=digest(["tools", json_text(tools)]), role="tools", pieces=(definitions(tools, tokens),))
    if isinstance(instructions, str) and instructions:
        system = text_piece("system", instructions, tokens)
        yield Message(mark=digest(["system", instructions]), role="system", pieces=(system,))
    given = request.get("input")
    given = [{"role": "user", "content": given}] if isinstance(given, str) else items(request, "input")
    names: dict[str, str] = {}
    for message in items(request, "messages") or given:
        role = ROLES.get(text(message, "role") or "", "tool")
        if text(message, "role") is None:
            pieces = _item(message, names, tokens)
            role = "tool" if any(piece.kind == "tool" for piece in pieces) else "assistant"
        elif role == "assistant":
            pieces = _answer(message, names, tokens)
        elif role == "tool":
            result = record(message).get("content")
            name = names.get(text(message, "tool_call_id") or "") or text(message, "name")
            pieces = [text_piece("tool", result, tokens, name=name, result_hash=digest(result))]
        else:
            kind: Any = role
            pieces = [text_piece(kind, record(message).get("content"), tokens)]
        yield Message(mark=digest([role, _marked(message)]), role=role, pieces=tuple(pieces))


def _marked(message: Any) -> list[str]:
    """What identifies a message when it is sent again: its text and calls, not its ids or its reasoning."""
    calls = [json_text(record(call, "function").get("arguments")) for call in items(message, "tool_calls")]
    parts = ("content", "arguments", "output")
    return [content_text(record(message).get(part)) for part in parts] + calls


def _choices(response: dict[str, Any], tokens: Tokens) -> Iterator[Piece]:
    for choice in items(response, "choices"):
        yield from _answer(record(choice, "message"), {}, tokens)


def _answer(message: Any, names: dict[str, str], tokens: Tokens) -> list[Piece]:
    """An assistant message of Chat Completions: reasoning (some providers), text, tool calls."""
    pieces = []
    reasoning = text(message, "reasoning_content") or text(message, "reasoning")
    if reasoning is not None:
        pieces.append(text_piece("reasoning", reasoning, tokens))
    content = record(message).get("content")
    if content:
        pieces.append(text_piece("assistant", content, tokens))
    for call in items(message, "tool_calls"):
        name = text(call, "function", "name")
        names[text(call, "id") or ""] = name or ""
        pieces.append(tool_call(name, record(call, "function").get("arguments"), tokens))
    return pieces or [Piece(kind="assistant", tokens=None if tokens is None else 0)]


def _items(output: Sequence[Any], tokens: Tokens) -> Iterator[Piece]:
    for item in output:
        yield from _item(item, {}, tokens)


def _item(item: Any, names: dict[str, str], tokens: Tokens) -> list[Piece]:
    """An item of a Responses conversation that is no message by role: reasoning, a call, a result, or an answer."""
    kind = text(item, "type") or ""
    if kind == "reasoning":
        return [text_piece("reasoning", [item.get("summary"), item.get("content")], tokens)]
    if kind.endswith("_output"):
        result = item.get("output")
        name = names.get(text(item, "call_id") or "") or None
        return [text_piece("tool", result, tokens, name=name, result_hash=digest(result))]
    if kind.endswith("_call"):
        name = text(item, "name") or kind.removesuffix("_call")
        names[text(item, "call_id") or ""] = name
        return [tool_call(name, item.get("arguments", item.get("input", item.get("action"))), tokens)]
    return [text_piece("assistant", record(item).get("content"), tokens)]


IMPORTER = Importer(
    name=NAME,
    title="OpenAI Chat Completions, Responses or DeepSeek, request and response pairs",
    convention="per call, inclusive: cached tokens are part of the prompt, reasoning part of the output",
    key="response id",
    reuse="measured where the usage has details, else unknown",
    reasoning="billed where the usage has details, else unknown",
    detect=detect,
    read=read,
)
