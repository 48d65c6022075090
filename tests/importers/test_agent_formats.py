"""What the trajectory formats of agent frameworks have in common: detection, totals, refusals, damage, privacy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fuzz
import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Importer, Options, Source, detect, importer, importers, load_runs
from costmodel_jax.schema import Run

LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs"
FORMATS = (
    "atif",
    "swe_agent",
    "mini_swe_agent",
    "openhands",
    "inspect_ai",
    "otel_gen_ai",
    "tau_bench",
    "react_text",
)
FOLDERS = {name: name for name in FORMATS} | {"react_text": "hotpotqa_react"}
WITHOUT_USAGE = (
    "atif/export/traces.json",
    "swe_agent/cut.traj",
    "mini_swe_agent/bare.traj.json",
    "tau_bench/results.json",
    "react_text/thoughts.txt",
)


def words(text: str) -> int:
    return len(text.split())


def user_segments(runs: list[Run]) -> int:
    """User messages of all threads, those counted in a note as input of no call included."""
    return sum(segment.kind == "user" for run in runs for segment in run.segments) + replay.unanswered(runs)


def fixtures() -> list[tuple[str, Path]]:
    return [(name, path) for name in FORMATS for path in sorted((LOGS / name).rglob("*")) if path.is_file()]


@pytest.mark.parametrize(("name", "path"), fixtures(), ids=lambda value: getattr(value, "name", value))
def test_only_its_own_format_claims_a_file(name: str, path: Path) -> None:
    claims = [candidate.name for candidate in importers() if candidate.detect(Source(path))]
    assert claims == [name]


@pytest.mark.parametrize("data", [b"", b"\n \n", b"[]", b"{}", b"3", b'"text"', b"[[[", b"\x00\xff\xfe", b"PK\x03\x04"])
def test_nothing_is_claimed_that_is_no_log(data: bytes) -> None:
    assert [name for name in FORMATS if importer(name).detect(Source("some.json", data))] == []


@pytest.mark.parametrize(("name", "path"), fixtures(), ids=lambda value: getattr(value, "name", value))
def test_every_imported_run_replays_to_what_was_measured(name: str, path: Path) -> None:
    runs = load_runs(path, options=Options(count_tokens=words))
    for run in runs:
        assert run.format == name
        replay.check(run)


@pytest.mark.parametrize("path", WITHOUT_USAGE)
def test_a_log_without_usage_is_refused_with_advice(path: str) -> None:
    with pytest.raises(InputError, match=r"no token usage; name a tokenizer .*--tokenizer") as caught:
        load_runs(LOGS / path)
    assert caught.value.path == str(LOGS / path)
    options = Options(lenient=True)
    with pytest.raises(InputError, match="no model calls"):
        load_runs(LOGS / path, options=options)
    assert options.problems


@pytest.mark.parametrize("path", WITHOUT_USAGE)
def test_lengths_without_usage_are_modelled(path: str) -> None:
    for run in load_runs(LOGS / path, options=Options(count_tokens=words)):
        assert run.evidence.lengths == "modelled"
        assert run.evidence.cached == "unknown"
        assert all(call.usage is None for call in run.calls)


def counting(format: Importer) -> Importer:
    """The same format, always with a tokenizer."""

    def read(sources: Sequence[Source], options: Options) -> list[Run]:
        return format.read(sources, dataclasses.replace(options, count_tokens=words))

    return dataclasses.replace(format, read=read)


@pytest.mark.parametrize("name", FORMATS[:-1])
def test_damage_of_any_kind_raises_only_input_errors(name: str) -> None:
    fuzz.check(counting(importer(name)), fuzz.files_below(LOGS / name), rounds=25, seed=len(name))


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_of_a_log_is_kept(name: str) -> None:
    for path in sorted((LOGS / name).rglob("*")):
        if path.is_file():
            runs = load_runs(path, options=Options(count_tokens=words))
            kept = json.dumps([run.to_dict() for run in runs])
            for text in texts(path):
                assert text not in kept


def texts(path: Path) -> list[str]:
    """Everything in a fixture that reads like a sentence."""
    if path.suffix == ".txt":
        return [line for line in path.read_text().splitlines() if line.count(" ") > 3]
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    found: list[str] = []
    pending: list[Any] = [json.loads(line) for line in lines]
    while pending:
        value = pending.pop()
        if isinstance(value, (dict, list)):
            pending.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, str) and value.count(" ") > 1:
            found.append(value)
    return found


def expected(shared: Path) -> dict[str, Any]:
    entries = json.loads((shared / "logs" / "expected.json").read_text())["files"]
    folders = tuple(f"{folder}/" for folder in FOLDERS.values())
    return {path: entry for path, entry in entries.items() if path.startswith(folders)}


def test_recorded_logs_have_the_expected_totals(shared: Path) -> None:
    entries = expected(shared)
    assert len(entries) == 33
    for path, entry in entries.items():
        runs = load_runs(shared / "logs" / path, options=Options(count_tokens=words))
        for run in runs:
            replay.check(run)
        totals = replay.totals(runs)
        assert totals["calls"] == entry["model_calls"], path
        for field in replay.FIELDS:
            if field in entry:
                assert totals[field] == entry[field], (path, field)
        if entry.get("user_turns") is not None:
            assert user_segments(runs) == entry["user_turns"], path
        assert replay.compactions(runs) == entry.get("compactions", 0), path
        for run, part in zip(runs, entry.get("runs", ()), strict="runs" in entry):
            assert len(run.calls) == part["model_calls"], path


def test_recorded_logs_are_detected_and_nothing_else_is(shared: Path) -> None:
    names = {folder: name for name, folder in FOLDERS.items()} | {"cases/openhands": "openhands", "cases/otel": ""}
    for path in sorted((shared / "logs").rglob("*")):
        where = path.relative_to(shared / "logs")
        if path.suffix == ".md" or path.name == "expected.json" or not path.is_file():
            continue
        wanted = names.get(where.parts[0])
        if where.parts[0] == "cases":
            wanted = next((name for name in FORMATS if where.parts[1].startswith(name)), None)
        claims = [name for name in FORMATS if importer(name).detect(Source(path))]
        assert claims == ([] if wanted is None else [wanted]), where
        if wanted is not None:
            found = detect(Source(path))
            assert found is not None and found.name == wanted


@pytest.mark.parametrize("case", ["openhands_duplicated_usage", "otel_gen_ai"])
def test_recorded_cases_agree_call_by_call(shared: Path, case: str) -> None:
    folder = shared / "logs" / "cases" / case
    entry = json.loads((folder / "expected.json").read_text())
    runs = load_runs([folder / name for name in entry["read"]])
    assert [call for run in runs for call in replay.per_call(run)] == entry["calls"]
    assert replay.totals(runs) == entry["totals"]
    assert replay.compactions(runs) == entry["compactions"]
    if entry["user_turns"] is not None:
        assert user_segments(runs) == entry["user_turns"]
    for run in runs:
        replay.check(run)
