"""Claude Code sessions: one call per answer, helpers apart, copies once, compactions and rewinds as edits."""

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

LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs" / "claude_code"
MAIN = "11111111-2222-4333-8444-555555555555"
HELPER = LOGS / MAIN / "subagents" / "agent-abc123.jsonl"


@pytest.fixture(scope="module")
def main() -> Run:
    (run,) = replay.load(LOGS / f"{MAIN}.jsonl")
    return run


def lines(tmp_path: Path, *values: Any) -> Path:
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def answer(usage: Any, **fields: Any) -> dict[str, Any]:
    message = {"id": "m1", "role": "assistant", "model": "x", "content": [], "usage": usage}
    return {"type": "assistant", "sessionId": "s", "parentUuid": None, "uuid": "u", "message": message, **fields}


def test_totals(main: Run) -> None:
    assert replay.totals([main]) == {
        "calls": 7,
        "prompt_tokens": 76536,
        "cached_tokens": 66000,
        "cache_write_5m": 9800,
        "cache_write_1h": 700,
        "output_tokens": 327,
        "reasoning_tokens": None,
    }
    assert replay.compactions([main]) == 1
    assert replay.user_turns([main]) == 4
    assert (main.id, main.model, main.parent, main.format) == (MAIN, "claude-x", None, "claude_code")


def test_an_answer_of_several_lines_is_one_call_with_its_last_usage(main: Run) -> None:
    assert main.calls[0].usage is not None
    assert main.calls[0].usage.output_tokens == 140
    assert [segment.name for segment in main.calls[0].output] == [None, "Bash"]


def test_thinking_is_shown_but_not_counted_so_its_length_is_unknown(main: Run) -> None:
    assert main.evidence.reasoning == "unknown"
    assert main.evidence.cached == "measured"
    (helper,) = replay.load(HELPER)
    assert helper.evidence.reasoning == "observed"


def test_what_the_client_wrote_is_no_user_turn(main: Run) -> None:
    first = [segment.kind for segment in main.calls[0].input]
    assert first == ["system", "system", "user"]
    assert [segment.kind for segment in main.calls[3].input] == ["system", "user"]


def test_tool_facts(main: Run) -> None:
    (result,) = main.calls[1].input
    assert (result.kind, result.name, result.error) == ("tool", "Bash", True)
    reads = [segment for call in main.calls[4:] for segment in (*call.input, *call.output) if segment.name == "Read"]
    # The same file read twice: equal hashes say so, and no text is kept.
    assert len({segment.arguments_hash for segment in reads} - {None}) == 1
    assert len({segment.result_hash for segment in reads} - {None}) == 1


def test_cache_write_lifetimes(main: Run) -> None:
    writes = [(c.usage.cache_write_5m, c.usage.cache_write_1h) for c in main.calls if c.usage is not None]
    assert writes == [(1500, 500), (300, 0), (200, 200), (5000, 0), (1500, 0), (600, 0), (700, 0)]
    assert any("call 2: cache write lifetimes do not add up" in note for note in main.notes)


def test_a_placeholder_count_is_said_and_its_rest_is_prompt_of_the_next_call(tmp_path: Path, main: Run) -> None:
    assert any("1 of 7 calls are placeholders" in note for note in main.notes)
    long = {"type": "text", "text": "word " * 400}
    first = answer({"input_tokens": 1000, "output_tokens": 1})
    first["message"]["content"] = [long]
    second = answer({"input_tokens": 1500, "output_tokens": 40}, uuid="w", parentUuid="v")
    second["message"] = second["message"] | {"id": "m2"}
    user = {"type": "user", "sessionId": "s", "parentUuid": "u", "uuid": "v", "message": {"content": "so?" * 10}}
    (run,) = replay.load(lines(tmp_path, first, user, second))
    rest, asked = run.calls[1].input
    assert (rest.kind, asked.kind) == ("assistant", "user")
    assert rest.tokens > 400


def test_compaction_keeps_the_head_that_was_read_from_the_cache(main: Run) -> None:
    (edit,) = main.calls[4].edits
    assert edit.cause == "compaction" and edit.start == 0
    assert edit.segment is not None and edit.segment.tokens == 8000
    assert [segment.kind for segment in main.calls[4].input] == ["summary", "user"]
    assert any("calls that wrote the summaries are not in this log" in note for note in main.notes)


def test_cleared_tool_results(main: Run) -> None:
    (edit,) = main.calls[6].edits
    (cleared,) = main.calls[5].input
    assert edit.cause == "clear_tool_results"
    assert edit.segment is not None and edit.segment.tokens == cleared.tokens - 300


def test_a_helper_is_a_run_of_its_own() -> None:
    main, helper = replay.load([LOGS / f"{MAIN}.jsonl", HELPER])
    assert (helper.id, helper.parent) == (f"{MAIN}/abc123", main.id)
    assert replay.totals([helper])["prompt_tokens"] == 3003 + 3404
    # The usage in toolUseResult repeats the helper's last call and is no call of the main thread.
    assert len(main.calls) == 7


def test_helpers_inside_the_session_file() -> None:
    main, first, second = replay.load(LOGS / "sidechain.jsonl")
    assert [len(run.calls) for run in (main, first, second)] == [2, 2, 2]
    assert (main.id, main.parent) == ("old", None)
    assert {first.parent, second.parent} == {"old"} and first.id != second.id
    assert replay.totals([first, second])["prompt_tokens"] == 2 * (200 + 230)


@pytest.mark.parametrize("order", [("resumed", MAIN), (MAIN, "resumed")])
def test_a_resumed_copy_counts_once(order: tuple[str, str]) -> None:
    runs = {run.id: run for run in replay.load([LOGS / f"{name}.jsonl" for name in order])}
    main, again = runs[MAIN], runs["99999999-2222-4333-8444-555555555555"]
    assert replay.totals(list(runs.values()))["prompt_tokens"] == 76536 + 10507
    assert (len(main.calls), len(again.calls)) == (7, 1)
    assert main.chain == again.chain == main.id
    # What it copied is context, not a turn of this session.
    assert sum(segment.kind == "user" for segment in again.calls[0].input) == 1
    (alone,) = replay.load(LOGS / "resumed.jsonl")
    assert len(alone.calls) == 3


def test_going_back_hides_the_abandoned_branch() -> None:
    (run,) = replay.load(LOGS / "rewound.jsonl")
    assert [[(e.start, e.stop, e.cause) for e in call.edits] for call in run.calls] == [[], [], [(3, 5, "rewind")], []]
    assert sum(segment.tokens for segment in run.calls[2].input) == 1180 - 1000 - 100


def test_a_request_id_may_be_missing_on_some_lines_of_an_answer(tmp_path: Path) -> None:
    usage = {"input_tokens": 30, "output_tokens": 4}
    values = [answer(usage), answer(usage, uuid="v", requestId="r1"), answer(usage, uuid="w")]
    other = answer(usage, uuid="x", requestId="r2")
    (run,) = replay.load(lines(tmp_path, *values, other, answer(usage, uuid="y", requestId="r2")))
    # Three lines of one answer; the same message id under another request is another call.
    assert len(run.calls) == 2


def test_lines_of_an_unknown_shape_are_reported(tmp_path: Path) -> None:
    good = answer({"input_tokens": 3, "output_tokens": 1})
    odd = [42, "x", ["y"], {"silly": 1}, answer(None) | {"message": "text"}, {"type": "user", "message": {"role": 1}}]
    options = Options()
    (run,) = load_runs(lines(tmp_path, *odd, good), options=options)
    assert len(run.calls) == 1
    assert [problem.kind for problem in options.problems] == ["skipped_record"] * 6
    assert [f"session.jsonl:{n}:" in p.message for n, p in enumerate(options.problems, 1)] == [True] * 6


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ({"input_tokens": "3", "output_tokens": 1}, r"message\.usage\.input_tokens is a string; a token count"),
        ({"input_tokens": -3, "output_tokens": 1}, r"message\.usage\.input_tokens = -3; a token count is at least 0"),
        ({"input_tokens": 3.5, "output_tokens": 1}, r"message\.usage\.input_tokens is 3\.5; .* whole number"),
        ({"input_tokens": True, "output_tokens": 1}, r"message\.usage\.input_tokens is a boolean"),
        ({"input_tokens": 2**31, "output_tokens": 1}, r".*below 2\^31"),
        ({"input_tokens": 3}, r"message\.usage\.output_tokens is missing; a missing count is never read as zero"),
        ({"output_tokens": 3}, r"message\.usage\.input_tokens is missing"),
        (None, r"message\.usage is missing: this answer has no token counts"),
    ],
)
def test_a_bad_count_names_file_line_field_and_rule(tmp_path: Path, usage: Any, message: str) -> None:
    path = lines(tmp_path, {"type": "summary", "leafUuid": "x"}, answer(usage))
    with pytest.raises(InputError, match=rf"session\.jsonl:2: {message}"):
        load_runs(path)
    options = Options(lenient=True)
    with pytest.raises(InputError, match="no model calls"):
        load_runs(path, options=options)
    assert [problem.kind for problem in options.problems] == ["skipped_record"]


def test_lines_that_belong_to_another_session_start_an_empty_history(tmp_path: Path) -> None:
    first = answer({"input_tokens": 1000, "output_tokens": 9})
    second = answer({"input_tokens": 50, "output_tokens": 9}, uuid="v", parentUuid="elsewhere", sessionId="other")
    second["message"] = second["message"] | {"id": "m2"}
    (run,) = replay.load(lines(tmp_path, first, second))
    assert [call.edits for call in run.calls] == [(), ()]


@pytest.mark.parametrize(
    "files", [[f"{MAIN}.jsonl", "resumed.jsonl"], ["rewound.jsonl"], ["sidechain.jsonl"]], ids=lambda files: files[0]
)
def test_damaged_files_raise_only_input_errors(files: list[str]) -> None:
    fuzz.check(importer("claude_code"), {name: (LOGS / name).read_bytes() for name in files}, rounds=25)


def test_the_newest_log_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert importer("claude_code").logs() == []
    made = []
    for age, place in enumerate((".claude", ".config/claude", "one", "two")):
        log = tmp_path / place / "projects" / "p" / f"{age}.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text("{}\n")
        os.utime(log, (1000 - age, 1000 - age))
        made.append(log)
    assert importer("claude_code").logs() == made[:2]
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", f"{tmp_path / 'two'}, {tmp_path / 'one'}")
    assert importer("claude_code").logs() == made[2:]


def test_real_sessions(shared: Path) -> None:
    for path, expected in replay.expected_files(shared, "claude_code"):
        replay.compare(replay.load(path), expected)


def test_hand_written_cases(shared: Path) -> None:
    for folder, expected in replay.expected_cases(shared, "claude_*"):
        paths = [folder / name for name in expected["read"]]
        stated = expected["errors"]
        if stated:
            with pytest.raises(InputError) as raised:
                load_runs(paths)
            line = stated[0].get("line")
            assert raised.value.path == str(paths[0]) and raised.value.line == line
        if not expected["calls"]:
            continue
        options = Options(lenient=bool(stated))
        runs = load_runs(paths, options=options)
        replay.compare(runs, expected)
        skipped = [warning for warning in expected["warnings"] if warning["kind"] == "skipped_line"]
        assert [p.kind for p in options.problems] == ["skipped_line" for w in skipped for _ in range(w["count"])]
        for warning in expected["warnings"]:
            if warning["kind"] == "cache_split_mismatch":
                assert any(f"call {warning['call']}: cache write" in note for run in runs for note in run.notes)
        for name, calls in expected.get("per_file_calls", {}).items():
            assert replay.totals(replay.load(folder / name))["calls"] == calls
        for thread in ("main", "subagent"):
            if f"totals_{thread}" in expected:
                chosen = [run for run in runs if (run.parent is None) == (thread == "main")]
                assert replay.totals(chosen) == expected[f"totals_{thread}"]
