"""Chat messages to pieces: shared by the formats that hold histories of messages, with usage or without.

A message becomes parts, a call becomes a turn (the parts of its prompt, the parts of its answer). What is new in a
prompt, and what left it, follows from comparing it with the prompt and the answer before it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from costmodel_jax.importers import fields
from costmodel_jax.importers.assemble import CHARACTERS_PER_TOKEN, Observation, Piece, assemble
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.history import Cause, Removal
from costmodel_jax.importers.pieces import unanswered_note
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Call, Evidence, Kind, Usage

__all__ = [
    "Part",
    "Turn",
    "calls",
    "counting",
    "evidence",
    "message_parts",
    "transcript",
    "unanswered",
]

Count = Callable[[str], int]
KINDS: dict[str, Kind] = {"system": "system", "developer": "system", "user": "user", "tool": "tool", "function": "tool"}
THOUGHTS = ("reasoning", "thinking", "redacted_thinking")
TOOL_CALLS = ("tool_use", "tool_call", "function_call")
CAUSES: dict[Kind, Cause] = {"tool": "clear_tool_results", "reasoning": "reasoning_dropped"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One text of a message. Equal parts are the same text to a cache.

    Attributes:
      kind: its segment kind.
      text: the text, which never leaves the importer.
      name, error, arguments_hash, result_hash: tool facts, as in ``Segment``.
    """

    kind: Kind
    text: str = ""
    name: str | None = None
    error: bool | None = None
    arguments_hash: str | None = None
    result_hash: str | None = None

    def piece(self, count: Count | None = None, key: str | None = None) -> Piece:
        """The part without its text: its size in characters and, where ``count`` is given, in tokens."""
        return Piece(
            kind=self.kind,
            size=fields.content_size(self.text),
            tokens=None if count is None else count(self.text),
            key=key,
            name=self.name,
            error=self.error,
            arguments_hash=self.arguments_hash,
            result_hash=self.result_hash,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """A model call: what it was sent, what it answered, what the server measured, and when (seconds)."""

    prompt: Sequence[Part]
    answer: Sequence[Part]
    usage: Usage | None = None
    time: float | None = None


def message_parts(
    message: Any, place: Place, *, user: Kind = "user", tools: dict[str, str] | None = None
) -> tuple[Part, ...]:
    """The parts of one chat message of any common dialect (OpenAI, LiteLLM, Inspect, OpenTelemetry).

    Args:
      message: role, content (a string or blocks), tool calls, reasoning.
      place: where it stands.
      user: the kind of a user message; ``tool`` where a client sends observations under that role.
      tools: names of tools by call id; the answer that calls a tool enters it here, the result finds it.

    Raises:
      InputError: if there is no message, or none of a known role.
    """
    if not isinstance(message, dict):
        raise place.error(f"is {fields.describe(message)}; a message is an object with a role")
    tools = {} if tools is None else tools
    role = fields.text(message, "role")
    if role == "assistant":
        return tuple(_answer(message, tools))
    if role not in KINDS:
        raise place.at("role").error(f"is unknown; known roles: assistant, {', '.join(KINDS)}")
    content = message.get("content") if message.get("content") is not None else message.get("parts")
    kind = user if KINDS[role] == "user" else KINDS[role]
    blocks = fields.items(content)
    if blocks and all(fields.text(block, "type") in ("tool_result", "tool_call_response") for block in blocks):
        kind = "tool"
    if kind != "tool":
        return (Part(kind=kind, text=fields.content_text(content)),)
    ids = [message.get("tool_call_id"), *fields.items(message, "tool_call_ids")]
    ids += [block.get("tool_use_id") or block.get("id") for block in blocks if isinstance(block, dict)]
    named = next((tools[name] for name in ids if isinstance(name, str) and name in tools), None)
    told = fields.text(message, "name") or fields.text(message, "function")
    text = fields.content_text(content)
    failed = True if fields.record(message, "error") else None
    return (Part(kind="tool", text=text, name=told or named, error=failed, result_hash=fields.digest(text)),)


def _answer(message: dict[str, Any], tools: dict[str, str]) -> list[Part]:
    """Reasoning, then what was said, then the tools called."""
    content = message.get("content") if message.get("content") is not None else message.get("parts")
    blocks = content if isinstance(content, list) else [content]
    thought = [block for block in blocks if fields.text(block, "type") in THOUGHTS]
    called = [block for block in blocks if fields.text(block, "type") in TOOL_CALLS]
    said = [block for block in blocks if fields.text(block, "type") not in (*THOUGHTS, *TOOL_CALLS)]
    apart = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking_blocks")
    parts = [Part(kind="reasoning", text=text) for text in [fields.content_text(thought or apart)] if text]
    text = fields.content_text(said)
    parts += [Part(kind="assistant", text=text)] if text else []
    for call in (*called, *fields.items(message, "tool_calls")):
        function = fields.record(call, "function") or fields.record(call)
        name = fields.text(function, "name") or fields.text(call, "function")
        arguments = function.get("arguments", function.get("input")) or {}
        number = fields.text(call, "id")
        if name and number:
            tools[number] = name
        hashed = fields.digest(arguments)
        parts.append(Part(kind="assistant", text=_spelled(name, arguments), name=name, arguments_hash=hashed))
    return parts or [Part(kind="assistant")]


def _spelled(name: str | None, arguments: Any) -> str:
    """A tool call as text."""
    try:
        spelled = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    except RecursionError:
        spelled = fields.content_text(arguments)
    return f"{name or ''} {spelled}"


def transcript(messages: Sequence[Any], place: Place, *, observations: bool = False) -> list[Turn]:
    """A plain history: every assistant message is a call whose prompt is all that stands before it.

    Args:
      messages: the messages, in order. Those after the last answer reached no model.
      place: where the list stands.
      observations: user messages after the first answer are results of the agent's actions.
    """
    turns: list[Turn] = []
    prompt: list[Part] = []
    tools: dict[str, str] = {}
    for i, message in enumerate(messages):
        user: Kind = "tool" if observations and turns else "user"
        parts = message_parts(message, place.at(f"[{i}]"), user=user, tools=tools)
        if message["role"] == "assistant":
            turns.append(Turn(prompt=tuple(prompt), answer=parts))
        prompt += parts
    return turns


def unanswered(messages: Sequence[Any]) -> tuple[str, ...]:
    """A note on user messages that no call of the log saw."""
    roles = [fields.text(message, "role") for message in messages]
    last = max((i for i, role in enumerate(roles) if role == "assistant"), default=-1)
    count = roles[last + 1 :].count("user")
    return (unanswered_note(count),) if count else ()


def counting(options: Options, source: Source) -> Count:
    """The tokenizer the user named, asked once per text; it refuses with advice where none was named."""
    known: dict[str, int] = {}

    def count(text: str) -> int:
        if text not in known:
            known[text] = options.tokens(text, source)
        return known[text]

    return count


def calls(turns: Sequence[Turn], source: Source, options: Options) -> tuple[Call, ...]:
    """Turns to the calls of a run; a run with a turn without usage is counted with the tokenizer throughout.

    Raises:
      InputError: without usage, if no tokenizer was named.
    """
    count = counting(options, source) if any(turn.usage is None for turn in turns) else None
    serial = 0
    # Reasoning that no answer shows cannot be sent again by a client of chat completions.
    resends = any(part.kind == "reasoning" for turn in turns for part in turn.answer)
    shown: list[tuple[str, Part]] = []
    observations = []
    for turn in turns:
        removed, shown, fresh = _changes(shown, turn.prompt, count)
        added = []
        for part in (*fresh, *turn.answer):
            added.append((f"{serial}", part))
            serial += 1
        pieces = [part.piece(count, key) for key, part in added]
        shown = [*shown, *added]
        observations.append(
            Observation(
                usage=None if count is not None else turn.usage,
                input=pieces[: len(fresh)],
                output=pieces[len(fresh) :],
                time=turn.time,
                resends_reasoning=resends,
                removed=removed,
            )
        )
    return assemble(observations, path=source.path)


def _changes(
    shown: list[tuple[str, Part]], prompt: Sequence[Part], count: Count | None
) -> tuple[dict[str, Removal], list[tuple[str, Part]], list[Part]]:
    """What left the context, what of it is still shown, and what is new at its end."""
    same = next((i for i, (old, new) in enumerate(zip(shown, prompt, strict=False)) if old[1] != new), None)
    same = min(len(shown), len(prompt)) if same is None else same
    if same == len(shown):
        return {}, shown, list(prompt[same:])
    # Without usage the assembler takes replacements at its own ratio, so this much text is exactly that many tokens.
    size = _size if count is None else lambda part: round(count(part.text) * CHARACTERS_PER_TOKEN)
    removed: dict[str, Removal] = {}
    kept = shown[:same]
    old, later = shown[same:], list(prompt[same:])
    matcher = difflib.SequenceMatcher(None, [part for _, part in old], later, autojunk=False)
    for tag, start, stop, begin, end in matcher.get_opcodes():
        gone, come = old[start:stop], later[begin:end]
        if tag == "equal":
            kept += gone
            continue
        grown = any(size(new) > size(part) for (_, part), new in zip(gone, come, strict=False))
        if end == len(later) or len(come) > len(gone) or grown:
            # An edit shows less in the same place; more can only leave and come again with all that follows it.
            removed |= {key: Removal(cause=_cause(part)) for key, part in old[start:]}
            return removed, kept, later[begin:]
        for (key, part), new in zip(gone, come, strict=False):
            removed[key] = Removal(cause=_cause(part), left=size(new))
            kept.append((key, new))
        removed |= {key: Removal(cause=_cause(part)) for key, part in gone[len(come) :]}
    return removed, kept, []


def _size(part: Part) -> int:
    return fields.content_size(part.text)


def _cause(part: Part) -> Cause:
    return CAUSES.get(part.kind, "unknown")


def evidence(turns: Sequence[Turn], *, shows_reasoning: bool) -> Evidence:
    """Where the numbers of a run made by ``calls`` come from.

    Args:
      turns: its turns.
      shows_reasoning: the format has a place for reasoning, so that none there is an observation.
    """
    thoughts = any(part.kind == "reasoning" for turn in turns for part in turn.answer)
    if all(turn.usage is not None for turn in turns):
        return fields.evidence([turn.usage for turn in turns], reasoning_shown=thoughts if shows_reasoning else None)
    return Evidence(lengths="modelled", reasoning="observed" if thoughts or shows_reasoning else "unknown")
