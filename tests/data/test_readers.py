"""Local files to records; every bad row is named with its file, row and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy import lines, reasons

from costmodel_jax import InputError
from remory_jax.data import (
    Problems,
    Trajectory,
    data_files,
    python_topics,
    read_conversations,
    read_passages,
    read_texts,
    read_trajectories,
)


def segment(kind: str = "user", **more: Any) -> dict[str, Any]:
    return {"kind": kind, **more}


def run(**more: Any) -> dict[str, Any]:
    calls = [{"input": [segment(text="do it")], "output": [segment("assistant", ids=[5, 6], tokens=2)]}]
    return {"id": "r", "calls": calls, **more}


def test_passages_of_parquet_leave_images_alone(tmp_path: Path) -> None:
    rows = {
        "id": [1, 2, 3],
        "question": ["What is it?", None, " "],
        "qwen3vl_235b_thinking_response": ["<think>Look.</think>It is a cat", None, ""],
        "answer": ["a cat", "only an answer", None],
        "image": [{"bytes": b"\x89PNG", "path": "x"}] * 3,
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    problems = Problems()
    found = list(read_passages(data_files([tmp_path]), problems))
    assert [passage.text for passage in found] == ["What is it?\n\nLook.It is a cat", "only an answer"]
    assert [passage.id for passage in found] == ["a:0:1", "a:1:2"]
    (problem,) = problems.list
    assert (problem.reason, problem.row) == ("empty_text", 2)
    assert problem.path == str(tmp_path / "a.parquet")


def test_each_bad_row_is_named(tmp_path: Path) -> None:
    good = {"id": "x", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}
    file = lines(
        tmp_path / "c.jsonl",
        [
            good,
            '{"conversations": [',
            [1, 2],
            {"conversations": "secret words"},
            {"conversations": [{"from": "alien", "value": "secret words"}]},
            {"conversations": [{"from": "gpt", "value": 3}]},
            {"conversations": [{"from": "human", "value": "secret words"}]},
            {"conversations": [{"from": "human", "value": " "}, {"from": "gpt", "value": ""}]},
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]},
                    {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                ]
            },
        ],
    )
    problems = Problems(log=tmp_path / "log.jsonl")
    found = list(read_conversations([file], problems))
    assert [c.id for c in found] == ["c:1:x", "c:9"]
    assert found[0].turns[1].role == "assistant"
    assert found[1].turns[0].text == "hi"
    assert found[1].turns[1].extra == {"tool_calls": [{"id": "1"}]}
    assert [(p.row, p.reason) for p in problems.list] == [
        (2, "unreadable"),
        (3, "wrong_shape"),  # each value of a line that is a list is a row
        (3, "wrong_shape"),
        (4, "wrong_shape"),
        (5, "wrong_shape"),
        (6, "wrong_shape"),
        (7, "wrong_shape"),
        (8, "empty_text"),
    ]
    assert "message 0: its from/role" in str(problems.list[4])
    assert "c.jsonl:5" in str(problems.list[4])
    assert problems.passed_over == 8
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 8
    assert "secret" not in (tmp_path / "log.jsonl").read_text()  # text of the data is never part of a message


def test_fatal_stops_at_the_first(tmp_path: Path) -> None:
    file = lines(tmp_path / "c.jsonl", ['{"conversations": [', {"conversations": 1}])
    with pytest.raises(InputError, match=r"c\.jsonl:1: not valid JSON.*\[unreadable\]"):
        list(read_conversations([file], Problems("fatal")))


@pytest.mark.usefixtures("without_shape_checks")
def test_problems_are_skipped_or_fatal_and_have_a_known_reason() -> None:
    with pytest.raises(ValueError, match="on_problem = 'ignore'"):
        Problems("ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reason 'odd' is none of"):
        Problems().report("odd", "message")


def test_trajectories_with_ids_text_and_messages(tmp_path: Path) -> None:
    lengths_only = run(calls=[{"input": [segment(tokens=3)], "output": []}])
    both = run(calls=[{"input": [segment(text="a", ids=[1], tokens=1)], "output": []}])
    wrong = run(calls=[{"input": [{"kind": "alien", "text": "a"}], "output": []}])
    compacted = run()
    compacted["calls"] = [
        *compacted["calls"],
        {
            "input": [segment(text="go on")],
            "edits": [{"start": 0, "stop": 2, "segment": segment("summary", text="so far"), "cause": "compaction"}],
        },
    ]
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    file = lines(tmp_path / "t.jsonl", [run(), lengths_only, both, wrong, {"x": 1}, compacted, chat])
    problems = Problems()
    first, second, third = read_trajectories([file], problems)
    assert isinstance(first, Trajectory)
    assert [(c, o, p.text, p.ids) for c, o, p in first.pieces()] == [
        (0, False, "do it", None),
        (0, True, None, (5, 6)),
    ]
    assert isinstance(second, Trajectory)
    assert [(c, a, b, p.text if p else None) for c, a, b, p in second.replacements()] == [(1, 0, 2, "so far")]
    assert Trajectory.from_dict(second.to_dict()) == second
    assert third.id == "t:7"
    assert [(p.row, p.reason) for p in problems.list] == [
        (2, "no_tokens"),
        (3, "wrong_shape"),
        (4, "wrong_shape"),
        (5, "wrong_shape"),
    ]
    assert "calls[0].input[0] gives neither ids nor text" in problems.list[0].message


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        data_files([tmp_path / "nothing.jsonl"])
    with pytest.raises(InputError, match=r"no \.parquet, \.jsonl"):
        data_files([tmp_path])
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"pixels": [1]}), tmp_path / "other.parquet")
    problems = Problems()
    assert list(read_passages(data_files([tmp_path]), problems)) == []
    assert reasons(problems) == {"unreadable": 1, "wrong_shape": 1}


def test_texts_and_the_documentation_of_python(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("words\n")
    (tmp_path / "a.txt").write_text("  ")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\xff")
    problems = Problems()
    assert [p.id for p in read_texts([tmp_path], problems)] == ["b.md"]
    assert reasons(problems) == {"empty_text": 1, "unreadable": 1}
    topics = list(python_topics())
    assert len(topics) > 50
    assert sum(len(topic.text) for topic in topics) > 200_000
    assert "******" not in topics[0].text
