"""Codex rollouts: repeated and cumulative counters, compaction, turns taken back, forks and helpers."""

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
from costmodel_jax.schema import Run

LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs" / "codex"
TREE = LOGS / "tree"


def load(name: str) -> Run:
    (run,) = replay.load(LOGS / f"rollout-{name}.jsonl")
    return run


def prompts(run: Run) -> list[int | None]:
    return [call.usage.prompt_tokens for call in run.calls if call.usage is not None]


def rollout(tmp_path: Path, *infos: Any) -> Path:
    path = tmp_path / "rollout.jsonl"
    records = [{"type": "session_meta", "payload": {"id": "s"}}]
    records += [{"type": "event_msg", "payload": {"type": "token_count", "info": info}} for info in infos]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_repeated_and_empty_counts_are_no_calls() -> None:
    run = load("plain")
    assert prompts(run) == [1000, 1200, 1230, 1400, 1330]
    assert replay.totals([run]) == {
        "calls": 5,
        "prompt_tokens": 6160,
        "cached_tokens": 4224,
        "cache_write_5m": 0,
        "cache_write_1h": 0,
        "output_tokens": 240,
        "reasoning_tokens": 96,
    }
    assert (run.id, run.model, run.evidence.reasoning) == ("plain-session-1", "gpt-x", "billed")


def test_items_after_their_count_belong_to_it() -> None:
    run = load("plain")
    assert [segment.kind for segment in run.calls[0].output] == ["reasoning", "assistant"]
    assert run.calls[0].output[1].name == "shell"
    (result,) = run.calls[1].input
    assert (result.kind, result.name, result.error) == ("tool", "shell", True)


def test_items_before_their_count_belong_to_it() -> None:
    run = load("compacted")
    assert [segment.name for segment in run.calls[0].output] == [None, "shell"]
    assert [segment.kind for segment in run.calls[1].input] == ["tool"]


def test_user_turns_are_user_messages_and_each_stands_twice_in_the_file() -> None:
    run = load("plain")
    assert replay.user_turns([run]) == 6
    assert [segment.kind for segment in run.calls[0].input] == ["system", "user"]


def test_an_answer_that_was_cut_off_is_context_of_the_next_call() -> None:
    run = load("plain")
    assert [segment.kind for segment in run.calls[2].input] == ["user", "reasoning", "user"]
    assert any("turns cut off: 1;" in note for note in run.notes)


def test_reasoning_dropped_at_a_user_turn() -> None:
    # 1,250 tokens were shown and only 896 of them read from the cache: the 64 of reasoning behind them went.
    (edit,) = load("plain").calls[2].edits
    assert (edit.start, edit.stop, edit.cause, edit.segment) == (2, 3, "reasoning_dropped", None)


def test_a_turn_taken_back() -> None:
    run = load("plain")
    (edit,) = run.calls[4].edits
    assert edit.cause == "rewind"
    taken = run.segments[edit.start : edit.stop]
    assert [segment.kind for segment in taken] == ["user", "assistant"]


def test_compaction() -> None:
    run = load("compacted")
    assert prompts(run) == [9000, 12000, 3000]
    assert replay.compactions([run]) == 1
    (edit,) = run.calls[2].edits
    assert edit.cause == "compaction" and edit.segment is not None and edit.segment.tokens == 1024
    assert [segment.kind for segment in run.calls[2].input] == ["summary"]


def test_cumulative_counters_alone_give_differences_and_may_start_again() -> None:
    run = load("totals")
    calls = [(u["prompt_tokens"], u["cached_tokens"], u["output_tokens"]) for u in replay.per_call(run)]
    assert calls == [(100, 0, 20), (150, 64, 30), (90, 32, 10)]
    assert replay.totals([run])["reasoning_tokens"] == 24


def test_a_fork_counts_what_it_repeats_once() -> None:
    runs = {run.id: run for run in replay.load(TREE)}
    assert {name: prompts(run) for name, run in runs.items()} == {
        "parent-session-1": [1000, 1300],
        "forked-session-1": [1500],
        "burst-session-1": [950],
        "helper-session-1": [400],
    }
    fork, parent = runs["forked-session-1"], runs["parent-session-1"]
    assert fork.chain == parent.chain == parent.id
    assert fork.parent is None
    assert runs["helper-session-1"].parent == parent.id and runs["helper-session-1"].chain is None
    # The copied history is context of the fork's first call, and its user messages are turns of the parent.
    assert [segment.kind for segment in fork.calls[0].input].count("user") == 1
    assert sum(segment.tokens for segment in fork.calls[0].input) == 1500


def test_a_fork_alone_finds_its_parent_beside_it() -> None:
    (fork,) = replay.load(TREE / "rollout-a-fork.jsonl")
    assert prompts(fork) == [1500]
    assert fork.chain == "parent-session-1"
    assert any("first 2 calls repeat session parent-session-1" in note for note in fork.notes)


def test_a_fork_in_a_tree_of_sessions_finds_its_parent_by_name(tmp_path: Path) -> None:
    for day, name, new in (("01", "b-parent", "parent-session-1"), ("02", "a-fork", "forked-session-1")):
        target = tmp_path / "sessions" / "2026" / day / f"rollout-{new}.jsonl"
        target.parent.mkdir(parents=True)
        target.write_bytes((TREE / f"rollout-{name}.jsonl").read_bytes())
    (fork,) = replay.load(tmp_path / "sessions" / "2026" / "02" / "rollout-forked-session-1.jsonl")
    assert prompts(fork) == [1500]


def test_a_fork_without_its_parent(tmp_path: Path) -> None:
    burst = TREE / "rollout-c-burst.jsonl"
    (run,) = replay.load(burst)
    # Its copy was written within a second of its beginning.
    assert prompts(run) == [950]
    assert any("written at once" in note for note in run.notes)
    alone = tmp_path / "rollout.jsonl"
    alone.write_bytes((TREE / "rollout-a-fork.jsonl").read_bytes())
    (run,) = replay.load(alone)
    assert prompts(run) == [1000, 1300, 1500]
    assert any("cannot be told apart" in note for note in run.notes)


def test_the_same_session_in_two_files_counts_once(tmp_path: Path) -> None:
    copy = tmp_path / "rollout-copy.jsonl"
    copy.write_bytes((LOGS / "rollout-plain.jsonl").read_bytes())
    (run,) = replay.load([LOGS / "rollout-plain.jsonl", copy])
    assert len(run.calls) == 5


def test_counts_without_totals_repeat_if_they_are_equal(tmp_path: Path) -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    (run,) = replay.load(rollout(tmp_path, *[{"last_token_usage": usage | {"input_tokens": n}} for n in (5, 5, 8)]))
    assert prompts(run) == [5, 8]
    # Neither a cache counter nor a reasoning counter: unknown, not zero.
    assert (run.evidence.cached, run.evidence.reasoning) == ("unknown", "unknown")


def test_cache_writes_are_part_of_the_input(tmp_path: Path) -> None:
    usage = {"input_tokens": 100, "cached_input_tokens": 40, "cache_write_input_tokens": 30, "output_tokens": 2}
    (run,) = replay.load(rollout(tmp_path, {"last_token_usage": usage, "total_token_usage": usage}))
    assert replay.totals([run])["cache_write_5m"] == 30
    assert prompts(run) == [100]


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ({"input_tokens": 5, "cached_input_tokens": 9, "output_tokens": 1}, "gives 9 cached tokens of a prompt of 5"),
        ({"input_tokens": 5, "output_tokens": 1, "reasoning_output_tokens": 2}, "2 reasoning tokens of an output of 1"),
        ({"input_tokens": [5], "output_tokens": 1}, "input_tokens is an array; a token count is a whole number"),
        ({"output_tokens": 1}, "lacks input_tokens or output_tokens; a missing count is never read as zero"),
    ],
)
def test_contradictions_name_file_line_and_field(tmp_path: Path, usage: Any, message: str) -> None:
    path = rollout(tmp_path, {"last_token_usage": usage})
    with pytest.raises(InputError, match=rf"rollout\.jsonl:2: payload\.info.*{message}"):
        load_runs(path)
    with pytest.raises(InputError, match="no model calls"):
        load_runs(path, options=Options(lenient=True))


def test_answers_without_any_count_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    item = {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": []}}
    path.write_text(json.dumps(item) + "\n")
    options = Options()
    with pytest.raises(InputError, match=r"no model calls found in .* \(1 files or records were passed over\)"):
        load_runs(path, options=options)
    assert "has answers but no token counts" in options.problems[0].message


@pytest.mark.parametrize("name", ["plain", "compacted", "totals"])
def test_damaged_files_raise_only_input_errors(name: str) -> None:
    data = (LOGS / f"rollout-{name}.jsonl").read_bytes()
    fuzz.check(importer("codex"), {"rollout.jsonl": data}, rounds=25)


def test_damaged_forks_raise_only_input_errors() -> None:
    fuzz.check(importer("codex"), fuzz.files_below(TREE), rounds=25)


def test_the_newest_log_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    assert importer("codex").logs() == []
    made = []
    for age, place in enumerate((".codex/sessions/2026/01/02", ".codex/archived_sessions", "else/sessions")):
        log = tmp_path / place / f"rollout-{age}.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text("{}\n")
        os.utime(log, (1000 - age, 1000 - age))
        made.append(log)
    assert importer("codex").logs() == made[:2]
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "else"))
    assert importer("codex").logs() == made[2:]


def test_real_sessions(shared: Path) -> None:
    for path, expected in replay.expected_files(shared, "codex"):
        replay.compare(replay.load(path), expected)


def test_hand_written_cases(shared: Path) -> None:
    for folder, expected in replay.expected_cases(shared, "codex_*"):
        runs = replay.load([folder / name for name in expected["read"]])
        replay.compare(runs, expected)
        for position in expected.get("compaction_before_call", []):
            assert any(edit.cause == "compaction" for edit in runs[0].calls[position].edits)
        for name, calls in expected.get("per_file_calls", {}).items():
            assert replay.totals(replay.load(folder / name))["calls"] == calls
