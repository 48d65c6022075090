"""Logged pairs of an API request and its response: which pairs form one conversation.

A request continues the conversation whose first request it begins with, or whose latest message it holds, or whose
response it names. Whatever fits none begins a conversation, and every conversation is a run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers.conversation import Conversation, Exchange, Message
from costmodel_jax.importers.fields import Place, digest, record
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.importers.threads import Thread, count_once, runs_of
from costmodel_jax.schema import Run

__all__ = ["Exchange", "Message", "grouped", "pair", "read_pairs", "responses"]


def grouped(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages with neighbouring parts of one answer put together, as a response has them."""
    made: list[Message] = []
    for message in messages:
        if made and message.role == made[-1].role == "assistant":
            mark = digest([made[-1].mark, message.mark])
            made[-1] = Message(mark=mark, role="assistant", pieces=made[-1].pieces + message.pieces)
        else:
            made.append(message)
    return tuple(made)


def pair(value: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The request and the response of a logged pair; ``None`` if a value is none."""
    response = record(value, "response")
    body = record(response, "body")
    return (record(value, "request"), body or response) if response else None


def responses(source: Source) -> list[dict[str, Any]]:
    """The responses of a file's leading pairs, for detection."""
    values = [part for value in source.head() for part in (value[:20] if isinstance(value, list) else (value,))]
    return [found[1] for value in values if (found := pair(value)) is not None]


def read_pairs(
    sources: Sequence[Source],
    options: Options,
    *,
    format: str,
    exchange: Callable[[Any, Place, Options], Exchange | None],
    reasoning_shown: bool | None,
) -> list[Run]:
    """Read files of pairs; a response that stands in several of them counts once.

    Args:
      sources: the files.
      options: lenient reading skips a record that cannot be read, and counts it.
      format: of the runs.
      exchange: makes an exchange of a value, ``None`` if it is no model call.
      reasoning_shown: what it means that a conversation shows no reasoning: that there was none (``False``), or
        nothing (``None``).

    Raises:
      InputError: with file, line and field.
    """
    threads: list[Thread] = []
    for source in sources:
        exchanges = []
        seen: set[Hashable] = set()
        for line, value in source.values(options):
            place = Place(path=source.path, line=line, field="response")
            try:
                made = exchange(value, place, options)
            except InputError as error:
                options.skip("skipped_record", error)
                continue
            if made is None:
                options.report("skipped_record", place.error("is no answer of a model"))
            elif made.usage is None and options.count_tokens is None:
                rule = "is missing: this call has no token counts; name a tokenizer with --tokenizer to estimate them"
                options.skip("skipped_record", place.at("usage").error(rule))
            elif made.key not in seen:
                seen.add(made.key)
                exchanges.append(made)
        threads += _threads(exchanges, source.name.rsplit(".", 1)[0], options, reasoning_shown)
    count_once(threads)
    return runs_of(threads, format, options)


def _threads(exchanges: Iterable[Exchange], name: str, options: Options, reasoning_shown: bool | None) -> list[Thread]:
    """Sort the exchanges of one file, in its order, into conversations."""
    found: list[Conversation] = []
    ending: dict[str, dict[int, None]] = {}  # conversations by the marks a request that continues them must hold
    replied: dict[str, int] = {}  # conversations by the identity of their responses
    for exchange in exchanges:
        position = replied.get(exchange.previous or "")
        whole = position is None
        if position is None:
            candidates = {i for message in exchange.messages for i in ending.get(message.mark, ())}
            fitting = (i for i in sorted(candidates) if found[i].continued_by(exchange))
            position = max(fitting, key=lambda i: found[i].last.place.line or 0, default=None)
        if position is None and exchange.previous is None and found and found[-1].hides(exchange):
            position, whole = len(found) - 1, False
        if position is None:
            position = len(found)
            found.append(Conversation(exchange))
        found[position].add(exchange, whole=whole)
        for shown in (found[position].first, exchange):
            if shown.messages:
                ending.setdefault(shown.messages[-1].mark, {})[position] = None
        if exchange.identity is not None:
            replied[exchange.identity] = position
    for number, conversation in enumerate(found, start=1):
        thread = conversation.thread
        thread.id = name if len(found) == 1 else f"{name}/{number}"
        thread.model = next((model for model, _ in conversation.models.most_common(1)), None)
        pieces = (piece for observation in thread.observations for piece in observation.output)
        thread.reasoning_shown = True if any(piece.kind == "reasoning" for piece in pieces) else reasoning_shown
    return [conversation.thread for conversation in found]
