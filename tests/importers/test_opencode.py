"""opencode sessions: one file per message, parts beside them, or one exported document."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fuzz
import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, importer, load_runs
from costmodel_jax.schema import Run

STORAGE = Path(__file__).resolve().parents[1] / "golden" / "logs" / "opencode" / "storage"
SESSION = STORAGE / "message" / "ses_one"


@pytest.fixture(scope="module")
def run() -> Run:
    (loaded,) = replay.load(SESSION)
    return loaded


def message(tmp_path: Path, **tokens: Any) -> Path:
    path = tmp_path / "msg_1.json"
    path.write_text(json.dumps({"id": "msg_1", "sessionID": "ses_1", "role": "assistant", "tokens": tokens}))
    return path


def test_totals(run: Run) -> None:
    assert replay.totals([run]) == {
        "calls": 5,
        "prompt_tokens": 1000 + 1130 + 1090 + 1200 + 1100,
        "cached_tokens": 2040,
        "cache_write_5m": 90,
        "cache_write_1h": 0,
        "output_tokens": 30 + 35 + 25 + 80 + 12,
        "reasoning_tokens": 15,
    }
    assert (run.id, run.parent, run.model) == ("ses_one", "ses_zero", "model-x")
    assert [segment.kind for segment in run.segments].count("user") == 2


def test_a_message_of_two_steps_is_two_calls(run: Run) -> None:
    first, second = run.calls[:2]
    assert [(s.kind, s.tokens) for s in first.output] == [("reasoning", 10), ("assistant", 20)]
    (result,) = second.input
    assert (result.kind, result.name, result.error) == ("tool", "search", False)


def test_a_pruned_tool_result_leaves_its_mark(run: Run) -> None:
    (edit,) = run.calls[2].edits
    assert edit.cause == "clear_tool_results"
    assert edit.segment is not None and 0 < edit.segment.tokens < 20


def test_the_call_after_a_summary_goes_on_from_it(run: Run) -> None:
    assert replay.compactions([run]) == 1
    assert [edit.cause for edit in run.calls[4].edits] == ["compaction"]
    # "Continue" is the client's own word.
    assert [segment.kind for segment in run.calls[4].input] == ["summary", "system"]


def test_a_failed_request_is_no_call(run: Run) -> None:
    assert all(call.usage is not None and call.usage.prompt_tokens for call in run.calls)


def test_all_files_of_the_storage_are_of_this_format(run: Run) -> None:
    options = Options()
    assert load_runs(STORAGE, options=options) == [run]
    assert options.problems == []


def test_messages_alone_are_enough(tmp_path: Path, run: Run) -> None:
    alone = tmp_path / "messages"
    shutil.copytree(SESSION, alone)
    (bare,) = replay.load(alone)
    # Without its parts the message of two steps is known by its last step only, and a summary by its mark.
    assert len(bare.calls) == len(run.calls) - 1
    assert replay.compactions([bare]) == 1


def test_an_exported_session(tmp_path: Path, run: Run) -> None:
    messages = []
    for path in sorted(SESSION.glob("*.json")):
        parts = sorted((STORAGE / "part" / path.stem).glob("*.json"))
        messages.append({"info": json.loads(path.read_text()), "parts": [json.loads(p.read_text()) for p in parts]})
    info = json.loads((STORAGE / "session" / "global" / "ses_one.json").read_text())
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"info": info, "messages": messages}))
    assert replay.load(path) == [run]


def test_one_message_in_two_files_counts_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        message(tmp_path / name, input=5, output=2, reasoning=0, cache={"read": 1, "write": 0})
    (run,) = replay.load(tmp_path)
    assert replay.totals([run])["prompt_tokens"] == 6


def test_counters_that_are_missing_stay_unknown(tmp_path: Path) -> None:
    (run,) = replay.load(message(tmp_path, input=5, output=2))
    assert replay.per_call(run)[0] == {
        "prompt_tokens": 5,
        "cached_tokens": None,
        "cache_write_5m": None,
        "cache_write_1h": None,
        "output_tokens": 2,
        "reasoning_tokens": None,
    }
    assert (run.evidence.cached, run.evidence.reasoning) == ("unknown", "unknown")


@pytest.mark.parametrize(
    ("tokens", "rule"),
    [
        ({"input": -5, "output": 2}, r"tokens\.input = -5; a token count is at least 0"),
        ({"input": 5, "output": 2, "cache": {"read": "9"}}, r"tokens\.cache\.read is a string"),
        ({"output": 2}, "tokens lacks input or output; a missing count is never read as zero"),
        ({"input": 2**31 - 1, "output": 2, "cache": {"read": 3}}, r"prompt_tokens = 2147483650; .* below 2\^31"),
    ],
)
def test_contradictions(tmp_path: Path, tokens: dict[str, Any], rule: str) -> None:
    path = message(tmp_path, **tokens)
    with pytest.raises(InputError, match=rf"msg_1\.json: .*{rule}"):
        load_runs(path)
    with pytest.raises(InputError, match="no model calls"):
        load_runs(path, options=Options(lenient=True))


def test_damaged_files_raise_only_input_errors() -> None:
    files = {f"{Path(path).name}": data for path, data in fuzz.files_below(STORAGE).items()}
    fuzz.check(importer("opencode"), files, rounds=30)


def test_sessions_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert importer("opencode").logs() == []
    default = tmp_path / ".local" / "share" / "opencode" / "storage"
    shutil.copytree(STORAGE, default)
    assert importer("opencode").logs() == [default / "message" / "ses_one"]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "else"))
    assert importer("opencode").logs() == []


def test_real_message(shared: Path) -> None:
    expected = json.loads((shared / "logs" / "expected.json").read_text())["files"]["opencode/"]
    replay.compare(replay.load(shared / "logs" / "opencode"), expected)
