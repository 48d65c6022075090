"""mini-swe-agent: LiteLLM usage of each response, or a bare list of messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, load_runs

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "logs" / "mini_swe_agent"


def changed(tmp_path: Path, message: int, usage: dict[str, Any] | None) -> Path:
    document = json.loads((FOLDER / "usage.traj.json").read_text())
    response = document["messages"][message]["extra"]["response"]
    if usage is None:
        del response["usage"]
    else:
        response["usage"] |= usage
    path = tmp_path / "changed.traj.json"
    path.write_text(json.dumps(document))
    return path


def test_totals_and_the_lifetimes_of_cache_writes() -> None:
    (run,) = load_runs(FOLDER / "usage.traj.json")
    assert replay.totals([run]) == {
        "calls": 2,
        "prompt_tokens": 1100,
        "cached_tokens": 500,
        "cache_write_5m": 390,
        "cache_write_1h": 100,
        "output_tokens": 90,
        "reasoning_tokens": None,
    }
    assert (run.id, run.model) == ("usage", "test/claude")
    assert [call.time for call in run.calls] == [1770000000.0, 1770000001.0]
    assert run.notes == ("model_stats counts 3 calls to the model, the messages hold 2 answers",)


def test_lifetimes_that_do_not_add_up_are_not_used(tmp_path: Path) -> None:
    (run,) = load_runs(changed(tmp_path, 2, {"cache_creation_input_tokens": 450}))
    assert run.calls[0].usage is not None
    assert (run.calls[0].usage.cache_write_5m, run.calls[0].usage.cache_write_1h) == (450, 0)


def test_the_history_grows_by_answer_and_observation() -> None:
    (run,) = load_runs(FOLDER / "usage.traj.json")
    assert [(s.kind, s.tokens) for s in run.calls[1].input] == [("tool", 50)]
    assert sum(segment.kind == "user" for segment in run.segments) == 1


def test_hidden_reasoning_is_not_sent_again(tmp_path: Path) -> None:
    path = changed(tmp_path, 2, {"completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 20}})
    document = json.loads(path.read_text())
    document["messages"][4]["extra"]["response"]["usage"]["completion_tokens_details"] = {"reasoning_tokens": 0}
    path.write_text(json.dumps(document))
    (run,) = load_runs(path)
    assert run.evidence.reasoning == "billed"
    assert [edit.cause for edit in run.calls[1].edits] == ["reasoning_dropped"]
    assert [segment.tokens for segment in run.calls[1].input] == [70]


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ({"prompt_tokens": 300}, r"gives 400 tokens read from and written to the cache of a prompt of 300"),
        ({"completion_tokens": 1.5}, r"completion_tokens is 1.5; a token count is a whole number"),
        ({"cache_read_input_tokens": 7, "prompt_tokens_details": {"cached_tokens": 8}}, r"both count the same tokens"),
        (None, r"messages\.\[2\]\.extra\.response\.usage is missing"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, usage: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_runs(changed(tmp_path, 2, usage))


def test_lenient_reading_keeps_the_text_of_an_answer_without_usage(tmp_path: Path) -> None:
    options = Options(lenient=True)
    (run,) = load_runs(changed(tmp_path, 2, None), options=options)
    assert replay.totals([run])["prompt_tokens"] == 600
    assert "assistant" in [segment.kind for segment in run.calls[0].input]
    assert [problem.kind for problem in options.problems] == ["skipped_record"]


def test_a_bare_list_of_messages_is_counted_with_a_tokenizer() -> None:
    (run,) = load_runs(FOLDER / "bare.traj.json", options=Options(count_tokens=lambda text: len(text.split())))
    assert len(run.calls) == 2
    assert [[segment.kind for segment in call.input] for call in run.calls] == [["system", "user"], ["tool"]]
    assert replay.prompts(run) == [10, 10 + 5 + 2]
    assert run.evidence.reasoning == "unknown"


def test_responses_that_another_file_holds_count_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.traj.json"
    copy.write_bytes((FOLDER / "usage.traj.json").read_bytes())
    options = Options()
    assert len(load_runs([FOLDER / "usage.traj.json", copy], options=options)) == 1
    assert options.problems
