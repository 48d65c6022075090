"""A tokenizer of whole words and the records that the tests of data share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from remory_jax.data import Example, Problems
from remory_jax.data.examples import as_ids
from remory_jax.data.rendering import Renderer, make_renderer


class Words:
    """Splits at blanks and marks; ids are given out in the order of first sight. ``<end>`` closes a turn."""

    chat_template: str | None = "toy"
    eos_token = "<end>"

    def __init__(self, *, chat: bool = True, forgets: bool = False, merges: bool = False) -> None:
        self.chat_template = "toy" if chat else None
        self.forgets = forgets  # drops the reasoning of earlier answers when a new message comes
        self.merges = merges  # renders tool results that follow each other as one message
        self.known: dict[str, int] = {}
        self.encoded: list[str] = []

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        self.encoded.append(text)
        return [self.known.setdefault(word, len(self.known) + 1) for word in re.findall(r"<\w+>|\w+|[^\w\s]|\s", text)]

    def decode(self, ids: Iterable[int]) -> str:
        words = {i: word for word, i in self.known.items()}
        return "".join(words[int(i)] for i in ids)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> str:
        assert not tokenize
        text = "<tools>" if options.get("tools") else ""
        for i, message in enumerate(messages):
            content, last = message["content"], i == len(messages) - 1
            if message["role"] == "assistant" and self.forgets and not last:
                content = content.rpartition("</think>")[2]
            if self.merges and message["role"] == "tool":
                opened = i > 0 and messages[i - 1]["role"] == "tool"
                closed = last or messages[i + 1]["role"] != "tool"
                text += ("" if opened else "<tool>") + f"[{content}]" + ("<end>\n" if closed else "")
                continue
            text += f"<{message['role']}>{content}<end>\n"
        return text + ("<assistant>" if add_generation_prompt else "")


def renderer(**options: Any) -> Renderer:
    return make_renderer(Words(**options))


def lines(path: Path, rows: Iterable[Any]) -> Path:
    """A JSON Lines file; text is written as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def example(
    number: int, *, history: int = 5, summary: int | None = 2, response: int = 4, boundaries: int = 1
) -> Example:
    """An example whose ids tell which it is."""
    start = 1000 * (number + 1)
    return Example(
        id=f"e{number}",
        group=f"g{number // 2}",
        prefix=as_ids([1, 2]),
        histories=tuple(as_ids(range(start + 100 * b, start + 100 * b + history)) for b in range(boundaries)),
        summaries=()
        if summary is None
        else tuple(as_ids(range(start + 900, start + 900 + summary)) for _ in range(boundaries)),
        response=as_ids(range(start + 500, start + 500 + response)),
        judged=((1, response),),
        request=as_ids([] if summary is None else [7]),
    )


def reasons(problems: Problems) -> dict[str, int]:
    return dict(problems.counts)


def same(left: Any, right: Any) -> bool:
    """Whether two batches hold the same bits."""
    import jax

    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b) for a, b in pairs)
