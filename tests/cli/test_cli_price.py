"""``costmodel price``: what it shows, answers and writes, and which log it takes."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
from cli_logs import claude_session, run_document, write_runs, written

import costmodel_jax as cm
from costmodel_jax import specs
from costmodel_jax.tables import CALL_COLUMNS, RUN_COLUMNS

FAST = ("--policy", "keep-all", "--policy", "drop", "--cache", "paper-16", "--cache", "none")
PYTHON = (sys.executable, "-m", "costmodel_jax.cli")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs.jsonl", run_document("one", measured=True), run_document("two", 4))


def test_price_shows_a_person_what_there_is(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = written(capsys, "price", log, *FAST, "--w", "2")
    assert answer.code == 0 and answer.err == ""
    text = answer.out
    assert "2 runs, 10 calls (agent-run 2)" in text
    assert "cache hits: measured in 1 run, unknown in 1 run" in text
    assert "measured by the server (1 of 2 runs): 6 calls" in text
    assert "Totals for Qwen3.6-27B, w = 2" in text
    assert "cache paper-16: prompt+generation, block 16" in text and "cache none: no reuse" in text
    assert "* cheapest under this rule" in text
    assert "Runs under paper-16" in text and "\ntwo" in text
    assert "Processed again under keep-all and paper-16" in text
    assert max(map(len, text.splitlines())) <= 80


def test_price_answers_in_json_alone(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = written(
        capsys, "price", log, *FAST, "--arch", "qwen3-8b", "--arch", "Qwen3-4B", "--w", "1", "--w", "3", "--json"
    )
    assert answer.code == 0 and answer.err == ""
    document = answer.json
    assert document["configuration"]["paths"] == [str(log)]
    assert document["configuration"]["caches"]["paper-16"]["block"] == 16
    assert document["configuration"]["architectures"]["Qwen3-8B"]["pair"] == 589_824
    assert document["loaded"] | {"paths": None} == {
        "paths": None, "runs": 2, "calls": 10, "formats": {"agent-run": 2}, "notes": {}, "passed_over": [],
        "evidence": {
            "lengths": {"measured": 2}, "cached": {"measured": 1, "unknown": 1},
            "reasoning": {"billed": 1, "observed": 1},
        },
    }  # fmt: skip
    rows = document["rows"]
    assert list(rows[0]) == list(RUN_COLUMNS)
    assert len(rows) == 2 * (1 + 2 * 2) * 2 * 2
    run = cm.load_runs(log)[0]
    counts = cm.count(cm.pack([run]), cm.DropImmediately(), cm.cache_rules["paper-16"])
    (row,) = (
        row
        for row in rows
        if (row["run"], row["policy"], row["cache"]) == ("one", "drop", "paper-16")
        and (row["architecture"], row["w"]) == ("Qwen3-4B", 3.0)
    )
    assert row["pairs"] == counts.pairs.sum()
    assert row["flops"] == pytest.approx(cm.cost(counts, cm.architectures["Qwen3-4B"].prices(), 3.0)[0])
    kept = cm.count(cm.pack([run]), cm.KeepAll(), cm.cache_rules["paper-16"])
    ratio = row["flops"] / cm.cost(kept, cm.architectures["Qwen3-4B"].prices(), 3.0)[0]
    assert row["vs_keep_all"] == pytest.approx(ratio)
    totals = {(t["architecture"], t["w"], t["policy"], t["cache"]): t for t in document["totals"]}
    assert totals["Qwen3-4B", 3.0, "keep-all", "none"]["vs_keep_all"] == 1.0
    assert document["breaks"]["policy"] == "keep-all"
    assert document["payback"] == {"cache": "paper-16", "edits": []}


def test_files_hold_the_same_rows_as_json(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for extra, columns in (((), RUN_COLUMNS), (("--per-call",), CALL_COLUMNS)):
        csv, parquet = tmp_path / "rows.csv", tmp_path / "rows.parquet"
        answer = written(capsys, "price", log, *FAST, "--json", "--csv", csv, "--parquet", parquet, *extra)
        assert answer.code == 0
        rows = answer.json["rows"]
        assert f"wrote {len(rows)} rows to {csv}" in answer.err
        assert pyarrow.parquet.read_table(parquet).to_pylist() == rows
        table = pyarrow.csv.read_csv(csv)
        assert table.column_names == list(columns)
        assert table["pairs"].to_pylist() == [row["pairs"] for row in rows]
    assert sum(row["pairs"] for row in rows if row["policy"] == "drop") == sum(
        entry["pairs"] for entry in answer.json["totals"] if entry["policy"] == "drop"
    )


def test_a_log_on_standard_input_is_read_once(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    assert written(capsys, "price", "-", *FAST, "--json").json["loaded"]["runs"] == 2


def test_an_infeasible_policy_asked_for_is_exit_code_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_runs(tmp_path / "runs.jsonl", run_document("r", 12))
    policy = "compact:trigger=400,keep_tail=80,summary=30"
    answer = written(capsys, "price", log, "--policy", policy, "--cache", "paper")
    assert answer.code == 3
    text = " ".join(answer.out.split())
    assert "head, summary, memory, tail and reserve hold 410 tokens, the trigger is 400" in text
    assert "infeasible" in answer.out
    document = written(capsys, "price", log, "--policy", policy, "--cache", "paper", "--json")
    assert document.code == 3
    assert document.json["infeasible"][0]["floor"] == 410
    (row,) = document.json["rows"]
    assert row["status"] == "infeasible" and row["flops"] is None and row["calls"] is None
    explained = written(capsys, "explain", log, "--policy", policy)
    assert explained.code == 3 and "they hold 410 tokens, the trigger is 400" in explained.err


def test_an_infeasible_default_is_said_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_runs(tmp_path / "runs.jsonl", run_document("r", 12))
    monkeypatch.setattr(specs, "DEFAULT_POLICIES", ("keep-all", "compact:400,keep_tail=80,summary=30"))
    monkeypatch.setattr("costmodel_jax.cli.options.Axes.policies", _with_defaults)
    answer = written(capsys, "price", log, "--cache", "paper")
    assert answer.code == 0 and "Infeasible: compact:400" in answer.out


def _with_defaults(self: object) -> dict[str, cm.policies.Policy]:
    return {text: specs.parse_policy(text) for text in specs.DEFAULT_POLICIES}


def test_unknown_reasoning_is_a_word_and_never_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run_document("r")
    document["evidence"] = {"reasoning": "unknown"}
    log = write_runs(tmp_path / "runs.jsonl", document)
    answer = written(capsys, "price", log, *FAST)
    assert answer.code == 0
    assert "reasoning unknown" in answer.out and "Not computable for 1 run: drop" in answer.out
    rows = written(capsys, "price", log, *FAST, "--json").json["rows"]
    assert {row["flops"] for row in rows if row["policy"] == "drop"} == {None}
    assert all(row["flops"] > 0 for row in rows if row["policy"] == "keep-all")


def test_a_rule_with_a_lifetime_needs_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_runs(tmp_path / "runs.jsonl", run_document("timed", time=True), run_document("timeless"))
    answer = written(capsys, "price", log, "--policy", "drop", "--cache", "paper:ttl=5", "--json")
    rows = {row["run"]: row for row in answer.json["rows"]}
    assert answer.code == 0
    assert (rows["timed"]["status"], rows["timed"]["reused"]) == ("ok", 0)
    assert (rows["timeless"]["status"], rows["timeless"]["flops"]) == ("no times", None)
    assert (
        "Not computable for 1 of 2 runs"
        in written(capsys, "price", log, "--policy", "drop", "--cache", "paper:ttl=5").out
    )


def test_a_shrunken_dearer_prompt_is_flagged_and_the_measured_policy_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_runs(tmp_path / "runs.jsonl", run_document("r", 12))
    answer = written(
        capsys, "price", log, "--policy", "keep-latest:1", "--policy", "compact:600,keep_tail=60,summary=20"
    )
    text = " ".join(answer.out.split())
    assert "! fewer prompt tokens than keep-all and yet dearer" in text
    assert "When edits of compact:600,keep_tail=60,summary=20 pay back under paper-16" in text
    assert "paper: the same ratio in arXiv 2611.10982" in text and "1.861" in text
    assert max(map(len, answer.out.splitlines())) <= 80


def test_policies_that_cannot_matter_are_said_to_be_the_same(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = written(capsys, "price", log, "--cache", "paper", "--policy", "compact", "--policy", "as-recorded")
    text = " ".join(answer.out.split())
    assert "The same as keep-all: compact (no prompt passed the trigger of 100,000 tokens (longest 950))" in text
    assert "The same as keep-all: as-recorded (no run records an edit of its history)" in text
    assert "Never fired, so nothing to pay back: compact." in text


def test_intervals_over_tasks_depend_on_the_seed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_runs(tmp_path / "runs.jsonl", *(run_document(f"r{i}", 3 + i) for i in range(4)))
    line = ("price", log, "--policy", "drop", "--cache", "paper", "--resamples", "200")
    first, again, other = (
        written(capsys, *line, "--json", "--seed", seed).json["totals"][1]["interval"] for seed in ("1", "1", "2")
    )
    assert first == again != other
    assert first[0] < first[1]
    assert "95%" in written(capsys, *line).out


def test_a_dry_run_reads_and_computes_nothing(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("costmodel_jax.cli.price.load", lambda *_: pytest.fail("read"))
    answer = written(capsys, "price", log, *FAST, "--dry-run")
    assert answer.code == 0 and f"agent-run: {log}" in answer.out
    assert "under 2 policies and 2 cache rules" in " ".join(answer.out.split())
    assert written(capsys, "price", log, "--dry-run", "--json").json["policies"] == list(specs.DEFAULT_POLICIES)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_without_a_path_the_newest_session_is_found_and_priced(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / ".claude" / "projects" / "a-project"
    older = claude_session(folder / "11111111-1111-4111-8111-111111111111.jsonl", 2)
    newest = claude_session(folder / "22222222-2222-4222-8222-222222222222.jsonl", 3)
    os.utime(older, (1_000_000_000, 1_000_000_000))
    answer = written(capsys, "price", *FAST, "--json")
    assert answer.code == 0
    assert f"found 2 Claude Code session logs below {folder}" in answer.err
    assert f"reading the newest session: {newest}" in answer.err
    assert answer.json["loaded"]["paths"] == [str(newest)]
    assert answer.json["loaded"]["calls"] == 3
    assert written(capsys, "price", *FAST, "--json", "--quiet").err == ""


def test_a_session_is_read_with_its_helper_agents(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / ".claude" / "projects" / "a-project"
    main = claude_session(folder / "22222222-2222-4222-8222-222222222222.jsonl", 3)
    helper = claude_session(main.with_suffix("") / "subagents" / "agent-1.jsonl", 1)
    os.utime(main, (1_000_000_000, 1_000_000_000))
    answer = written(capsys, "price", "--dry-run", "--json")
    assert [file["path"] for file in answer.json["files"]] == [str(main), str(helper)]


def test_without_a_path_and_without_logs_there_is_advice(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = written(capsys, "price")
    assert answer.code == 2 and answer.out == ""
    assert "no logs found where Claude Code" in answer.err and "- to read standard input" in answer.err


def test_lenient_reading_counts_what_it_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_runs(tmp_path / "runs.jsonl", run_document("one"), {"id": "bad", "calls": []}, run_document("two", 4))
    strict = written(capsys, "price", log, *FAST)
    assert strict.code == 2 and "runs.jsonl:2: calls: a run needs at least one call" in strict.err
    folder = written(capsys, "price", tmp_path, *FAST)
    assert folder.code == 2 and "(--lenient reads the rest)" in folder.err
    lenient = written(capsys, "price", log, *FAST, "--lenient", "--json")
    assert lenient.code == 0
    assert lenient.json["loaded"]["runs"] == 2 and len(lenient.json["loaded"]["passed_over"]) == 1
    assert "passed over:" in lenient.err and "runs.jsonl:2" in lenient.err
    assert written(capsys, "price", log, *FAST, "--lenient", "--json", "--quiet").err == ""
