"""tau-bench: chat runs with a simulated user, and dialogues as text; both counted with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, load_runs

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "logs" / "tau_bench"


def options() -> Options:
    return Options(count_tokens=lambda text: len(text.split()))


def test_runs_of_a_results_file() -> None:
    first, second = load_runs(FOLDER / "results.json", options=options())
    assert (first.id, first.task, first.solved) == ("results/task4-trial0", "4", True)
    assert (second.id, second.task, second.solved) == ("results/task5-trial1", "5", False)
    assert [[segment.kind for segment in call.input] for call in first.calls] == [
        ["system", "user"],
        ["user"],
        ["tool"],
    ]
    # Words: 3 + 3, answer 2, user 4, call 3 (name, {"to":, "Oslo"}), result 2.
    assert replay.prompts(first) == [6, 12, 17]
    assert [s.name for s in (*first.calls[1].output, *first.calls[2].input)] == ["find_flight", "find_flight"]


def test_a_message_that_no_call_saw_is_noted() -> None:
    first, _ = load_runs(FOLDER / "results.json", options=options())
    assert sum(segment.kind == "user" for segment in first.segments) == 2
    assert "1 user message after the last call, which no call of this log answers" in first.notes


def test_dialogues_are_split_at_speakers() -> None:
    first, second = load_runs(FOLDER / "dialogues.jsonl", options=options())
    assert [len(run.calls) for run in (first, second)] == [3, 1]
    assert [[segment.kind for segment in call.input] for call in first.calls] == [["user"], ["user"], ["tool"]]
    assert [segment.tokens for segment in first.calls[0].output] == [6]  # both lines of the answer


def test_equal_runs_of_two_files_count_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes((FOLDER / "results.json").read_bytes())
    assert len(load_runs([FOLDER / "results.json", copy], options=options())) == 2


def test_a_message_of_an_unknown_role_is_refused(tmp_path: Path) -> None:
    runs = json.loads((FOLDER / "results.json").read_text())
    runs[1]["traj"][1]["role"] = "narrator"
    path = tmp_path / "results.json"
    path.write_text(json.dumps(runs))
    with pytest.raises(InputError, match=r"\[1\]\.traj\.\[1\]\.role is unknown; known roles") as caught:
        load_runs(path, options=options())
    assert "narrator" not in str(caught.value)
    lenient = Options(lenient=True, count_tokens=len)
    assert len(load_runs(path, options=lenient)) == 1
    assert [problem.kind for problem in lenient.problems] == ["skipped_run"]
