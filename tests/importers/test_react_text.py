"""ReAct text: marks, sections, texts over several lines, and what a cut file still says."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
import replay
from hypothesis import given

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, Source, importer, load_runs
from costmodel_jax.schema import Run

LOG = Path(__file__).resolve().parents[1] / "golden" / "logs" / "react_text" / "thoughts.txt"


def words(text: str) -> int:
    return len(text.split())


def read(data: bytes, *, lenient: bool = False) -> list[Run]:
    return importer("react_text").read([Source("log.txt", data)], Options(count_tokens=words, lenient=lenient))


def test_a_question_is_a_run_and_a_thought_with_its_action_a_call() -> None:
    runs = load_runs(LOG, options=Options(count_tokens=words))
    assert [len(run.calls) for run in runs] == [2, 1, 1]
    assert [run.solved for run in runs] == [True, False, False]
    first = runs[0]
    assert [segment.kind for segment in first.calls[0].output] == ["reasoning", "assistant"]
    assert [[segment.kind for segment in call.input] for call in first.calls] == [["user"], ["tool"]]
    assert [call.output[1].name for call in first.calls] == ["Search", "Finish"]
    # Words, labels included: question 8, thought 8, action 4, observation of two lines 12.
    assert replay.prompts(first) == [8, 8 + 8 + 4 + 12]
    assert first.evidence.reasoning == "observed"


def test_a_thought_without_an_action_is_still_a_call() -> None:
    last = load_runs(LOG, options=Options(count_tokens=words))[-1]
    assert [segment.kind for segment in last.calls[0].output] == ["reasoning"]


def test_json_and_other_texts_are_not_claimed() -> None:
    detect = importer("react_text").detect
    assert detect(Source(LOG))
    assert not detect(Source("log.json", json.dumps({"log": LOG.read_text()}).encode()))
    assert not detect(Source("log.txt", b"Question: why?\nThought 1: because\n"))


def test_a_file_that_is_no_text_is_refused() -> None:
    data = LOG.read_bytes() + b"\xff\xfe"
    with pytest.raises(InputError, match="not UTF-8"):
        read(data)
    assert read(data, lenient=True) == []


def test_a_copy_of_a_log_counts_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_bytes(LOG.read_bytes())
    assert len(load_runs([LOG, copy], options=Options(count_tokens=words))) == 3


@given(st.lists(st.sampled_from(LOG.read_text().splitlines()), max_size=30), st.integers(0, 40))
def test_lines_in_any_order_are_read_or_refused(lines: list[str], cut: int) -> None:
    data = "\n".join(lines).encode()
    for run in read(data[: max(0, len(data) - cut)], lenient=True):
        replay.check(run)


def test_recorded_segments_are_all_there(shared: Path) -> None:
    path = shared / "logs" / "hotpotqa_react" / "thought_log.txt"
    runs = load_runs(path, options=Options(count_tokens=words))
    segments = json.loads((shared / "logs" / "expected.json").read_text())["files"]["hotpotqa_react/thought_log.txt"]
    counts = dict.fromkeys(segments["segments"], 0)
    for run in runs:
        for segment in run.segments:
            counts[segment.kind] += 1
    counts["tool"] += len(runs)  # the last observation of every question reached no model
    assert counts == segments["segments"]
    assert len(runs) == segments["questions"]
