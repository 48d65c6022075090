"""Gemini CLI sessions, in the form of one document and in the form of one record a line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fuzz
import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, importer, load_runs

LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs" / "gemini_cli"
LATER = LOGS / "later" / "session-later.jsonl"


def session(tmp_path: Path, **tokens: Any) -> Path:
    path = tmp_path / "session.json"
    message = {"id": "m", "type": "gemini", "content": "x", "model": "g", "tokens": tokens}
    path.write_text(json.dumps({"sessionId": "s", "projectHash": "h", "messages": [message]}))
    return path


def test_totals() -> None:
    (run,) = replay.load(LOGS / "session.json")
    assert replay.totals([run]) == {
        "calls": 2,
        "prompt_tokens": 500 + 640,
        "cached_tokens": 450,
        "cache_write_5m": 0,
        "cache_write_1h": 0,
        "output_tokens": 50 + 15,
        "reasoning_tokens": 30,
    }
    assert (run.id, run.model, run.evidence.reasoning) == ("gemini-session-1", "gemini-x", "billed")
    assert replay.user_turns([run]) == 1


def test_thoughts_are_counted_apart_and_not_sent_again() -> None:
    (run,) = replay.load(LOGS / "session.json")
    assert [(s.kind, s.tokens) for s in run.calls[0].output] == [("reasoning", 30), ("assistant", 20)]
    (edit,) = run.calls[1].edits
    assert (edit.start, edit.stop, edit.cause) == (2, 3, "reasoning_dropped")
    (result,) = run.calls[1].input
    assert (result.kind, result.name, result.error) == ("tool", "look", True)


@pytest.mark.parametrize(("total", "prompt"), [(675, 640), (635, 600), (None, 640)])
def test_the_total_says_whether_tool_prompts_are_inside_the_input(tmp_path: Path, total: Any, prompt: int) -> None:
    path = session(tmp_path, input=600, output=15, cached=0, thoughts=20, tool=40, total=total)
    assert replay.totals(replay.load(path))["prompt_tokens"] == prompt


def test_updates_compression_and_rewind_in_the_line_form() -> None:
    (run,) = replay.load(LATER)
    prompts = [call.usage.prompt_tokens for call in run.calls if call.usage is not None]
    assert prompts == [500, 640, 900, 560, 600, 604]
    causes = [[edit.cause for edit in call.edits] for call in run.calls]
    assert causes == [[], ["reasoning_dropped"], [], ["compaction"], [], ["rewind"]]
    # The compressed history keeps the first message and puts a summary beside it.
    assert [segment.kind for segment in run.calls[3].input] == ["summary", "user"]
    (rewind,) = run.calls[5].edits
    assert [segment.kind for segment in run.segments[rewind.start : rewind.stop]] == ["user", "assistant"]
    assert replay.user_turns([run]) == 6


def test_a_session_that_moved_to_the_line_form_counts_once() -> None:
    (run,) = replay.load([LOGS / "session.json", LATER])
    assert len(run.calls) == 6


def test_a_helper_names_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "parent-session" / "helper.jsonl"
    path.parent.mkdir()
    head, *rest = LATER.read_text().splitlines()
    meta = json.loads(head) | {"sessionId": "helper-session", "kind": "subagent"}
    path.write_text("\n".join([json.dumps(meta), *rest]))
    (run,) = replay.load(path)
    assert (run.id, run.parent) == ("helper-session", "parent-session")


def test_a_message_the_client_made_up_is_no_call(tmp_path: Path) -> None:
    path = session(tmp_path, input=5, output=2)
    value = json.loads(path.read_text())
    value["messages"].insert(0, {"id": "n", "type": "gemini", "content": "made up", "tokens": None})
    path.write_text(json.dumps(value))
    (run,) = replay.load(path)
    assert len(run.calls) == 1
    value["messages"][0]["model"] = "g"
    path.write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"session\.json:1: tokens is missing"):
        load_runs(path)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"input": 5, "output": 2, "cached": 9}, "tokens gives 9 cached tokens of a prompt of 5"),
        ({"input": 5, "output": "2"}, r"tokens\.output is a string"),
        ({"input": 5}, "tokens lacks input or output; a missing count is never read as zero"),
        ({"input": 5, "output": 2, "thoughts": -1}, r"tokens\.thoughts = -1"),
    ],
)
def test_contradictions(tmp_path: Path, tokens: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"session\.json:1: {message}"):
        load_runs(session(tmp_path, **tokens))
    with pytest.raises(InputError, match="no model calls"):
        load_runs(session(tmp_path, **tokens), options=Options(lenient=True))


@pytest.mark.parametrize("path", [LOGS / "session.json", LATER], ids=["document", "lines"])
def test_damaged_files_raise_only_input_errors(path: Path) -> None:
    fuzz.check(importer("gemini_cli"), {path.name: path.read_bytes()}, rounds=30)


def test_the_newest_log_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GEMINI_CLI_HOME", raising=False)
    assert importer("gemini_cli").logs() == []
    made = []
    for age, place in enumerate((".gemini/tmp/p/chats/s.json", ".gemini/tmp/p/chats/x/h.jsonl")):
        log = tmp_path / place
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("{}\n")
        os.utime(log, (1000 - age, 1000 - age))
        made.append(log)
    assert importer("gemini_cli").logs() == made
    monkeypatch.setenv("GEMINI_CLI_HOME", str(tmp_path / "else"))
    assert importer("gemini_cli").logs() == []


def test_real_session(shared: Path) -> None:
    for path, expected in replay.expected_files(shared, "gemini_cli"):
        replay.compare(replay.load(path), expected)
