"""Chats: every message is tokenised once, generated ids are kept, and templates that rewrite the past are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from costmodel_jax import InputError
from remory_jax.actor import Chat, load_tokenizer


class Letters:
    """A tokenizer with one id per character, and a template that may drop the reasoning of earlier answers."""

    chat_template = "a template"

    def __init__(self, *, forgets: bool = False) -> None:
        self.forgets = forgets
        self.encoded: list[str] = []

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> str:
        assert not tokenize
        parts = [f"<{message['role']}>{message['content']}\n" for message in messages]
        if self.forgets and len(parts) > 2:
            parts[1] = "<assistant>...\n"
        return options.get("head", "") + "".join(parts) + ("<assistant>" if add_generation_prompt else "")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        self.encoded.append(text)
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_each_piece_is_tokenised_once() -> None:
    tokenizer = Letters()
    chat = Chat(tokenizer, head="!")
    prompt = chat.add({"role": "user", "content": "hi"})
    assert prompt == ids("!<user>hi\n<assistant>")
    assert chat.answered([*prompt, *ids("yes\n")]) == "yes\n"
    again = chat.add({"role": "user", "content": "why"})
    assert again[: len(prompt) + 4] == [*prompt, *ids("yes\n")]
    assert tokenizer.encoded == ["!<user>hi\n<assistant>", "\n", "<user>why\n<assistant>"]


def test_a_template_that_rewrites_the_past() -> None:
    chat = Chat(Letters(forgets=True))
    prompt = chat.add({"role": "user", "content": "hi"})
    chat.answered([*prompt, *ids("yes")])
    before = list(chat.ids)
    with pytest.raises(ValueError, match="changes earlier messages"):
        chat.add({"role": "user", "content": "why"})
    assert chat.ids == before


def test_a_generation_of_something_else() -> None:
    chat = Chat(Letters())
    chat.add({"role": "user", "content": "hi"})
    with pytest.raises(ValueError, match="do not start with the chat"):
        chat.answered(ids("<user>ho"))


def test_no_template_and_no_tokenizer(tmp_path: Path) -> None:
    tokenizer = Letters()
    tokenizer.chat_template = None  # type: ignore[assignment]
    with pytest.raises(InputError, match="no chat template"):
        Chat(tokenizer)
    with pytest.raises(InputError, match="no tokenizer"):
        load_tokenizer(tmp_path)
