"""Conversations as text in pieces, with the actor's chat template or plainly; no piece is ever rendered again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from costmodel_jax.errors import InputError
from costmodel_jax.schema import Kind
from remory_jax.data.problems import RefusedError
from remory_jax.data.records import Conversation, Turn

__all__ = ["ChatText", "PlainText", "TextPiece", "TextStyle"]

_KINDS: dict[str, Kind] = {"system": "system", "user": "user", "tool": "tool"}
_MARK = "\u27eapassage\u27eb"  # stands in for a passage while the template is rendered around it


class TextPiece(NamedTuple):
    """A stretch of a conversation: its kind as of ``agent-run/1``, its call, and whether the model wrote it."""

    kind: Kind
    call: int
    output: bool
    text: str


@runtime_checkable
class TextStyle(Protocol):
    """How records become text."""

    def conversation(self, conversation: Conversation) -> list[TextPiece]:
        """Pieces up to the last answer. Each assistant message is a call; the opening of its answer is input."""

    def frame(self, instruction: str) -> tuple[str, str, str]:
        """Around a passage with ``instruction`` below it: before, between passage and answer, after the answer."""

    def request(self, instruction: str) -> str:
        """A user message and the opening of its answer, to follow an answer."""

    def describe(self) -> str:
        """What decides the text, as canonical JSON."""


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """Labels instead of a template, for base models and tests.

    Attributes:
      labels: what opens a message, by role.
      end: what closes it.
    """

    labels: Mapping[str, str] = field(
        default_factory=lambda: {"system": "", "user": "User: ", "tool": "Result: ", "assistant": "Assistant: "}
    )
    end: str = "\n\n"

    def conversation(self, conversation: Conversation) -> list[TextPiece]:
        found: list[TextPiece] = []
        call = 0
        for turn in _answered(conversation.turns):
            label = self.labels[turn.role]
            if turn.role == "assistant":
                opening = label.rstrip()  # tokenizers keep the blank with the word behind it
                found.append(TextPiece("user", call, False, opening))
                found.append(TextPiece("assistant", call, True, label[len(opening) :] + turn.text + self.end))
                call += 1
            else:
                found.append(TextPiece(_KINDS[turn.role], call, False, label + turn.text + self.end))
        return [piece for piece in found if piece.text]

    def frame(self, instruction: str) -> tuple[str, str, str]:
        return "", f"{self.end}{instruction}{self.end}", ""

    def request(self, instruction: str) -> str:
        return f"{self.labels['user']}{instruction}{self.end}{self.labels['assistant'].rstrip()}"

    def describe(self) -> str:
        return msgspec.json.encode(["plain", dict(self.labels), self.end], order="sorted").decode()


@dataclass(frozen=True, kw_only=True)
class ChatText:
    """The tokenizer's own chat template.

    Some templates rewrite earlier answers when new messages come (they drop reasoning). What was rendered before is
    kept as it was; new text is found behind the last answer.

    Attributes:
      tokenizer: of transformers, with a chat template.
      options: of the template, such as ``enable_thinking``.
    """

    tokenizer: Any
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise InputError("the tokenizer has no chat template; use the plain style")

    def conversation(self, conversation: Conversation) -> list[TextPiece]:
        walk = _Walk(self, list(conversation.tools))
        found: list[TextPiece] = []
        waiting: list[Turn] = []
        for turn in _answered(conversation.turns):
            if turn.role != "assistant":
                waiting.append(turn)
                continue
            call = walk.answers
            found += [TextPiece(kind, call, False, text) for kind, text in walk.asked(waiting)]
            found.append(TextPiece("assistant", call, True, walk.answered(turn)))
            waiting = []
        return [piece for piece in found if piece.text]

    def frame(self, instruction: str) -> tuple[str, str, str]:
        walk = _Walk(self)
        prompt = "".join(text for _, text in walk.asked([Turn(role="user", text=f"{_MARK}\n\n{instruction}")]))
        answer = walk.answered(Turn(role="assistant", text=_MARK))
        if prompt.count(_MARK) != 1 or answer.count(_MARK) != 1:
            raise RefusedError("template_rewrites", "the chat template does not keep a message as it is")
        before, _, rest = prompt.partition(_MARK)
        opening, _, after = answer.partition(_MARK)
        return before, rest + opening, after

    def request(self, instruction: str) -> str:
        walk = _Walk(self)
        walk.asked([Turn(role="user", text="?")])
        walk.answered(Turn(role="assistant", text=_MARK))
        return "".join(text for _, text in walk.asked([Turn(role="user", text=instruction)]))

    def describe(self) -> str:
        return msgspec.json.encode(["chat", self.tokenizer.chat_template, dict(self.options)], order="sorted").decode()


class _Walk:
    """Goes through a conversation and gives each text once."""

    def __init__(self, style: ChatText, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._style = style
        self._more = {"tools": list(tools)} if tools else {}
        self._said: list[dict[str, Any]] = []
        self._text = ""  # the last rendering
        self._held = ""  # what closes the last answer behind its end-of-turn token: it belongs to the next input
        self.answers = 0

    def asked(self, turns: Sequence[Turn]) -> list[tuple[Kind, str]]:
        """New messages and the opening of an answer, apart wherever the template renders them one by one."""
        messages = [turn.message() for turn in turns]
        whole = self._new(messages, prompt=True)
        found: list[tuple[Kind, str]] = []
        start = 0
        for count, turn in enumerate(turns, start=1):
            stop = len(whole)
            if count < len(turns):
                try:
                    part = self._new(messages[:count], prompt=False)
                except RefusedError:
                    continue
                stop = len(part) if whole.startswith(part) else start
            if stop > start:
                found.append((_KINDS[turn.role], whole[start:stop]))
                start = stop
        found = found or [("user", whole)]
        found[0] = (found[0][0], self._held + found[0][1])
        self._said += messages
        self._text, self._held = self._render(self._said, prompt=True), ""
        return found

    def answered(self, turn: Turn) -> str:
        """An answer up to and with the end-of-turn token."""
        self._said.append(turn.message())
        rendered = self._render(self._said, prompt=False)
        if not rendered.startswith(self._text):
            raise RefusedError(
                "template_rewrites", "the chat template does not open an answer as its generation prompt does"
            )
        answer = rendered[len(self._text) :]
        self._text = rendered
        self.answers += 1
        end = getattr(self._style.tokenizer, "eos_token", None)
        at = answer.rindex(end) + len(end) if end and end in answer else len(answer)
        self._held = answer[at:]
        return answer[:at]

    def _new(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        """What messages add to the last rendering."""
        rendered = self._render([*self._said, *messages], prompt=prompt)
        if rendered.startswith(self._text):
            return rendered[len(self._text) :]
        if self._said and self._said[-1]["role"] == "assistant":
            # The last answer is rendered otherwise now. A mark in its place tells where it ends.
            marked = [*self._said[:-1], {**self._said[-1], "content": _MARK}]
            _, _, closing = self._render(marked, prompt=False).partition(_MARK)
            _, mark, rest = self._render([*marked, *messages], prompt=prompt).partition(_MARK)
            if mark and rest.startswith(closing):
                return rest[len(closing) :]
        raise RefusedError("template_rewrites", "the chat template changes an earlier answer beyond recognition")

    def _render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self._style.tokenizer.apply_chat_template(
                    list(messages),
                    tokenize=False,
                    add_generation_prompt=prompt,
                    **self._style.options,
                    **self._more,
                )
            )
        except TemplateError as error:
            raise RefusedError("template_refuses", f"the chat template refuses the conversation ({error})") from error


def _answered(turns: Sequence[Turn]) -> Sequence[Turn]:
    """Turns up to the last answer: nothing continues what follows it."""
    last = max((i for i, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
    return turns[: last + 1]
