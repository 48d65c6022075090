"""SWE-agent: prompts as they were really sent, and answers that the history did not keep."""

from __future__ import annotations

import json
from pathlib import Path

import replay

from costmodel_jax.importers import Options, load_runs
from costmodel_jax.schema import Run

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "logs" / "swe_agent"


def read(path: Path) -> Run:
    (run,) = load_runs(path, options=Options(count_tokens=lambda text: len(text.split())))
    replay.check(run)
    return run


def test_old_observations_that_were_cut_are_edits_of_the_recorded_client() -> None:
    run = read(FOLDER / "cut.traj")
    # Words: system 5, task 8; answers 3 + 3 (call and its argument), 3 + 3, 2 + 3; observations 8, 9; the cut text 3.
    assert replay.prompts(run) == [13, 13 + 6 + 8, 13 + 6 + 3 + 6 + 9]
    assert [len(call.edits) for call in run.calls] == [0, 0, 1]
    (edit,) = run.calls[2].edits
    assert (edit.start, edit.stop, edit.cause) == (4, 5, "clear_tool_results")
    assert edit.segment is not None and edit.segment.tokens == 3


def test_facts_of_the_run() -> None:
    run = read(FOLDER / "cut.traj")
    assert (run.id, run.task, run.model) == ("cut", "parser-1", "test-model")
    assert run.evidence.reasoning == "unknown"
    assert run.notes == (
        "model_stats counts 90 tokens sent and 20 received in the whole run",
        "model_stats counts 4 calls, the file holds 3 (errors are asked again)",
    )
    assert [segment.name for segment in run.calls[1].input] == ["find"]


def test_a_step_is_a_call_even_where_the_history_did_not_keep_it() -> None:
    run = read(FOLDER / "retry.traj")
    assert len(run.calls) == 4
    # The answer that was asked again left the context: the next prompt is the same as before it.
    prompts = replay.prompts(run)
    assert prompts[1] == prompts[2]
    assert prompts[3] == prompts[2] + sum(segment.tokens for segment in run.calls[2].output) + 1
    assert [edit.cause for edit in run.calls[2].edits] == ["unknown"]


def test_user_messages_after_the_first_answer_are_observations_and_demonstrations_are_instructions() -> None:
    run = read(FOLDER / "retry.traj")
    assert [segment.kind for segment in run.calls[0].input] == ["system", "system", "user"]
    assert [segment.kind for segment in run.calls[1].input] == ["tool"]
    assert sum(segment.kind == "user" for segment in run.segments) == 1


def test_a_history_alone_is_read_by_its_answers() -> None:
    run = read(FOLDER / "history.traj")
    assert len(run.calls) == 2
    assert replay.prompts(run) == [13, 13 + 6 + 8]


def test_queries_are_the_prompts_where_a_step_has_them(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "history.traj").read_text())
    history = document["history"]
    steps = [
        {"action": "find", "observation": "", "response": "Let me look.", "thought": "", "query": history[:2]},
        {"action": "open", "observation": "", "response": "Open the file.", "thought": "", "query": history[:1]},
    ]
    path = tmp_path / "query.traj"
    path.write_text(json.dumps({"trajectory": steps, "history": history, "info": {}}))
    run = read(path)
    assert replay.prompts(run) == [13, 5]


def test_usage_of_every_step_is_measured_where_it_is_written(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "cut.traj").read_text())
    for i, step in enumerate(document["trajectory"]):
        step["usage"] = {"prompt_tokens": 1000 + 100 * i, "completion_tokens": 10}
    path = tmp_path / "usage.traj"
    path.write_text(json.dumps(document))
    (run,) = load_runs(path)
    replay.check(run)
    assert replay.totals([run])["prompt_tokens"] == 3300
    assert run.evidence.lengths == "measured"


def test_a_copy_of_a_file_counts_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.traj"
    copy.write_bytes((FOLDER / "cut.traj").read_bytes())
    assert len(load_runs([FOLDER / "cut.traj", copy], options=Options(count_tokens=len))) == 1
