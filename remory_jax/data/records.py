"""Records of text, before any tokenizer: passages, conversations and trajectories."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from costmodel_jax.errors import CostModelError
from costmodel_jax.schema import Kind, Run
from remory_jax.data.problems import RefusedError

__all__ = ["Conversation", "Passage", "Piece", "Record", "Trajectory", "Turn"]

Role = Literal["system", "user", "assistant", "tool"]

# `from` of ShareGPT-style rows and `role` of chat messages.
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}


class Passage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text of its own: what Stage I reconstructs, or a document to be continued.

    Attributes:
      id: unique within its source.
      text: the whole text.
    """

    id: str
    text: str


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation.

    Attributes:
      role: who wrote it.
      text: its content.
      extra: further fields of a chat message that a template may render, such as ``tool_calls`` or ``name``.
    """

    role: Role
    text: str
    extra: dict[str, Any] = {}

    def message(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        return {**self.extra, "role": self.role, "content": self.text}


class Conversation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages in order, as of Open-PerfectBlend (``conversations: [{from, value}]``) or an agent's chat log.

    Attributes:
      id: unique within its source.
      turns: the messages.
      tools: tool definitions for the chat template.
    """

    id: str
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment of ``agent-run/1`` with what it says: token ids, or text that is still to be tokenised."""

    kind: Kind
    ids: tuple[int, ...] | None = None
    text: str | None = None
    name: str | None = None


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ``agent-run/1`` run whose segments carry token ids or text.

    The format itself holds lengths and ids only. Rows may give each segment a ``text`` beside or instead of
    ``tokens``; the structure is then checked as that of any run.

    Attributes:
      id: of the run.
      run: its structure. ``tokens`` of a segment that is given as text is 0 here.
      texts: text of each segment in recorded order (``None`` where it has ids), then of each edit's replacement.
    """

    id: str
    run: Run
    texts: tuple[str | None, ...]

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Trajectory:
        """Take the texts out of a row and check the rest.

        Raises:
          CostModelError: naming the field, the value and the rule.
        """
        value = msgspec.json.decode(msgspec.json.encode(value))  # a copy to take the texts from
        texts: list[str | None] = []
        for where, segment in _segments(value):
            text = segment.pop("text", None)
            if text is not None and not isinstance(text, str):
                raise CostModelError(f"{where}.text is a {type(text).__name__}; it must be text")
            if text is not None:
                if segment.get("ids") is not None:
                    raise CostModelError(f"{where} gives both ids and text; give one of them")
                segment["tokens"] = 0
            elif segment.get("ids") is None and segment.get("tokens") != 0:
                raise RefusedError(
                    "no_tokens", f"{where} gives neither ids nor text; record one of them, as training needs tokens"
                )
            texts.append(text)
        run = Run.from_dict(value)
        return cls(id=run.id, run=run, texts=tuple(texts))

    def to_dict(self) -> dict[str, Any]:
        """The row that `from_dict` reads."""
        value = self.run.to_dict()
        for (_, segment), text in zip(_segments(value), self.texts, strict=True):
            if text is not None:
                segment["text"] = text
        return value

    def pieces(self) -> list[tuple[int, bool, Piece]]:
        """Segments in recorded order with their call and whether it generated them."""
        texts = iter(self.texts)
        found = []
        for t, call in enumerate(self.run.calls):
            for output, segments in ((False, call.input), (True, call.output)):
                for segment in segments:
                    piece = Piece(kind=segment.kind, ids=segment.ids, text=next(texts), name=segment.name)
                    found.append((t, output, piece))
        return found

    def replacements(self) -> list[tuple[int, int, int, Piece | None]]:
        """Recorded compactions as (call, start, stop, replacement), in order."""
        texts = iter(self.texts[sum(len(call.input) + len(call.output) for call in self.run.calls) :])
        found = []
        for t, call in enumerate(self.run.calls):
            for edit in call.edits:
                piece = None
                if edit.segment is not None:
                    piece = Piece(kind=edit.segment.kind, ids=edit.segment.ids, text=next(texts))
                if edit.cause == "compaction":
                    found.append((t, edit.start, edit.stop, piece))
        return found


Record = Passage | Conversation | Trajectory


def _segments(value: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every segment of a run in the order of `Trajectory.texts`; what is no segment is left to `Run` to refuse."""
    found: list[tuple[str, dict[str, Any]]] = []
    edits: list[tuple[str, dict[str, Any]]] = []
    for t, call in _objects(value.get("calls")):
        for side in ("input", "output"):
            found += [(f"calls[{t}].{side}[{s}]", segment) for s, segment in _objects(call.get(side))]
        for e, edit in _objects(call.get("edits")):
            edits += [(f"calls[{t}].edits[{e}].segment", segment) for _, segment in _objects([edit.get("segment")])]
    return found + edits


def _objects(values: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(i, v) for i, v in enumerate(values if isinstance(values, (list, tuple)) else ()) if isinstance(v, dict)]
