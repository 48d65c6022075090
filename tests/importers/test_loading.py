"""Loading: folders, standard input, what is not a log, damage of every kind, and files larger than memory should be."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import FORMATS, Options, Source, detect, importer, importers, load_runs

LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs"
RUN = {"schema": "agent-run/1", "id": "r", "calls": [{"input": [{"kind": "user", "tokens": 3}]}]}
CLAUDE = LOGS / "claude_code" / "rewound.jsonl"
CODEX = LOGS / "codex" / "rollout-plain.jsonl"


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def refused(path: Path, **options: Any) -> InputError:
    with pytest.raises(InputError) as raised:
        load_runs(path, options=Options(**options))
    return raised.value


def test_every_format_says_how_it_counts() -> None:
    assert [found.name for found in importers()] == list(FORMATS)
    for found in importers():
        assert all((found.title, found.convention, found.key, found.reuse, found.reasoning))
        assert found.logs() is not None


def test_fixtures_are_of_the_format_of_their_folder_and_of_no_other() -> None:
    files = [
        path for folder in LOGS.iterdir() if folder.name in FORMATS for path in folder.rglob("*") if path.is_file()
    ]
    assert len(files) > 30
    for path in files:
        source = Source(path)
        names = [found.name for found in importers() if found.detect(source)]
        assert names == [path.relative_to(LOGS).parts[0]], path


def test_recordings_are_of_one_format_each(shared: Path) -> None:
    logs = shared / "logs"
    cases = {"claude": "claude_code", "codex": "codex", "deepseek": "openai", "openai": "openai"}
    cases |= {"anthropic": "anthropic", "openhands": "openhands", "otel": "otel_gen_ai"}
    folders = {"hotpotqa_react": "react_text"}
    for path in sorted(logs.rglob("*")):
        place = path.relative_to(logs)
        if not path.is_file() or len(place.parts) < 2 or path.name == "expected.json" or not path.stat().st_size:
            continue
        tool = place.parts[0] if place.parts[0] != "cases" else place.parts[1].split("_")[0]
        expected = cases[tool] if place.parts[0] == "cases" else folders.get(tool, tool)
        source = Source(path)
        assert [found.name for found in importers() if found.detect(source)] == [expected], place


def test_a_folder_of_several_formats(tmp_path: Path) -> None:
    write(tmp_path / "a" / "session.jsonl", CLAUDE.read_bytes())
    write(tmp_path / "b" / "rollout.jsonl", CODEX.read_bytes())
    write(tmp_path / "c.json", json.dumps(RUN))
    write(tmp_path / "notes.txt", "nothing to see here\n")
    write(tmp_path / "table.csv", "not looked at")
    write(tmp_path / "node_modules" / "x.json", json.dumps(RUN))
    options = Options()
    runs = load_runs(tmp_path, options=options)
    assert [run.format for run in runs] == ["claude_code", "codex", None]
    assert [(p.kind, "notes.txt: not a log of a known format" in p.message) for p in options.problems] == [
        ("skipped_file", True)
    ]


def test_a_damaged_file_in_a_folder_is_still_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", CLAUDE.read_bytes() + b'{"cut": ')
    write(tmp_path / "b.jsonl", CODEX.read_bytes())
    error = refused(tmp_path)
    assert error.path == str(tmp_path / "a.jsonl") and error.line == len(CLAUDE.read_bytes().splitlines()) + 1
    options = Options(lenient=True)
    assert len(load_runs(tmp_path, options=options)) == 2
    assert [problem.kind for problem in options.problems] == ["skipped_line"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(CODEX.read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin())
    (run,) = load_runs("-")
    assert run.format == "codex" and len(run.calls) == 5


def test_standard_input_names_itself_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(CLAUDE.read_bytes() + b"{\n")

    monkeypatch.setattr(sys, "stdin", Stdin())
    with pytest.raises(InputError, match=r"^<stdin>:\d+: not valid JSON"):
        load_runs("-")


@pytest.mark.parametrize("data", [b"", b"\n \n\t\n", b"\xef\xbb\xbf\n"])
def test_an_empty_file(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "x.jsonl", data)
    assert refused(path).message == "the file is empty: no model calls"
    assert "no model calls found" in refused(path, lenient=True).message


def test_an_unknown_file_names_the_formats(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "x.json", '{"hello": "secret words"}'))
    assert "not a log of a known format" in error.message and "claude_code" in error.message
    assert "secret" not in str(error)


def test_a_missing_file_and_an_unknown_format(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere.json").message == "no such file or folder"
    with pytest.raises(InputError, match="unknown format 'claud'; known formats: auto, agent-run, "):
        load_runs(write(tmp_path / "x.json", "{}"), format="claud")


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.json", json.dumps(RUN))

    def closed(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", closed)
    assert refused(path).message == "cannot be read: Permission denied"


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    assert len(load_runs(write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + CLAUDE.read_bytes()))) == 1
    document = b"\xef\xbb\xbf" + (LOGS / "gemini_cli" / "session.json").read_bytes()
    assert len(load_runs(write(tmp_path / "b.json", document))) == 1


def test_windows_line_ends(tmp_path: Path) -> None:
    data = CLAUDE.read_bytes().replace(b"\n", b"\r\n\r\n")
    assert load_runs(write(tmp_path / "session.jsonl", data)) == load_runs(CLAUDE)


@pytest.mark.parametrize(
    "data",
    [
        random.Random(1).randbytes(5000),
        b"\0" * 5000,
        b"\xff\xfe{\x00}\x00" * 50,
        b'{"type": "user", "text": "\xff\xfe"}\n' * 3,
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"{",
        b'{"schema": "agent-run/1", "id": "r", "calls": [',
        b"nul",
        b'"text"',
        b"1e999",
        b"123456789" * 1000,
        b"[]",
        b"[[], [[]], {}]",
        b"PK\x03\x04 no archive",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_log_at_all(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "x.json", data)
    refused(path)
    refused(path, lenient=True)
    for name in FORMATS:
        for lenient in (False, True):
            with pytest.raises(InputError):
                load_runs(path, format=name, options=Options(lenient=lenient))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("inspect_ai", "react_text")])
def test_deep_nesting_inside_a_log(tmp_path: Path, name: str) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    claude = json.loads(CLAUDE.read_text().splitlines()[0])
    for value in (
        RUN | {"calls": deep},
        claude | {"message": {"content": deep}},
        {"type": "response_item", "payload": {"type": "function_call", "arguments": deep}},
        {"request": {"messages": deep, "tools": deep}, "response": {"choices": deep, "type": "message", "usage": {}}},
        {"sessionId": "s", "projectHash": "h", "messages": [{"id": "m", "type": "user", "content": deep}]},
        {"id": "prt_1", "sessionID": "s", "messageID": "m", "type": "tool", "state": {"input": deep, "output": deep}},
    ):
        path = write(tmp_path / "x.jsonl", json.dumps(value) + "\n")
        for lenient in (False, True):
            with pytest.raises(InputError):
                load_runs(path, format=name, options=Options(lenient=lenient))


def test_lenient_reading_counts_what_it_passes_over(tmp_path: Path) -> None:
    lines = CLAUDE.read_bytes().splitlines()
    damaged = [lines[0], b"{", *lines[1:3], b"\xff", b"[" * 9999, *lines[3:]]
    path = write(tmp_path / "x.jsonl", b"\n".join(damaged))
    assert refused(path).line == 2
    options = Options(lenient=True)
    (run,) = load_runs(path, options=options)
    assert len(run.calls) == 4
    assert [problem.kind for problem in options.problems] == ["skipped_line"] * 3
    assert [f"x.jsonl:{line}: " in p.message for line, p in zip((2, 5, 6), options.problems, strict=True)] == [True] * 3


def test_ids_are_made_unique(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.json", json.dumps(RUN))
    assert [run.id for run in load_runs(tmp_path)] == ["r", "r#2", "r#3"]


def test_a_file_may_be_named_as_another_format(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model calls"):
        load_runs(CODEX, format="claude_code")
    assert len(load_runs(CODEX, format="codex")) == 1
    assert importer("codex").name == "codex"


def test_detection_looks_past_broken_first_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", b'{"type": "user", "sess\n' + CLAUDE.read_bytes())
    found = detect(Source(path))
    assert found is not None and found.name == "claude_code"
    assert refused(path).line == 1


def test_a_document_over_many_lines_is_not_taken_for_its_last_line(tmp_path: Path) -> None:
    value = RUN | {"notes": ["one", "two"]}
    path = write(tmp_path / "x.json", json.dumps(value, indent=1))
    assert Source(path).first == value
    assert [run.id for run in replay.load(path)] == ["r"]


@pytest.mark.slow
def test_a_large_log_is_streamed_and_its_last_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    question = {"type": "user", "sessionId": "s", "parentUuid": None, "message": {"content": "q" * 1500}}
    message: dict[str, Any] = {"role": "assistant", "model": "x", "content": [{"type": "text", "text": "w" * 2200}]}
    answer = {"type": "assistant", "sessionId": "s", "parentUuid": None, "message": message}
    calls = 0
    with path.open("w") as log:
        while log.tell() < 200_000_000:
            usage = {"input_tokens": 5, "cache_read_input_tokens": 1000 + 900 * (calls % 400), "output_tokens": 550}
            message |= {"id": f"m{calls}", "usage": usage}
            log.write(json.dumps(question | {"uuid": f"q{calls}"}) + "\n")
            log.write(json.dumps(answer | {"uuid": f"a{calls}", "requestId": f"r{calls}"}) + "\n")
            calls += 1
        log.write('{"type": "user", "cut')
    # In a process of its own: peak memory is the process's, and the type checks of these tests cost much of both.
    script = """
import resource, sys
from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, load_runs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
options = Options(lenient=True)
(run,) = load_runs(sys.argv[1], options=options)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
try:
    load_runs(sys.argv[1])
    line = None
except InputError as error:
    line = error.line
print(len(run.calls), len(options.problems), line, grown)
"""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=600)
    found, skipped, line, grown = (int(word) for word in done.stdout.split())
    assert (found, skipped, line) == (calls, 1, 2 * calls + 1)
    assert grown * 1024 < path.stat().st_size


@pytest.mark.parametrize(
    ("text", "line"), [('{"a": [1, 2', 1), ('{"a": [1,\n 2', 2), ('[\n {"a": 1},\n {"b": \n', 3), ('{"a": 1,,}', 1)]
)
def test_a_broken_document_of_no_known_format_says_where_it_breaks(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not valid JSON") as raised:
        load_runs(path)
    assert raised.value.line == line
