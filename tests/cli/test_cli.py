"""The command line as a whole: help, exit codes, streams, and what it never prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_logs import SECRET, claude_session, run_document, write_runs, written

import costmodel_jax as cm
from costmodel_jax import cli, specs

FAST = ("--policy", "keep-all", "--policy", "drop", "--cache", "paper-16", "--cache", "none")
PYTHON = (sys.executable, "-m", "costmodel_jax.cli")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs.jsonl", run_document("one", measured=True), run_document("two", 4))


def test_without_arguments_the_commands_are_listed_and_it_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    bare, asked = written(capsys), written(capsys, "--help")
    assert (bare.code, asked.code) == (2, 0)
    assert bare.out == asked.out
    for name in cli.COMMANDS:
        assert f"\n  {name} " in asked.out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_has_an_example_and_fits_eighty_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = written(capsys, name, "--help")
    assert answer.code == 0
    assert f"  costmodel {name}" in answer.out and "Example" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    assert answer.err == ""


def test_price_help_names_every_policy_and_cache_rule(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, "price", "--help").out
    for name in (*specs.POLICIES, *cm.cache_rules):
        assert name in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    answer = written(capsys, "--version")
    assert answer.code == 0 and answer.out.startswith("costmodel ") and answer.out.strip()[-1].isdigit()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prise",), "Did you mean price?"),
        (("price", "--bogus"), "--bogus"),
        (("price", "--runs", "few"), "--runs"),
        (("price", "--policy"), "--policy"),
        (("price", "x.jsonl", "--policy", "keep-latst"), "did you mean keep-latest?"),
        (("price", "x.jsonl", "--cache", "vlm"), "did you mean vllm?"),
        (("price", "x.jsonl", "--arch", "Qwen9"), "Presets:"),
        (("price", "x.jsonl", "--extension", "magic"), "windowed, state, head, absorbed"),
        (("price", "x.jsonl", "--w", "0.5"), "--w 0.5"),
        (("price", "x.jsonl", "--w", "inf"), "--w inf"),
        (("price", "x.jsonl", "--runs", "-1"), "--runs -1"),
        (("price", "x.jsonl", "--per-call"), "--json, --csv and --parquet"),
        (("price", "x.jsonl"), "x.jsonl: no such file or folder"),
        (("price", "x.jsonl", "--tokenizer", "nowhere"), "nowhere: no tokenizer there"),
        (("price", "x.jsonl", "--format", "morse"), "known formats: auto"),
        (("explain", "x.jsonl", "--policy", "?"), "policy '?'"),
        (("breakeven",), "--replaced"),
        (("breakeven", "--replaced", "many"), "--replaced 'many'"),
        (("breakeven", "--replaced", "5", "--linear", "1"), "--linear and --pair go together"),
        (("breakeven", "--replaced", "5", "--per-call", "1", "2"), "--per-call"),
        (("breakeven", "x.jsonl", "--policy", "drop"), "edits no history"),
        (("breakeven", "x.jsonl", "--cache", "none"), "found again"),
        (("validate",), "name the files"),
        (("import", "x.jsonl", "--json"), "--out"),
        (("arch", "Qwen9"), "Presets:"),
        (("plot", "--figure", "pie"), "waterfall"),
    ],
)
def test_wrong_command_lines_say_what_is_wrong(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    answer = written(capsys, *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert said in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe binary", b"just words\n", b"[[[[", b'{"schema": "agent-run/1"}']
)
def test_what_is_no_log_is_refused_without_a_traceback(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    for command in ("price", "explain", "validate", "import"):
        answer = written(capsys, command, path)
        assert answer.code == 2, command
        assert "file.json" in answer.err + answer.out and "Traceback" not in answer.err


@pytest.mark.parametrize("command", [("price", *FAST), ("explain",), ("validate",), ("import",)])
def test_the_text_of_a_log_is_never_printed(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = claude_session(tmp_path / "session.jsonl")
    answer = written(capsys, command[0], log, *command[1:])
    assert answer.code == 0
    assert SECRET not in answer.out + answer.err
    with log.open("a") as stream:
        stream.write(json.dumps({"type": "assistant", "message": {"usage": SECRET, "content": SECRET}}) + "\n")
        stream.write(f'{{"broken": "{SECRET}"\n')
    answer = written(capsys, command[0], log, *command[1:])
    assert answer.code == 2
    assert SECRET not in answer.out + answer.err


def test_a_place_that_cannot_be_written_is_an_error(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = written(capsys, "price", log, *FAST, "--csv", tmp_path / "missing" / "rows.csv")
    assert answer.code == 2 and "rows.csv: cannot be written" in answer.err


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (OSError("disk full"), 2), (cm.InfeasibleError("no"), 3)]
)
def test_interruptions_have_their_codes(
    raised: BaseException, code: int, log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr("costmodel_jax.cli.price.load", fail)
    answer = written(capsys, "price", log)
    assert answer.code == code and answer.err.startswith("costmodel: ")


def test_as_a_process_stdout_is_json_and_the_code_is_right(log: Path) -> None:
    finished = subprocess.run(
        [*PYTHON, "price", "-", "--policy", "drop", "--cache", "none", "--json"],
        input=log.read_bytes(), capture_output=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0 and finished.stderr == b""
    assert json.loads(finished.stdout)["command"] == "price"


def test_as_a_process_a_closed_pipe_is_no_error() -> None:
    process = subprocess.Popen([*PYTHON, "validate", "--schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (0, b"")


def test_as_a_process_bad_input_is_exit_code_two_and_one_line(tmp_path: Path) -> None:
    finished = subprocess.run(
        [*PYTHON, "price", str(tmp_path / "none.jsonl")], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert finished.returncode == 2 and finished.stdout == ""
    assert finished.stderr == f"costmodel: {tmp_path / 'none.jsonl'}: no such file or folder\n"
