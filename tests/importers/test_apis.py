"""Request and response pairs of the OpenAI, DeepSeek and Anthropic APIs: usage, conversations, and their edits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fuzz
import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, importer, load_runs
from costmodel_jax.schema import Call, Run

LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs"


def load(name: str) -> list[Run]:
    return replay.load(LOGS / f"{name}.jsonl")


def shapes(segments: Any) -> list[tuple[str, int]]:
    return [(segment.kind, segment.tokens) for segment in segments]


def edits(call: Call) -> list[tuple[int, int, str, int | None]]:
    return [(e.start, e.stop, e.cause, None if e.segment is None else e.segment.tokens) for e in call.edits]


def write(tmp_path: Path, *pairs: Any) -> Path:
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def chat(prompt: int, completion: int, *messages: tuple[str, str], answer: str = "yes", **usage: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **usage}
    made = [{"role": role, "content": content} for role, content in messages]
    choices = [{"message": {"role": "assistant", "content": answer}}]
    return {"request": {"messages": made}, "response": {"id": f"id-{prompt}", "choices": choices, "usage": counts}}


def test_chat_totals_and_conversations() -> None:
    first, second = load("openai/chat")
    assert replay.totals([first, second]) == {
        "calls": 8,
        "prompt_tokens": 8660,
        "cached_tokens": 6400,
        "cache_write_5m": 0,
        "cache_write_1h": 0,
        "output_tokens": 185,
        "reasoning_tokens": 50,
    }
    assert [(run.id, len(run.calls)) for run in (first, second)] == [("chat/1", 6), ("chat/2", 2)]
    assert first.evidence.reasoning == "billed" and first.format == "openai"


def test_chat_never_sends_reasoning_again() -> None:
    first, _ = load("openai/chat")
    assert shapes(first.calls[0].output) == [("reasoning", 40), ("assistant", 20)]
    assert edits(first.calls[1]) == [(3, 4, "reasoning_dropped", None)]
    (result,) = first.calls[1].input
    assert (result.kind, result.tokens, result.name) == ("tool", 1100 - 1000 - 20, "look")


def test_tool_definitions_take_what_no_text_explains() -> None:
    first, _ = load("openai/chat")
    kinds = dict(shapes(first.calls[0].input))
    assert set(kinds) == {"tools", "system", "user"}
    assert kinds["tools"] > 900


def test_an_edited_message_is_a_rewind() -> None:
    first, _ = load("openai/chat")
    (edit,) = first.calls[3].edits
    assert edit.cause == "rewind"
    assert [segment.kind for segment in first.segments[edit.start : edit.stop]] == ["user", "assistant"]


def test_a_tool_result_cleared_in_place() -> None:
    first, _ = load("openai/chat")
    (edit,) = first.calls[4].edits
    assert edit.cause == "clear_tool_results"
    assert first.segments[edit.start].kind == "tool"
    assert edit.segment is not None and 0 < edit.segment.tokens < 20
    assert [segment.kind for segment in first.calls[4].input] == ["user"]


def test_a_summary_in_place_of_the_history_is_a_compaction() -> None:
    first, _ = load("openai/chat")
    assert replay.compactions([first]) == 1
    (edit,) = first.calls[5].edits
    # Tools, system prompt and the first question stay; what was asked and answered since is the summary's.
    assert edit.start == 4 and edit.cause == "compaction"
    assert [segment.kind for segment in first.calls[5].input] == ["summary"]


def test_a_sliding_window_drops_messages_from_the_middle(tmp_path: Path) -> None:
    turns = [("system", "be brief"), ("user", "one"), ("assistant", "yes"), ("user", "two"), ("assistant", "yes")]
    path = write(
        tmp_path,
        chat(100, 10, *turns[:2]),
        chat(150, 10, *turns[:4]),
        chat(160, 10, turns[0], *turns[3:], ("user", "three")),
    )
    (run,) = replay.load(path)
    (edit,) = run.calls[2].edits
    assert edit.cause == "unknown"
    assert [segment.kind for segment in run.segments[edit.start : edit.stop]] == ["user", "assistant"]


def test_independent_requests_are_independent_runs(tmp_path: Path) -> None:
    example = [("system", "be brief"), ("user", "an example"), ("assistant", "its answer")]
    pairs = [chat(500 + i, 10, *example, ("user", f"question {i}" + " with many words" * 40)) for i in range(3)]
    again = chat(600, 12, *example, ("user", "question 0" + " with many words" * 40))
    runs = replay.load(write(tmp_path, *pairs, again))
    # Examples in front do not make a conversation, nor does asking the same again.
    assert [len(run.calls) for run in runs] == [1, 1, 1, 1]


def test_a_log_of_the_newest_messages_only_is_one_conversation(tmp_path: Path) -> None:
    pairs = [chat(100 * i, 10, ("system", "be brief"), ("user", f"question {i}")) for i in (1, 2, 3)]
    (run,) = replay.load(write(tmp_path, *pairs))
    assert [sum(s.tokens for s in call.input) for call in run.calls] == [100, 90, 90]


def test_deepseek_hits_and_misses() -> None:
    (run,) = load("openai/deepseek")
    assert [(u["prompt_tokens"], u["cached_tokens"], u["reasoning_tokens"]) for u in replay.per_call(run)] == [
        (700, 0, 150),
        (970, 640, 120),
    ]
    # The answers come back without reasoning_content: a silent drop.
    assert edits(run.calls[1]) == [(2, 3, "reasoning_dropped", None)]


def test_deepseek_parts_must_add_up(tmp_path: Path) -> None:
    pair = chat(100, 10, ("user", "x"), prompt_cache_hit_tokens=64, prompt_cache_miss_tokens=30)
    with pytest.raises(InputError, match=r"calls\.jsonl:1: response\.usage gives 64 hit and 30 missed .* of 100"):
        load_runs(write(tmp_path, pair))


def test_responses_goes_on_from_the_response_it_names() -> None:
    first, second = load("openai/responses")
    assert [call.usage.prompt_tokens for call in first.calls if call.usage] == [2000, 2400, 2300, 2150]
    # In a tool loop the server keeps the reasoning; a user message ends that.
    assert edits(first.calls[1]) == []
    assert edits(first.calls[2]) == [(2, 3, "reasoning_dropped", None), (5, 6, "reasoning_dropped", None)]
    # The fourth names the first response: all since is taken back.
    assert edits(first.calls[3]) == [(4, 9, "rewind", None)]
    assert len(second.calls) == 2


def test_responses_with_the_reasoning_sent_back() -> None:
    _, second = load("openai/responses")
    assert edits(second.calls[1]) == []
    (result,) = second.calls[1].input
    assert (result.kind, result.name, result.tokens) == ("tool", "look", 640 - 500 - 80)


def test_usage_without_details_leaves_cache_and_reasoning_unknown(tmp_path: Path) -> None:
    (run,) = replay.load(write(tmp_path, chat(100, 10, ("user", "x"))))
    assert (run.evidence.cached, run.evidence.reasoning) == ("unknown", "unknown")
    assert replay.totals([run])["cached_tokens"] is None and replay.totals([run])["cache_write_5m"] is None


def test_anthropic_parts_exclude_each_other() -> None:
    (run,) = load("anthropic/messages")
    assert replay.totals([run]) == {
        "calls": 5,
        "prompt_tokens": 8880,
        "cached_tokens": 6600,
        "cache_write_5m": 2250,
        "cache_write_1h": 0,
        "output_tokens": 210,
        "reasoning_tokens": 40,
    }
    assert run.evidence.reasoning == "billed"
    assert [call.time for call in run.calls] == [run.calls[0].time + 9 * i for i in range(5) if run.calls[0].time]


def test_moving_cache_breakpoints_are_no_edits() -> None:
    (run,) = load("anthropic/messages")
    assert [len(call.edits) for call in run.calls] == [0, 0, 0, 1, 0]
    (result,) = run.calls[1].input
    assert (result.kind, result.name, result.error) == ("tool", "look", True)


def test_a_context_edit_clears_what_it_states_and_only_once() -> None:
    (run,) = load("anthropic/messages")
    (edit,) = run.calls[3].edits
    (result,) = run.calls[1].input
    assert edit.cause == "clear_tool_results"
    assert edit.segment is not None and edit.segment.tokens == result.tokens - 150


def anthropic(content: list[Any], **usage: Any) -> dict[str, Any]:
    counts = {"input_tokens": 10, "output_tokens": 5, **usage}
    response = {"id": "m", "type": "message", "content": content, "usage": counts}
    return {"request": {"messages": [{"role": "user", "content": "hi"}]}, "response": response}


@pytest.mark.parametrize(
    ("content", "usage", "reasoning"),
    [
        ([{"type": "text", "text": "x"}], {}, "observed"),
        ([{"type": "thinking", "thinking": "x"}], {}, "unknown"),
        ([{"type": "thinking", "thinking": "x"}], {"output_tokens_details": {"thinking_tokens": 3}}, "billed"),
    ],
)
def test_anthropic_reasoning(tmp_path: Path, content: list[Any], usage: dict[str, Any], reasoning: str) -> None:
    (run,) = replay.load(write(tmp_path, anthropic(content, **usage)))
    assert run.evidence.reasoning == reasoning


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ({"cache_read_input_tokens": "9"}, r"usage\.cache_read_input_tokens is a string"),
        ({"cache_creation": {"ephemeral_1h_input_tokens": -1}}, r"cache_creation\.ephemeral_1h_input_tokens = -1"),
        ({"output_tokens_details": {"thinking_tokens": 6}}, "6 reasoning tokens of an output of 5"),
        ({"input_tokens": 2**31 - 1, "cache_read_input_tokens": 5}, r"prompt_tokens = 2147483652; .* below 2\^31"),
    ],
)
def test_anthropic_contradictions(tmp_path: Path, usage: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"calls\.jsonl:1: response\..*{message}"):
        load_runs(write(tmp_path, anthropic([], **usage)))


def test_anthropic_write_lifetimes(tmp_path: Path) -> None:
    split = {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 900}
    (run,) = replay.load(write(tmp_path, anthropic([], cache_creation_input_tokens=700, cache_creation=split)))
    assert (replay.totals([run])["cache_write_5m"], replay.totals([run])["cache_write_1h"]) == (0, 700)
    assert any("lifetimes do not add up" in note for note in run.notes)
    (run,) = replay.load(write(tmp_path, anthropic([], cache_creation=split)))
    assert (replay.totals([run])["prompt_tokens"], run.notes) == (1210, ())


def test_a_response_without_usage_is_refused_and_names_the_mend(tmp_path: Path) -> None:
    pairs = [chat(100, 10, ("user", "one")), chat(0, 0, ("user", "one"), ("assistant", "yes"), ("user", "two"))]
    pairs.append(chat(180, 10, ("user", "one"), ("assistant", "yes"), ("user", "two"), ("user", "three")))
    del pairs[1]["response"]["usage"]
    path = write(tmp_path, *pairs)
    with pytest.raises(InputError, match=r"calls\.jsonl:2: response\.usage is missing: .*--tokenizer"):
        load_runs(path)
    options = Options(lenient=True)
    (run,) = load_runs(path, options=options)
    assert len(run.calls) == 2 and len(options.problems) == 1
    (run,) = replay.load(path, count_tokens=lambda text: len(text.split()))
    assert run.evidence.lengths == "modelled"
    assert run.calls[1].usage is None
    # One word was added to 110 tokens, and one word was said.
    assert replay.prompts(run) == [100, 111, 180]
    assert shapes(run.calls[1].output) == [("assistant", 1)]


def test_a_whole_log_without_usage_can_be_counted(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": [{"type": "thinking", "thinking": "a b"}, {"type": "text", "text": "c"}]}
    tool = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    pair = anthropic([*call["content"], tool])
    pair["request"] |= {"system": "one two three", "tools": [{"name": "look"}]}
    del pair["response"]["usage"]
    (run,) = replay.load(write(tmp_path, pair), count_tokens=lambda text: len(text.split()))
    assert shapes(run.calls[0].input) == [("tools", 1), ("system", 3), ("user", 1)]
    assert shapes(run.calls[0].output) == [("reasoning", 2), ("assistant", 1), ("assistant", 1)]


def test_answers_that_are_none_are_reported(tmp_path: Path) -> None:
    failed = {"request": {}, "response": {"error": {"code": 500}}}
    options = Options()
    (run,) = load_runs(write(tmp_path, chat(100, 10, ("user", "x")), failed), options=options)
    assert len(run.calls) == 1
    assert options.problems[0].message.endswith("calls.jsonl:2: response is no answer of a model")


def test_pairs_may_be_one_array_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    path.write_text(json.dumps([chat(100, 10, ("user", "x")), chat(0, 0, ("user", "y"))], indent=1))
    assert sum(len(run.calls) for run in replay.load(path)) == 2


@pytest.mark.parametrize("name", ["openai/chat", "openai/responses", "openai/deepseek", "anthropic/messages"])
def test_damaged_files_raise_only_input_errors(name: str) -> None:
    data = (LOGS / f"{name}.jsonl").read_bytes()
    fuzz.check(importer(name.split("/")[0]), {"calls.jsonl": data}, rounds=25)


def test_hand_written_cases(shared: Path) -> None:
    for pattern in ("openai_*", "deepseek_*", "anthropic_*"):
        for folder, expected in replay.expected_cases(shared, pattern):
            paths = [folder / name for name in expected["read"]]
            if not expected["errors"]:
                replay.compare(replay.load(paths), expected)
                continue
            with pytest.raises(InputError, match=r"calls\.jsonl:2: response\.usage is missing"):
                load_runs(paths)
            (run,) = replay.load(paths, lenient=True)
            assert replay.per_call(run) == [
                {field: call[field] for field in replay.FIELDS}
                for call in expected["calls"]
                if call["prompt_tokens"] is not None
            ]
