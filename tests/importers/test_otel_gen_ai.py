"""OpenTelemetry spans: sums of agents are no calls, spans come in any order and more than once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, load_runs

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "logs" / "otel_gen_ai"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def spans() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / "spans.jsonl").read_text().splitlines()]


def write(tmp_path: Path, lines: list[dict[str, Any]]) -> Path:
    path = tmp_path / "spans.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_agent_is_a_run_and_only_its_own_chats_are_calls() -> None:
    cook, taster = load_runs(FOLDER / "spans.jsonl")
    assert replay.totals([cook]) == {
        "calls": 2,
        "prompt_tokens": 2200,
        "cached_tokens": 900,
        "cache_write_5m": 700,
        "cache_write_1h": 0,
        "output_tokens": 200,
        "reasoning_tokens": 30,
    }
    assert (cook.id, cook.parent, cook.chain, cook.model) == (f"{TRACE}/a1", None, "conv-9", "test-model")
    assert cook.evidence.reasoning == "billed"
    assert (taster.id, taster.parent) == (f"{TRACE}/a2", cook.id)
    assert replay.totals([taster])["cached_tokens"] is None
    assert taster.evidence.cached == taster.evidence.reasoning == "unknown"


def test_calls_are_ordered_by_time_with_the_tools_between_them() -> None:
    cook, _ = load_runs(FOLDER / "spans.jsonl")
    assert [call.time for call in cook.calls] == [1770000001.0, 1770000004.0]
    assert [(s.kind, s.name, s.error, s.tokens) for s in cook.calls[1].input] == [("tool", "stove", True, 60)]


def test_an_otlp_export_reads_like_lines() -> None:
    (run,) = load_runs(FOLDER / "export.json")
    assert replay.per_call(run) == replay.per_call(load_runs(FOLDER / "spans.jsonl")[0])


def test_messages_on_the_spans_give_segments(tmp_path: Path) -> None:
    lines = spans()
    said = {"role": "assistant", "parts": [{"type": "tool_call", "id": "k", "name": "stove", "arguments": {"heat": 3}}]}
    asked = {"role": "user", "parts": [{"type": "text", "content": "Boil an egg."}]}
    done = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "k", "response": "hot"}]}
    for line in lines:
        if line["spanId"] == "c1":
            line["attributes"] |= {
                "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "You cook."}]),
                "gen_ai.input.messages": json.dumps([asked]),
                "gen_ai.output.messages": json.dumps([said]),
            }
        if line["spanId"] == "c2":
            line["attributes"] |= {"gen_ai.input.messages": json.dumps([asked, said, done])}
    cook, _ = load_runs(write(tmp_path, lines))
    replay.check(cook)
    assert [segment.kind for segment in cook.calls[0].input] == ["system", "user"]
    assert [(s.kind, s.name) for s in cook.calls[0].output] == [("reasoning", None), ("assistant", "stove")]
    assert [segment.kind for segment in cook.calls[1].input] == ["tool"]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"gen_ai.usage.cache_read.input_tokens": 1201}, "gives 1201 cached tokens of a prompt of 1200"),
        ({"gen_ai.usage.output_tokens": "60"}, "is a string; a token count is a whole number"),
        ({"gen_ai.usage.reasoning.output_tokens": 61}, "gives 61 reasoning tokens of an output of 60"),
    ],
)
def test_contradictions_name_the_line(tmp_path: Path, attributes: dict[str, Any], message: str) -> None:
    lines = spans()[:-1]
    lines[1]["attributes"] |= attributes
    path = write(tmp_path, lines)
    with pytest.raises(InputError, match=message) as caught:
        load_runs(path)
    assert caught.value.line == 2
    options = Options(lenient=True)
    assert len(load_runs(path, options=options)[0].calls) == 1
    assert [problem.kind for problem in options.problems] == ["skipped_record"]


def test_lines_that_are_no_spans_are_noted(tmp_path: Path) -> None:
    options = Options()
    load_runs(write(tmp_path, [*spans(), {"resource": {}}]), options=options)
    assert [problem.kind for problem in options.problems] == ["skipped_record"]
