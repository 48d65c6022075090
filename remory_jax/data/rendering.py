"""Records as token segments: every text is tokenised once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from costmodel_jax.schema import Kind
from remory_jax.data.examples import as_ids
from remory_jax.data.records import Conversation, Piece, Trajectory
from remory_jax.data.templates import ChatText, PlainText, TextStyle

__all__ = ["Frame", "Renderer", "TokenSegment", "make_renderer", "tokenizer_digest"]

Ids = Int[np.ndarray, " _"]
_PROBE = "The quick brown fox; 1,234 na\u00efve ways. \u4f60\u597d\n\tx = {'a': [1]}"


@dataclass(frozen=True, kw_only=True)
class TokenSegment:
    """A stretch of a stream that a policy shows or hides as a whole.

    Attributes:
      kind: as of ``agent-run/1``.
      call: the model call that brought or generated it.
      output: whether the model generated it.
      ids: its tokens.
    """

    kind: Kind
    call: int
    output: bool
    ids: Ids


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Token ids around a passage and what is asked about it.

    Attributes:
      before: what precedes the passage.
      between: what follows it: the question, and the opening of the answer.
      after: what the model writes at the end of its answer.
    """

    before: Ids
    between: Ids
    after: Ids


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Records to token ids.

    Attributes:
      tokenizer: of transformers, or anything with its ``encode(text, add_special_tokens=False)``.
      style: how records become text.
    """

    tokenizer: Any
    style: TextStyle

    def ids(self, text: str) -> Ids:
        """A text on its own, without special tokens around it."""
        return as_ids(self.tokenizer.encode(text, add_special_tokens=False))

    def conversation(self, conversation: Conversation) -> list[TokenSegment]:
        """Segments of a conversation up to its last answer.

        Raises:
          RefusedError: the chat template cannot render it piece by piece.
        """
        return [
            TokenSegment(kind=piece.kind, call=piece.call, output=piece.output, ids=self.ids(piece.text))
            for piece in self.style.conversation(conversation)
        ]

    def trajectory(self, trajectory: Trajectory) -> list[TokenSegment]:
        """Segments of a run, one for each of its own, so that its edits still point at them."""
        return [
            TokenSegment(kind=piece.kind, call=call, output=output, ids=self.piece(piece))
            for call, output, piece in trajectory.pieces()
        ]

    def piece(self, piece: Piece) -> Ids:
        """Token ids of a piece: its own, or those of its text."""
        return as_ids(piece.ids) if piece.ids is not None else self.ids(piece.text or "")

    def frame(self, instruction: str) -> Frame:
        """What stands around a passage that is shown with ``instruction`` below it."""
        before, between, after = self.style.frame(instruction)
        return Frame(before=self.ids(before), between=self.ids(between), after=self.ids(after))

    def request(self, instruction: str) -> Ids:
        """A user message with ``instruction`` and the opening of its answer, to follow an answer of the model."""
        return self.ids(self.style.request(instruction))

    def describe(self) -> dict[str, str]:
        """Hashes of what decides the token ids."""
        return {
            "tokenizer_sha256": tokenizer_digest(self.tokenizer),
            "template_sha256": hashlib.sha256(self.style.describe().encode()).hexdigest(),
        }


def make_renderer(
    tokenizer: Any, style: Literal["chat", "plain", "auto"] = "auto", options: Mapping[str, Any] | None = None
) -> Renderer:
    """A renderer in the named style; ``auto`` takes the chat template where the tokenizer has one.

    Raises:
      InputError: ``chat`` and no template.
    """
    if style == "auto":
        style = "plain" if getattr(tokenizer, "chat_template", None) is None else "chat"
    text: TextStyle = PlainText() if style == "plain" else ChatText(tokenizer=tokenizer, options=dict(options or {}))
    return Renderer(tokenizer=tokenizer, style=text)


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 of a fast tokenizer's definition; of how it splits a probe text where it cannot be written out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return hashlib.sha256(backend.to_str().encode()).hexdigest()
    return hashlib.sha256(repr(list(tokenizer.encode(_PROBE, add_special_tokens=False))).encode()).hexdigest()
