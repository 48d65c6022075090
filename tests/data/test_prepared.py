"""Prepared folders: written whole or not at all, described by a manifest, joined with what the actor generated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import example, reasons, same

from costmodel_jax import CostModelError, InputError
from remory_jax.data import (
    Buckets,
    ExampleList,
    Prepared,
    PreparedData,
    Problems,
    Template,
    generate_missing,
    write_prepared,
)
from remory_jax.data.examples import Example, as_ids, same_example
from remory_jax.data.generations import GENERATIONS
from remory_jax.training.experiment import ObjectiveConfig, Request

SMALL = Buckets(history=(8,), prefix=2, summary=4, response=6)


def asked(number: int, boundaries: int = 1) -> Example:
    """An example that still wants summaries."""
    import msgspec

    return msgspec.structs.replace(example(number, boundaries=boundaries), summaries=())


def request(batch: int) -> Request:
    return Request(batch=batch, seed=0, template=Template(), objective=ObjectiveConfig())


def written(folder: Path, examples: Sequence[Example], **more: Any) -> Prepared:
    write_prepared(folder, iter(examples), problems=Problems(), **more)
    return Prepared(folder)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    examples = [example(i, history=3 + i % 4, boundaries=1 + i % 2) for i in range(9)]
    problems = Problems()
    problems.report("too_short", "3 tokens")
    manifest = write_prepared(
        tmp_path / "data",
        iter(examples),
        problems=problems,
        rendering={"template_sha256": "abc"},
        settings={"response": 6},
        sources=[{"name": "x.jsonl"}],
        shard=4,
    )
    prepared = Prepared(tmp_path / "data")
    assert len(prepared) == 9
    assert all(same_example(prepared[i], examples[i]) for i in (8, 0, 4))
    expected = ExampleList(examples).lengths
    for name in ("ids", "prefix", "histories", "summaries", "response", "judged", "asked", "draw"):
        np.testing.assert_array_equal(getattr(prepared.lengths, name), getattr(expected, name))
    names = [entry["name"] for entry in manifest["files"]]
    assert names == [*(f"examples-0000{i}.array_record" for i in range(3)), "index.parquet"]
    assert all(len(entry["sha256"]) == 64 and entry["size"] > 0 for entry in manifest["files"])
    assert manifest["problems"] == {"too_short": 1}
    assert json.loads((tmp_path / "data" / "manifest.json").read_text()) == prepared.manifest == manifest
    assert json.loads(json.dumps(prepared.describe()))["rendering"] == {"template_sha256": "abc"}


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    def broken() -> Any:
        yield example(0)
        raise InputError("a record is bad")

    with pytest.raises(InputError, match="a record is bad"):
        write_prepared(tmp_path / "a", broken(), problems=Problems("fatal"))
    with pytest.raises(InputError, match=r"no example came out \(no records at all\)"):
        write_prepared(tmp_path / "a", iter([]), problems=Problems())
    with pytest.raises(InputError, match="two examples have the id 'e0'"):
        write_prepared(tmp_path / "a", iter([example(0), example(0)]), problems=Problems())
    assert list(tmp_path.iterdir()) == []
    written(tmp_path / "a", [example(0)])
    with pytest.raises(InputError, match="exists already"):
        write_prepared(tmp_path / "a", iter([example(0)]), problems=Problems())


def test_folders_that_are_damaged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        Prepared(tmp_path)
    written(tmp_path / "a", [example(0)])
    record = tmp_path / "a" / "examples-00000.array_record"
    record.write_bytes(record.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"examples-00000\.array_record: is missing or not"):
        Prepared(tmp_path / "a")
    manifest = tmp_path / "a" / "manifest.json"
    manifest.write_text('{"format": 99}')
    with pytest.raises(InputError, match="format = 99; this version reads 1"):
        Prepared(tmp_path / "a")


class Actor:
    """Answers with the number of prompt tokens and how often it was asked; stops where told to."""

    def __init__(self, stop_after: int = 10**6) -> None:
        self.prompts: list[list[int]] = []
        self.stop_after = stop_after

    def __call__(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        if len(self.prompts) + len(prompts) > self.stop_after:
            raise KeyboardInterrupt
        self.prompts += [list(prompt) for prompt in prompts]
        return [[len(prompt), prompt[-2]] for prompt in prompts]


def test_summaries_are_generated_once_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    template = Template(s_open=(91,), s_close=(92,))
    examples = [asked(0), asked(1, boundaries=2), asked(2), example(3, summary=None), asked(4)]
    prepared = written(tmp_path / "a", examples)
    path = tmp_path / "a" / GENERATIONS
    with pytest.raises(KeyboardInterrupt):
        generate_missing(prepared, path, Actor(stop_after=4), template=template, batch=2)
    half = Prepared(tmp_path / "a")
    assert half[0].summaries[0].tolist() == [8, examples[0].histories[0][-1]]
    assert half.lengths.summaries.tolist() == [[2, -1], [2, 2], [2, -1], [-1, -1], [-1, -1]]
    with path.open("ab") as stream:
        stream.write(b'{"id": "e2", "kin')  # killed within a line
    Prepared(tmp_path / "a")  # reads what is whole
    second = Actor()
    assert generate_missing(half, path, second, template=template, batch=2) == 1
    whole = Prepared(tmp_path / "a")
    assert not any(whole[i].wants_summaries for i in range(5))
    assert not whole[3].summaries
    assert generate_missing(whole, path, Actor(stop_after=0), template=template, batch=2) == 0  # nothing is left to do
    # The second summary is asked for after the first one, between its markers, and covers the second history.
    first, history = whole[1].summaries[0].tolist(), examples[1].histories[1].tolist()
    prompt = [1, 2, 91, *first, 92, *history, 7]
    assert whole[1].summaries[1].tolist() == [len(prompt), prompt[-2]]


def test_replies_take_the_place_of_responses(tmp_path: Path) -> None:
    prepared = written(tmp_path / "a", [example(0), example(1)])
    path = tmp_path / "a" / GENERATIONS
    actor = Actor()
    assert generate_missing(prepared, path, actor, kind="reply", end=[99]) == 2
    assert actor.prompts[0] == [1, 2, *range(1000, 1005), 1500]
    joined = Prepared(tmp_path / "a")
    assert joined[0].response.tolist() == [1500, 8, 1004, 99]
    assert joined[0].judged == ((1, 4),)
    assert joined.lengths.response.tolist() == [4, 4]
    assert joined.describe() != prepared.describe()


def test_generations_for_other_tokens_are_refused(tmp_path: Path) -> None:
    prepared = written(tmp_path / "a", [asked(0)])
    generate_missing(prepared, tmp_path / "a" / GENERATIONS, Actor())
    import msgspec

    other = msgspec.structs.replace(asked(0), prefix=as_ids([3]))
    written(tmp_path / "b", [other])
    (tmp_path / "b" / GENERATIONS).write_bytes((tmp_path / "a" / GENERATIONS).read_bytes())
    with pytest.raises(InputError, match=r"summary of example 'e0'.*generated from other tokens"):
        Prepared(tmp_path / "b")[0]
    (tmp_path / "a" / GENERATIONS).write_text('{"id": 3}\n')
    with pytest.raises(InputError, match=r"generations\.jsonl:1: is no generation"):
        Prepared(tmp_path / "a")


def test_a_stage_of_prepared_folders(tmp_path: Path) -> None:
    written(tmp_path / "main", [example(i) for i in range(40)])
    written(tmp_path / "replay", [example(i, summary=None) for i in range(40)])
    stage = PreparedData(
        folder=str(tmp_path / "main"), replay=str(tmp_path / "replay"), buckets=SMALL, held_out_share=0.2, threads=0
    )
    held = list(stage.held_out(request(4)))
    record = {int(i): int(r) for item in held for i, r in zip(item.batch.index, item.records, strict=True)}
    kept_out = {i for i in record if i >= 0}
    assert all(record[i] == record[i ^ 1] for i in kept_out) and len({record[i] for i in kept_out}) == len(kept_out) / 2
    assert 0 < len(kept_out) < 20
    assert all((i ^ 1) in kept_out for i in kept_out)  # both examples of a group, or none
    assert len(list(stage.held_out(request(4), 1))) == 1
    iterator = iter(stage.batches(request(4)))
    found = [next(iterator) for _ in range(60)]
    seen = {int(i) for batch in found for i in batch.index if i >= 0}
    assert {i % 40 for i in seen} == set(range(40)) - kept_out  # the same groups of both folders
    assert {i // 40 for i in seen} == {0, 1}
    assert json.loads(json.dumps(stage.manifest()))["prepared"][0]["examples"] == 40
    assert hash(stage) == hash(PreparedData(**{f: getattr(stage, f) for f in stage.__dataclass_fields__}))
    with pytest.raises(ValueError, match="holds none of them out"):
        next(PreparedData(folder=str(tmp_path / "main"), buckets=SMALL, held_out_share=0.0).held_out(request(4)))


def test_summaries_that_come_later_are_seen(tmp_path: Path) -> None:
    prepared = written(tmp_path / "a", [asked(i) for i in range(4)])
    stage = PreparedData(folder=str(tmp_path / "a"), buckets=SMALL, held_out_share=0.0)
    problems = Problems()
    with pytest.raises(ValueError, match="no example can be used"):
        stage.batches(request(2), problems)
    assert reasons(problems) == {"no_summary": 4}
    generate_missing(prepared, tmp_path / "a" / GENERATIONS, Actor())
    iterator = iter(stage.batches(request(2)))
    first = next(iterator)
    assert first.summary_lengths[0].tolist() == [2, 2]
    state = iterator.get_state()
    iterator.close()
    with pytest.raises(CostModelError, match="summaries was"):
        changed = PreparedData(folder=str(tmp_path / "a"), buckets=SMALL, held_out_share=0.0, summaries="ignored")
        iter(changed.batches(request(2))).set_state(state)
    resumed = iter(stage.batches(request(2)))
    assert same(next(resumed), first)


def test_longer_summaries_to_compare_with(tmp_path: Path) -> None:
    prepared = written(tmp_path / "a", [example(i, boundaries=2) for i in range(6)])
    stage = PreparedData(
        folder=str(tmp_path / "a"),
        buckets=Buckets(history=(8,), prefix=2, summary=4, response=6, boundaries=(2,)),
        held_out_share=0.9,
        longer=3,
    )
    assert all(found.longer is None for found in stage.held_out(request(4)))
    actor = Actor()
    assert generate_missing(prepared, tmp_path / "a" / GENERATIONS, actor, kind="longer") == 6
    assert actor.prompts[0] == [1, 2, 1900, 1901, *range(1100, 1105), 7]  # after the recorded first summary
    found = list(stage.held_out(request(4)))
    for item in found:
        assert item.longer is not None
        ids, lengths = item.longer
        assert ids.shape == (4, 3)
        assert lengths.tolist() == [2 if i >= 0 else 0 for i in item.batch.index]
        assert item.batch.summary_lengths[1].tolist() == lengths.tolist()
    assert not prepared[0].wants_summaries
