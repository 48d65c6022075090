"""Pieces of messages: their size, and their token count where a tokenizer stands in for missing usage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from costmodel_jax.importers.assemble import Piece
from costmodel_jax.importers.fields import content_size, content_text, digest, json_text
from costmodel_jax.schema import Kind

__all__ = ["Tokens", "definitions", "text_piece", "tool_call", "unanswered_note"]

Tokens = Callable[[str], int] | None


def text_piece(kind: Kind, content: Any, tokens: Tokens, **facts: Any) -> Piece:
    """A piece of a message's content, with ``facts`` about the tool it came from."""
    counted = None if tokens is None else tokens(content_text(content))
    return Piece(kind=kind, size=content_size(content), tokens=counted, **facts)


def tool_call(name: str | None, arguments: Any, tokens: Tokens, *, key: str | None = None) -> Piece:
    """A piece of an answer that calls a tool."""
    shown = (name or "") + json_text(arguments)
    return Piece(
        kind="assistant",
        size=len(shown),
        tokens=None if tokens is None else tokens(shown),
        key=key,
        name=name,
        arguments_hash=digest(arguments),
    )


def definitions(tools: Any, tokens: Tokens) -> Piece:
    """The tool definitions of a request."""
    shown = json_text(tools)
    return Piece(kind="tools", size=len(shown), tokens=None if tokens is None else tokens(shown))


def unanswered_note(count: int) -> str:
    """The note of a run about user messages behind its last call."""
    return f"{count} user message{'s' * (count != 1)} after the last call, which no call of this log answers"
