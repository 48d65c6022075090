"""Records to token segments: every text tokenised once, answers apart from what opens them."""

from __future__ import annotations

import pytest
from toy import Words, renderer

from costmodel_jax import InputError
from remory_jax.data import Conversation, Turn, make_renderer
from remory_jax.data.problems import RefusedError
from remory_jax.data.rendering import tokenizer_digest
from remory_jax.data.templates import ChatText, PlainText


def talk(*turns: tuple[str, str]) -> Conversation:
    return Conversation(id="c", turns=tuple(Turn(role=role, text=text) for role, text in turns))  # type: ignore[arg-type]


LONG = talk(
    ("system", "be kind"),
    ("user", "one"),
    ("assistant", "two"),
    ("user", "three"),
    ("assistant", "four"),
    ("user", "x"),
)


def test_pieces_of_a_chat_add_up_to_what_the_template_renders() -> None:
    words = Words()
    pieces = ChatText(tokenizer=words).conversation(LONG)
    assert [tuple(piece) for piece in pieces] == [
        ("system", 0, False, "<system>be kind<end>\n"),
        ("user", 0, False, "<user>one<end>\n<assistant>"),
        ("assistant", 0, True, "two<end>"),
        ("user", 1, False, "\n<user>three<end>\n<assistant>"),
        ("assistant", 1, True, "four<end>"),
    ]
    messages = [turn.message() for turn in LONG.turns[:5]]
    whole = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    assert "".join(piece.text for piece in pieces) + "\n" == whole


def test_each_message_is_tokenised_once() -> None:
    made = renderer()
    segments = made.conversation(LONG)
    assert made.tokenizer.encoded == [piece.text for piece in made.style.conversation(LONG)]
    assert [segment.kind for segment in segments] == ["system", "user", "assistant", "user", "assistant"]
    assert [segment.output for segment in segments] == [False, False, True, False, True]
    assert made.tokenizer.decode(segments[2].ids) == "two<end>"


def test_a_template_that_forgets_reasoning_keeps_what_was_generated() -> None:
    thinking = talk(("user", "a"), ("assistant", "<think>hm</think>b"), ("user", "c"), ("assistant", "d"))
    pieces = ChatText(tokenizer=Words(forgets=True)).conversation(thinking)
    with pytest.raises(RefusedError, match="beyond recognition"):
        ChatText(tokenizer=_Rewriting()).conversation(thinking)
    # The template drops the reasoning, so the answer cannot be found as it was: it is found by its visible end.
    assert [piece.text for piece in pieces] == [
        "<user>a<end>\n<assistant>",
        "<think>hm</think>b<end>",
        "\n<user>c<end>\n<assistant>",
        "d<end>",
    ]


class _Rewriting(Words):
    def apply_chat_template(self, messages, tokenize, add_generation_prompt, **options):  # type: ignore[no-untyped-def]
        changed = [
            {**m, "content": "..."} if m["role"] == "assistant" and m is not messages[-1] else m for m in messages
        ]
        return super().apply_chat_template(changed, tokenize, add_generation_prompt, **options)


def test_tool_results_that_the_template_merges_stay_together() -> None:
    tools = talk(("user", "a"), ("assistant", "b"), ("tool", "r1"), ("tool", "r2"), ("assistant", "c"))
    merged = ChatText(tokenizer=Words(merges=True)).conversation(tools)
    assert [piece.text for piece in merged][2:] == ["\n<tool>[r1][r2]<end>\n<assistant>", "c<end>"]
    apart = ChatText(tokenizer=Words()).conversation(tools)
    assert [piece.text for piece in apart][2:] == ["\n<tool>r1<end>\n", "<tool>r2<end>\n<assistant>", "c<end>"]


def test_frames_and_requests() -> None:
    chat = ChatText(tokenizer=Words())
    assert chat.frame("Repeat.") == ("<user>", "\n\nRepeat.<end>\n<assistant>", "<end>")
    assert chat.request("Summarise.") == "\n<user>Summarise.<end>\n<assistant>"
    plain = PlainText()
    assert plain.frame("Repeat.") == ("", "\n\nRepeat.\n\n", "")
    assert [piece.text for piece in plain.conversation(LONG)] == [
        "be kind\n\n",
        "User: one\n\n",
        "Assistant:",
        " two\n\n",
        "User: three\n\n",
        "Assistant:",
        " four\n\n",
    ]


def test_styles_and_hashes() -> None:
    assert isinstance(make_renderer(Words(chat=False)).style, PlainText)
    with pytest.raises(InputError, match="no chat template"):
        make_renderer(Words(chat=False), "chat")
    described = renderer().describe()
    assert described == renderer().describe()
    assert described != make_renderer(Words(), "plain").describe()
    assert (
        described["template_sha256"]
        != make_renderer(Words(), "chat", {"enable_thinking": False}).describe()["template_sha256"]
    )
    other = Words()
    other.encode("something before", add_special_tokens=False)
    assert tokenizer_digest(other) != tokenizer_digest(Words())
