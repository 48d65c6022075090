"""OpenHands: one response on many events is one call; the list of usages knows calls that the events do not show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, load_runs

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "logs" / "openhands"


def test_a_response_counts_once_however_many_events_carry_it() -> None:
    (run,) = load_runs(FOLDER / "events.json")
    assert replay.totals([run]) == {
        "calls": 3,
        "prompt_tokens": 2850,
        "cached_tokens": 1600,
        "cache_write_5m": 1000,
        "cache_write_1h": 0,
        "output_tokens": 170,
        "reasoning_tokens": 20,
    }
    assert run.model == "test/model"
    assert run.evidence.reasoning == "billed"


def test_events_become_segments_of_their_kind() -> None:
    (run,) = load_runs(FOLDER / "events.json")
    first, second, third = run.calls
    assert [segment.kind for segment in first.input] == ["system", "tools", "user", "system"]
    assert [segment.name for segment in second.output] == [None, "execute_bash", "execute_bash"]
    assert [(s.kind, s.name, s.error) for s in second.input] == [("tool", "execute_bash", False)]
    results = [s for s in third.input if s.kind == "tool"]
    assert [result.error for result in results] == [False, True]
    assert sum(segment.kind == "user" for segment in run.segments) == 1


def test_a_condensation_is_a_compaction() -> None:
    (run,) = load_runs(FOLDER / "events.json")
    assert [[edit.cause for edit in call.edits][-1:] for call in run.calls] == [
        [],
        ["reasoning_dropped"],
        ["compaction"],
    ]
    assert replay.compactions([run]) == 1
    assert [segment.kind for segment in run.calls[2].input] == ["tool", "tool", "summary"]


def test_answers_without_usage_are_said_to_be_missing() -> None:
    (run,) = load_runs(FOLDER / "events.json")
    assert run.notes == (
        "answers without usage: 1; they are no calls, their texts count as input",
        "1 user message after the last call, which no call of this log answers",
    )


def test_the_list_of_usages_is_the_truth() -> None:
    (run,) = load_runs(FOLDER / "output.jsonl")
    assert (run.id, run.task, run.solved) == ("tidy-1", "tidy-1", True)
    assert [call["prompt_tokens"] for call in replay.per_call(run)] == [800, 900, 1000]
    assert replay.totals([run])["output_tokens"] == 100
    assert [[segment.kind for segment in call.input] for call in run.calls] == [["system", "user"], ["tool"], ["user"]]
    assert run.notes == ()


def test_a_difference_from_the_tools_own_total_is_noted(tmp_path: Path) -> None:
    row = json.loads((FOLDER / "output.jsonl").read_text())
    row["metrics"]["accumulated_token_usage"]["prompt_tokens"] = 9000
    path = tmp_path / "output.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (run,) = load_runs(path)
    assert run.notes == ("the tool's own total is 9000 prompt tokens, the calls here add up to 2700",)


def test_errors_name_the_line_of_the_run(tmp_path: Path) -> None:
    row = json.loads((FOLDER / "output.jsonl").read_text())
    good = json.dumps(row)
    row["instance_id"] = "tidy-2"
    row["metrics"]["token_usages"][1] |= {"response_id": "other", "cache_read_tokens": 901}
    path = tmp_path / "output.jsonl"
    path.write_text(f"{good}\n{json.dumps(row)}\n")
    with pytest.raises(
        InputError, match=r"metrics\.token_usages\.\[1\] gives 901 cached tokens of a prompt of 900"
    ) as e:
        load_runs(path)
    assert e.value.line == 2
    options = Options(lenient=True)
    assert [run.id for run in load_runs(path, options=options)] == ["tidy-1"]
    assert [problem.kind for problem in options.problems] == ["skipped_run"]


def test_a_copied_event_list_counts_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes((FOLDER / "events.json").read_bytes())
    runs = load_runs([FOLDER / "events.json", copy])
    assert replay.totals(runs)["calls"] == 3


def test_events_without_any_usage_need_a_tokenizer(tmp_path: Path) -> None:
    events = json.loads((FOLDER / "events.json").read_text())
    for event in events:
        event.pop("tool_call_metadata", None)
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(events))
    with pytest.raises(InputError, match="--tokenizer"):
        load_runs(path)
    (run,) = load_runs(path, options=Options(count_tokens=lambda text: len(text.split())))
    replay.check(run)
    assert len(run.calls) == 5  # four commands and a message
    assert run.evidence.lengths == "modelled"
