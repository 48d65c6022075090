"""ATIF: what is a call, what belongs to whom, and what a summary does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, load_runs
from costmodel_jax.schema import Evidence

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "logs" / "atif"
MAIN = FOLDER / "trajectory.json"


def test_totals_of_the_main_trajectory() -> None:
    (run,) = load_runs(MAIN)
    assert run.id == "atif-main"
    assert run.model == "test/model"
    assert replay.totals([run]) == {
        "calls": 3,
        "prompt_tokens": 1370,
        "cached_tokens": 640,
        "cache_write_5m": 0,
        "cache_write_1h": 0,
        "output_tokens": 80,
        "reasoning_tokens": None,
    }
    assert run.evidence == Evidence(lengths="measured", cached="measured", reasoning="observed")


def test_a_step_without_metrics_is_input_of_the_next_call() -> None:
    (run,) = load_runs(MAIN)
    assert [segment.kind for segment in run.calls[1].input] == ["tool", "tool", "assistant"]
    assert "agent steps without metrics: 1" in run.notes[0]
    assert "1970 prompt tokens, the steps 1370" in run.notes[1]


def test_tool_calls_and_results_carry_names_and_hashes() -> None:
    (run,) = load_runs(MAIN)
    fill, heat = run.calls[0].output[1:]
    assert (fill.name, heat.name) == ("shell", "shell")
    assert fill.arguments_hash != heat.arguments_hash
    full, warm = run.calls[1].input[:2]
    assert full.name == warm.name == "shell"
    assert full.result_hash != warm.result_hash


def test_a_context_summary_is_one_compaction() -> None:
    (run,) = load_runs(MAIN)
    assert replay.compactions([run]) == 1
    assert [edit.cause for edit in run.calls[2].edits] == ["compaction"]
    assert "summary" in [segment.kind for segment in run.calls[2].input]
    assert sum(segment.kind == "user" for segment in run.segments) == 2


def test_helpers_name_their_parent_and_files_that_go_on_their_chain() -> None:
    runs = {run.id: run for run in load_runs(sorted(FOLDER.glob("*.json")))}
    assert set(runs) == {"atif-main", "atif-helper", "atif-main-cont-1"}
    assert runs["atif-helper"].parent == "atif-main"
    assert runs["atif-main"].parent is None
    assert runs["atif-main"].chain == runs["atif-main-cont-1"].chain == "atif-main"
    assert runs["atif-helper"].chain is None


def test_copied_context_is_no_call_and_no_user_turn() -> None:
    helper = FOLDER / "trajectory.summarization-1.json"
    (run,) = load_runs(helper)
    assert len(run.calls) == 1
    assert replay.totals([run])["prompt_tokens"] == 600
    assert sum(segment.kind == "user" for segment in run.segments) == 1
    assert [segment.kind for segment in run.calls[0].input] == ["system", "assistant", "assistant", "tool", "user"]


def test_a_document_that_two_files_hold_counts_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(MAIN.read_bytes())
    assert len(load_runs([MAIN, copy])) == 1


def test_an_embedded_helper_is_a_run_of_its_own(tmp_path: Path) -> None:
    main = json.loads(MAIN.read_text())
    main["subagent_trajectories"] = [json.loads((FOLDER / "trajectory.summarization-1.json").read_text())]
    path = tmp_path / "embedded.json"
    path.write_text(json.dumps(main))
    assert [(run.id, run.parent) for run in load_runs(path)] == [("atif-main", None), ("atif-helper", "atif-main")]


def test_counted_reasoning_is_billed_and_shown_reasoning_alone_is_unknown(tmp_path: Path) -> None:
    helper = json.loads((FOLDER / "trajectory.summarization-1.json").read_text())
    helper["steps"][-1]["metrics"]["extra"] = {"reasoning_tokens": 40}
    path = tmp_path / "billed.json"
    path.write_text(json.dumps(helper))
    (run,) = load_runs(path)
    assert run.evidence.reasoning == "billed"
    assert [(s.kind, s.tokens) for s in run.calls[0].output] == [("reasoning", 40), ("assistant", 20)]
    del helper["steps"][-1]["metrics"]["extra"]
    helper["steps"][-1]["reasoning_content"] = "Hm."
    path.write_text(json.dumps(helper))
    (run,) = load_runs(path)
    assert run.evidence.reasoning == "unknown"
    assert [s.kind for s in run.calls[0].output] == ["assistant"]


def test_cache_counters_that_every_step_leaves_out_are_no_observation(tmp_path: Path) -> None:
    helper = json.loads((FOLDER / "trajectory.summarization-1.json").read_text())
    del helper["steps"][-1]["metrics"]["cached_tokens"]
    path = tmp_path / "silent.json"
    path.write_text(json.dumps(helper))
    (run,) = load_runs(path)
    assert run.evidence.cached == "unknown"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cached_tokens": 601}, r"steps\[3\]\.metrics gives 601 cached tokens of a prompt of 600"),
        ({"prompt_tokens": "600"}, r"steps\[3\]\.metrics\.prompt_tokens is a string; a token count is a whole number"),
        ({"completion_tokens": -1}, r"steps\[3\]\.metrics\.completion_tokens = -1"),
        ({"completion_tokens": None}, r"no output token count; a missing count is never read as zero"),
    ],
)
def test_contradictions_name_file_field_value_and_rule(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    helper = json.loads((FOLDER / "trajectory.summarization-1.json").read_text())
    helper["steps"][-1]["metrics"] |= change
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(helper))
    with pytest.raises(InputError, match=message) as caught:
        load_runs(path)
    assert caught.value.path == str(path)


def test_without_any_metrics_steps_are_counted_with_a_tokenizer(tmp_path: Path) -> None:
    main = json.loads(MAIN.read_text())
    for step in main["steps"]:
        step.pop("metrics", None)
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(main))
    (run,) = load_runs(path, options=Options(count_tokens=lambda text: len(text.split())))
    assert len(run.calls) == 4
    assert run.evidence.lengths == "modelled"
    assert replay.compactions([run]) == 1


def test_a_chat_export_is_read_from_its_last_episode() -> None:
    options = Options(count_tokens=lambda text: len(text.split()))
    (run,) = load_runs(FOLDER / "export" / "traces.json", options=options)
    assert len(run.calls) == 3
    assert [[segment.kind for segment in call.input] for call in run.calls] == [["user"], ["user"], ["user"]]
    assert replay.prompts(run) == [4, 8, 13]
    assert run.task == "boil"


def test_a_chat_export_beside_its_trajectory_tells_nothing_new(tmp_path: Path) -> None:
    (tmp_path / "trajectory.json").write_bytes(MAIN.read_bytes())
    (tmp_path / "traces.json").write_bytes((FOLDER / "export" / "traces.json").read_bytes())
    options = Options()
    assert [run.id for run in load_runs(tmp_path, options=options)] == ["atif-main"]
    assert "the same calls again" in options.problems[0].message
