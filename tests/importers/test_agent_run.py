"""The canonical format: what is written is read back, every rule is checked, and every message names its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, load_runs
from costmodel_jax.schema import KINDS, SCHEMA, Run, dump_runs, json_schema

USER = {"kind": "user", "tokens": 300}
TWO_CALLS: dict[str, Any] = {
    "schema": SCHEMA,
    "id": "r1",
    "task": "boil",
    "model": "Qwen3-8B",
    "solved": True,
    "calls": [
        {
            "input": [{"kind": "system", "tokens": 1200}, USER],
            "output": [{"kind": "reasoning", "tokens": 210}, {"kind": "assistant", "tokens": 22}],
        },
        {
            "input": [{"kind": "tool", "tokens": 90, "name": "look", "error": False}],
            "output": [{"kind": "assistant", "tokens": 18}],
            "usage": {"prompt_tokens": 1622, "cached_tokens": 1500, "output_tokens": 18},
        },
    ],
}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    """A copy of the example with one place set."""
    made: dict[str, Any] = json.loads(json.dumps(TWO_CALLS))
    place: Any = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def text() -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=6)


SEGMENT = st.fixed_dictionaries(
    {"kind": st.sampled_from(KINDS), "tokens": st.integers(0, 2**31 - 1)},
    optional={"name": text(), "error": st.booleans(), "arguments_hash": text(), "result_hash": text()},
)
CALL = st.fixed_dictionaries(
    {},
    optional={
        "input": st.lists(SEGMENT, max_size=3),
        "output": st.lists(SEGMENT, max_size=3),
        "session": st.one_of(text(), st.integers(0, 3)),
        "usage": st.fixed_dictionaries({}, optional={"prompt_tokens": st.integers(0, 9), "output_tokens": st.just(4)}),
    },
)
RUNS = st.fixed_dictionaries(
    {"id": text(), "calls": st.lists(CALL, min_size=1, max_size=4)},
    optional={
        "task": text(),
        "solved": st.booleans(),
        "notes": st.lists(text(), max_size=2),
        "evidence": st.fixed_dictionaries({}, optional={"reasoning": st.sampled_from(["billed", "unknown"])}),
    },
)


@hypothesis.given(values=st.lists(RUNS, min_size=1, max_size=3))
def test_round_trip(values: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = [Run.from_dict(value) for value in values]
    assert [Run.from_dict(run.to_dict()) for run in runs] == runs
    path = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    dump_runs(runs, path)
    assert [Run.from_dict(json.loads(line)) for line in path.read_bytes().splitlines()] == runs
    for run in runs:
        assert _problems(json.loads(json.dumps(run.to_dict())), json_schema(), json_schema()) == []


def test_what_is_dumped_is_loaded(tmp_path: Path) -> None:
    run = Run.from_dict(TWO_CALLS)
    dump_runs([run], tmp_path / "a.jsonl")
    assert load_runs(tmp_path / "a.jsonl") == [run]
    (tmp_path / "b.json").write_text(json.dumps([TWO_CALLS], indent=2))
    assert load_runs(tmp_path / "b.json") == [run]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_dump_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    dump_runs([Run.from_dict(TWO_CALLS)], path)
    before = path.read_bytes()

    def broken() -> Any:
        yield Run.from_dict(TWO_CALLS)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        dump_runs(broken(), path)
    assert path.read_bytes() == before


def test_only_what_is_not_default_is_written() -> None:
    assert json.loads(json.dumps(Run.from_dict(TWO_CALLS).to_dict())) == TWO_CALLS


def _problems(value: Any, schema: Any, root: Any) -> list[str]:
    """What breaks a JSON Schema, for the key words the published one uses. Any other key word is a problem itself."""
    known = {"title", "description", "default", "$schema", "$defs", "$ref", "type", "properties", "required", "enum"}
    known |= {"additionalProperties", "items", "anyOf", "minimum", "exclusiveMaximum"}
    problems = [f"unknown key word {word}" for word in schema.keys() - known]
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        problems += _problems(value, root["$defs"][name], root)
    if "anyOf" in schema and all(_problems(value, option, root) for option in schema["anyOf"]):
        problems.append("fits no option")
    if "enum" in schema and value not in schema["enum"]:
        problems.append("not in the list")
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    wanted = schema.get("type")
    if wanted in types and not isinstance(value, types[wanted]):
        problems.append(f"no {wanted}")
    if wanted in ("integer", "number") and (isinstance(value, bool) or not isinstance(value, (int, float))):
        problems.append(f"no {wanted}")
    if wanted == "integer" and isinstance(value, float):
        problems.append("no integer")
    if wanted == "integer" and isinstance(value, int):
        problems += ["too small"] * (value < schema.get("minimum", value))
        problems += ["too large"] * (value >= schema.get("exclusiveMaximum", value + 1))
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        problems += [f"{name} is missing" for name in schema.get("required", []) if name not in value]
        if schema.get("additionalProperties") is False:
            problems += [f"{name} is unknown" for name in value.keys() - properties.keys()]
        for name in value.keys() & properties.keys():
            problems += _problems(value[name], properties[name], root)
    if isinstance(value, list) and "items" in schema:
        problems += [problem for part in value for problem in _problems(part, schema["items"], root)]
    return problems


def test_the_published_schema() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert _problems(TWO_CALLS, schema, schema) == []
    for bad in (
        changed("colour", value=1),
        changed("calls", value=3),
        changed("calls", 0, "input", 0, "kind", value="answer"),
        changed("calls", 0, "input", 0, "tokens", value=-1),
        changed("calls", 0, "input", 0, "tokens", value=2**31),
        changed("calls", 0, "input", 0, "tokens", value=1.5),
        changed("schema", value="agent-run/2"),
        {"id": "r"},
    ):
        assert _problems(bad, schema, schema)
        with pytest.raises(InputError):
            Run.from_dict(bad)


EDIT = {"start": 0, "stop": 1}
IDS = {"kind": "user", "tokens": 3, "ids": [1, 2]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (changed("calls", value=[]), "calls: a run needs at least one call"),
        (
            changed("calls", 1, "input", 0, "kind", value="answer"),
            r"calls\[1\].input\[0\].kind: unknown kind; use one of",
        ),
        (changed("calls", 1, "input", 0, "tokens", value=-5), r"calls\[1\].input\[0\].tokens = -5: .*>= 0"),
        (changed("calls", 1, "input", 0, "tokens", value="5"), r"calls\[1\].input\[0\].tokens: .*`int`.*`str`"),
        (changed("calls", 1, "usage", "prompt", value=5), r"calls\[1\].usage: unknown field `prompt`"),
        ({"calls": []}, "missing field `id`"),
        (
            changed("calls", 1, "usage", "cached_tokens", value=1700),
            r"calls\[1\].usage.cached_tokens = 1700 exceeds prompt_tokens = 1622 \(was cached counted outside",
        ),
        (
            changed("calls", 1, "usage", "cache_write_1h", value=200),
            r"calls\[1\].usage: cached_tokens \+ cache writes = 1700 exceeds prompt_tokens = 1622 \(were the writes",
        ),
        (
            changed("calls", 1, "usage", "reasoning_tokens", value=19),
            r"calls\[1\].usage.reasoning_tokens = 19 exceeds output_tokens = 18 \(was reasoning counted outside",
        ),
        (changed("calls", 0, "input", 1, value=IDS), r"calls\[0\].input\[1\].ids has 2 entries but tokens = 3"),
        (
            changed("calls", 1, "edits", value=[EDIT | {"segment": IDS}]),
            r"calls\[1\].edits\[0\].segment.ids has 2 entries but tokens = 3",
        ),
        (
            changed("calls", 0, "edits", value=[EDIT]),
            r"calls\[0\].edits\[0\] covers segments 0 to 1, but before this call its session holds segments 0 to 0",
        ),
        (changed("calls", 1, "edits", value=[{"start": 2, "stop": 5}]), "covers segments 2 to 5, .* segments 0 to 4"),
        (changed("calls", 1, "edits", value=[{"start": 2, "stop": 2}]), "covers segments 2 to 2"),
        (
            changed("calls", 1, value={"session": "b", "edits": [EDIT]}),
            r"calls\[1\].edits\[0\] covers segments 0 to 1, .* its session holds segments 4 to 4; an edit changes",
        ),
    ],
)
def test_every_rule_names_the_field(value: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        Run.from_dict(value)
    assert raised.value.path is None


def test_calls_are_in_order_of_time_within_a_session() -> None:
    def run(*times: float, session: str | None = None) -> Run:
        calls = [{"time": time} for time in times]
        if session is not None:
            calls[-1]["session"] = session  # type: ignore[assignment]
        return Run.from_dict({"id": "r", "calls": calls})

    with pytest.raises(
        InputError, match=r"calls\[2\].time = 3.0 is before the previous call's 5.0; order calls by time"
    ):
        run(4.0, 5.0, 3.0)
    assert run(4.0, 5.0, 3.0, session="next").calls[2].time == 3.0


def test_errors_of_files_have_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    bad = changed("calls", 1, "usage", "cached_tokens", value=18600)
    path.write_text("".join(json.dumps(value) + "\n" for value in (TWO_CALLS, TWO_CALLS | {"id": "r2"}, bad)))
    with pytest.raises(InputError, match=r"runs\.jsonl:3: calls\[1\]\.usage\.cached_tokens = 18600 exceeds"):
        load_runs(path)
    options = Options(lenient=True)
    assert [run.id for run in load_runs(path, options=options)] == ["r1", "r2"]
    assert [problem.kind for problem in options.problems] == ["skipped_run"]


@pytest.mark.parametrize("field", ["schema", "kind", "cause"])
def test_messages_never_quote_text_of_the_file(field: str) -> None:
    segment = {"kind": "user", "tokens": 1}
    run: dict[str, Any] = {"id": "r", "calls": [{"input": [segment]}, {"edits": [{"start": 0, "stop": 1}]}]}
    {"schema": run, "kind": segment, "cause": run["calls"][1]["edits"][0]}[field][field] = "never-print-this"
    with pytest.raises(InputError, match=f"{field}: unknown ") as raised:
        Run.from_dict(run)
    assert "never-print-this" not in str(raised.value)


def test_segments_are_numbered_in_recorded_order() -> None:
    run = Run.from_dict(TWO_CALLS)
    kinds = [segment.kind for segment in run.segments]
    assert kinds == ["system", "user", "reasoning", "assistant", "tool", "assistant"]
