"""Chats as token ids: a template renders each message once, and what a model generated is kept as it was generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from costmodel_jax.errors import InputError

__all__ = ["Chat", "load_tokenizer"]


def load_tokenizer(folder: str | PathLike[str]) -> Any:
    """The tokenizer of a Hugging Face folder, from its own files alone: nothing is downloaded and no code of it is run.

    Raises:
      InputError: the folder holds none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"holds no tokenizer that transformers can load ({error})", path=str(folder)) from error


class Chat:
    """A conversation in token ids.

    Templates are text; re-tokenising what a model wrote can give other ids than it wrote. So each message is rendered
    and tokenised once, and generated ids are appended untouched.

    Example:
      >>> chat = Chat(load_tokenizer(folder))  # doctest: +SKIP
      >>> prompt = chat.add({"role": "user", "content": "What is the capital of France?"})  # doctest: +SKIP
      >>> answer = chat.answered(actor.generate(prompt, max_new_tokens=32))  # doctest: +SKIP

    Args:
      tokenizer: of transformers, with a chat template.
      options: of the template, such as ``tools`` or ``enable_thinking``.
    """

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        if getattr(tokenizer, "chat_template", None) is None:
            raise InputError("the tokenizer has no chat template; prompts of this model are plain token ids")
        self._tokenizer = tokenizer
        self._options = options
        self._messages: list[Mapping[str, Any]] = []
        self._text = ""
        self.ids: list[int] = []

    def add(self, *messages: Mapping[str, Any], prompt: bool = True) -> list[int]:
        """Append messages; with ``prompt`` also the opening of the answer.

        Returns:
          all ids so far.

        Raises:
          ValueError: the template rewrites what was rendered before, so that ids could not be kept.
        """
        self._messages += messages
        text = self._render(self._messages, prompt)
        if not text.startswith(self._text):
            self._messages = self._messages[: len(self._messages) - len(messages)]
            raise ValueError(
                "this chat template changes earlier messages when new ones come (some drop earlier reasoning), so its "
                "ids cannot be kept; start a new Chat with the messages as you want them"
            )
        self._extend(text)
        return list(self.ids)

    def answered(self, ids: Sequence[int]) -> str:
        """Take over a generation (prompt included, as `generate` returns it) and return the answer's text."""
        new = [int(token) for token in ids]
        if new[: len(self.ids)] != self.ids:
            raise ValueError("these ids do not start with the chat so far; pass what generate(chat.ids) returned")
        new = new[len(self.ids) :]
        answer = str(self._tokenizer.decode(new, skip_special_tokens=True))
        self._messages.append({"role": "assistant", "content": answer})
        self.ids += new
        self._text += str(self._tokenizer.decode(new))
        closed = self._render(self._messages, prompt=False)
        if closed.startswith(self._text):  # what the template puts after an answer and the model did not write
            self._extend(closed)
        return answer

    def _render(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt, **self._options
            )
        )

    def _extend(self, text: str) -> None:
        self.ids += self._tokenizer.encode(text[len(self._text) :], add_special_tokens=False)
        self._text = text
