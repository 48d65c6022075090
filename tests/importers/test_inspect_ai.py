"""Inspect AI: exclusive counters, threads, the message pool, and archives that are not what they should be."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers import Options, Source, importer, inspect_archive, load_runs
from costmodel_jax.schema import Run

SAMPLE = Path(__file__).resolve().parents[1] / "golden" / "logs" / "inspect_ai" / "sample.json"


def archive(members: dict[str, str], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", compression) as made:
        for name, text in members.items():
            made.writestr(name, text)
    return held.getvalue()


def read(data: bytes, name: str = "log.eval", **options: Any) -> list[Run]:
    return importer("inspect_ai").read([Source(name, data)], Options(**options))


def sample(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(SAMPLE.read_text()) | changes
    return value


def test_prompt_is_the_sum_of_parts_that_exclude_each_other() -> None:
    main = load_runs(SAMPLE)[0]
    assert replay.per_call(main) == [
        {
            "prompt_tokens": 70,
            "cached_tokens": 40,
            "cache_write_5m": 10,
            "cache_write_1h": 0,
            "output_tokens": 25,
            "reasoning_tokens": 12,
        },
        {
            "prompt_tokens": 105,
            "cached_tokens": 90,
            "cache_write_5m": 0,
            "cache_write_1h": 0,
            "output_tokens": 3,
            "reasoning_tokens": 0,
        },
    ]
    assert main.evidence.reasoning == "billed"


def test_helpers_graders_and_warm_up_calls_are_threads_of_their_own() -> None:
    runs = {run.id: run for run in load_runs(SAMPLE)}
    assert {name: (len(run.calls), run.parent) for name, run in runs.items()} == {
        "sample": (2, None),
        "sample/helper": (1, "sample"),
        "sample/scorers": (1, "sample"),
        "sample/warm-up-w0": (1, "sample"),
    }
    assert runs["sample"].solved is True
    assert runs["sample/helper"].solved is None
    assert replay.totals(list(runs.values()))["prompt_tokens"] == 70 + 105 + 9 + 11 + 50


def test_the_message_pool_and_attachments_are_put_back() -> None:
    main = load_runs(SAMPLE)[0]
    assert [segment.kind for segment in main.calls[0].input] == ["system", "user"]
    system, user = main.calls[0].input
    assert system.tokens > user.tokens  # the attachment is longer than the question
    assert [(s.kind, s.name) for s in main.calls[0].output] == [
        ("reasoning", None),
        ("assistant", None),
        ("assistant", "count"),
    ]
    assert [(s.kind, s.name, s.tokens) for s in main.calls[1].input] == [("tool", "count", 10)]


def test_an_archive_reads_like_its_samples() -> None:
    text = json.dumps(sample())
    runs = read(archive({"header.json": "{}", "samples/eggs_epoch_1.json": text, "summaries.json": "[]"}))
    assert [run.id for run in runs][:2] == ["log/eggs_epoch_1", "log/eggs_epoch_1/helper"]
    assert replay.totals(runs) == replay.totals(load_runs(SAMPLE))
    assert runs[1].parent == "log/eggs_epoch_1"
    stored = read(archive({"samples/eggs_epoch_1.json": text}, zipfile.ZIP_STORED))
    assert replay.totals(stored) == replay.totals(runs)


def test_a_json_log_holds_its_samples_in_a_list() -> None:
    log = {"version": 2, "status": "success", "eval": {"task": "eggs"}, "samples": [sample()]}
    runs = read(json.dumps(log).encode(), "log.json")
    assert runs[0].id == "log/eggs_epoch_1"
    assert len(runs) == 4


def test_a_sample_that_two_files_hold_counts_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(SAMPLE.read_bytes())
    assert len(load_runs([SAMPLE, copy])) == 4


@pytest.mark.parametrize(
    ("usage", "prompt", "cached", "output"),
    [
        ({"input_tokens": 66, "output_tokens": 3, "total_tokens": 69}, 66, 0, 3),
        ({"input_tokens": 66, "output_tokens": 3}, 66, None, 3),
        ({"input_tokens": 66, "input_tokens_cache_read": 40, "output_tokens": 3, "total_tokens": 69}, 66, 40, 3),
        ({"input_tokens": 66, "output_tokens": 3, "reasoning_tokens": 9, "total_tokens": 78}, 66, 0, 12),
    ],
)
def test_the_total_tells_what_a_missing_part_was(
    usage: dict[str, int], prompt: int, cached: int | None, output: int
) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "yes"}}], "usage": usage}
    event = {"event": "model", "model": "m", "input": [{"role": "user", "content": "hi"}], "output": answer}
    (run,) = read(json.dumps({"events": [event]}).encode(), "log.json")
    (call,) = replay.per_call(run)
    assert (call["prompt_tokens"], call["cached_tokens"], call["output_tokens"]) == (prompt, cached, output)
    stated = "input_tokens_cache_read" in usage
    assert run.evidence.cached == ("measured" if stated else "unknown")


def test_a_reference_outside_the_pool_is_refused() -> None:
    with pytest.raises(InputError, match=r"input_refs\[0\] must be a range of the message pool, which has 1 messages"):
        read(json.dumps(sample(message_pool=[{"role": "user", "content": "hi"}])).encode(), "log.json")


def test_an_event_without_usage_among_others_is_refused() -> None:
    value = sample()
    del next(event for event in value["events"] if event["uuid"] == "e1")["output"]["usage"]
    with pytest.raises(InputError, match=r"output\.usage is missing, other model events have it"):
        read(json.dumps(value).encode(), "log.json")
    assert len(read(json.dumps(value).encode(), "log.json", lenient=True)[0].calls) == 1


def test_damaged_and_foreign_archives_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = archive({"samples/a.json": json.dumps(sample()) + " " * 2000})
    with pytest.raises(InputError, match="cut off or damaged"):
        read(good[:-30])
    with pytest.raises(InputError, match="cut off or damaged"):
        read(good[:60] + b"\x00\xff" * 8 + good[76:])
    zstd = good.replace(b"\x08\x00", b"\x5d\x00")  # the method's number, in both headers
    with pytest.raises(InputError, match=r"compressed with zstd, .* convert the log"):
        read(zstd)
    with pytest.raises(InputError, match="outside the archive"):
        read(archive({"../samples/a.json": "{}"}))
    with pytest.raises(InputError, match="not valid JSON"):
        read(archive({"samples/a.json": "{"}))
    monkeypatch.setattr(inspect_archive, "MEMBER_LIMIT", 1000)
    with pytest.raises(InputError, match="larger than 1000 bytes"):
        read(good)


def test_archives_with_wrong_bytes_are_read_or_refused() -> None:
    good = archive({"samples/a.json": json.dumps(sample()), "header.json": "{}"})
    rng = random.Random(5)
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(rng.choice((1, 4))):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        for run in read(bytes(bad[: rng.choice((len(bad), rng.randrange(len(bad))))]), lenient=True):
            replay.check(run)


def test_only_the_samples_of_an_archive_are_read() -> None:
    members = {"samples/eggs_epoch_1.json": json.dumps(sample()), "logs/huge.json": "{", "header.json": "{"}
    assert len(read(archive(members))) == 4


def test_branches_and_calls_that_reached_no_model(shared: Path) -> None:
    runs = {run.id: run for run in load_runs(shared / "logs" / "inspect_ai" / "events-branch-warmup.json")}
    assert {name: run.parent for name, run in runs.items()} == {
        "events-branch-warmup": None,
        "events-branch-warmup/br1": "events-branch-warmup",
        "events-branch-warmup/warm-up-w1": "events-branch-warmup/br1",
    }
    assert len(runs["events-branch-warmup"].calls) == 2
