"""Batches: shapes, mixing, order, sharding, and positions that are restored bit for bit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp
from toy import example, reasons, same

from costmodel_jax import CostModelError, InputError
from remory_jax.data import (
    Batch,
    Bucket,
    Buckets,
    ExampleList,
    Problems,
    batches_of,
    collate,
    make_pipeline,
    process_rows,
)
from remory_jax.data.buckets import Lengths, assign_buckets
from remory_jax.data.examples import as_ids
from remory_jax.data.plan import Plan

SMALL = Buckets(history=(4, 8), prefix=2, summary=3, response=6)


def examples(count: int = 23) -> ExampleList:
    return ExampleList(example(i, history=3 + i % 6) for i in range(count))


def take(batches: Any, count: int) -> list[Batch]:
    iterator = iter(batches)
    try:
        return [next(iterator) for _ in range(count)]
    finally:
        iterator.close()


def test_a_batch_holds_what_its_examples_hold() -> None:
    bucket = Bucket(prefix=3, histories=(6,), summaries=(3,), response=5)
    batch = collate([example(0), None], [7, 9], bucket, tau=2, floor=0.25)
    assert batch.prefix.tolist() == [[1, 2, 0], [0, 0, 0]]
    assert batch.histories[0].tolist() == [[1000, 1001, 1002, 1003, 1004, 0], [0] * 6]
    assert batch.summaries[0].tolist() == [[1900, 1901, 0], [0, 0, 0]]
    assert batch.response.tolist() == [[1500, 1501, 1502, 1503, 0], [0] * 5]
    assert [lengths.tolist() for lengths in (batch.prefix_length, *batch.history_lengths, *batch.summary_lengths)] == [
        [2, 0],
        [5, 0],
        [2, 0],
    ]
    assert batch.response_length.tolist() == [4, 0]
    assert batch.index.tolist() == [7, -1]
    expected = 0.25 + 0.75 * np.exp(-np.arange(3) / 2)  # counted from the first judged token
    np.testing.assert_allclose(batch.weights[0], [0, *expected, 0], rtol=1e-6)
    assert not batch.weights[1].any()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(batch)} == {"int32", "float32"}
    with pytest.raises(ValueError, match="5 tokens do not fit a width of 4"):
        collate([example(0)], [0], Bucket(prefix=3, histories=(4,), summaries=(3,), response=5))


def test_without_summaries_their_width_is_zero() -> None:
    source = ExampleList(example(i, summary=None) for i in range(4))
    (batch,) = take(make_pipeline(source, buckets=SMALL, batch=4, seed=0), 1)
    assert batch.summaries[0].shape == (4, 0)
    assert batch.summary_lengths[0].tolist() == [0] * 4
    with_summaries = ExampleList(example(i) for i in range(4))
    (batch,) = take(make_pipeline(with_summaries, buckets=SMALL, batch=4, seed=0, summaries="ignored"), 1)
    assert batch.summaries[0].shape == (4, 0)


def test_examples_that_fit_no_bucket_are_named_and_counted() -> None:
    import msgspec

    whole = example(0)
    bad = {
        "history_too_long": example(1, history=9),
        "response_too_long": example(2, response=7),
        "summary_too_long": example(3, summary=4),
        "empty_summary": example(4, summary=0),
        "empty_history": example(5, history=0),
        "too_many_boundaries": example(6, boundaries=2),
        "no_summary": msgspec.structs.replace(example(7), summaries=()),
        "prefix_too_long": msgspec.structs.replace(example(8), prefix=as_ids([1, 2, 3])),
        "empty_response": msgspec.structs.replace(example(9), judged=()),
    }
    source, problems = ExampleList([whole, *bad.values()]), Problems()
    batches = make_pipeline(source, buckets=SMALL, batch=1, seed=0, problems=problems)
    assert {found.index[0] for found in take(batches, 5)} == {0}
    assert reasons(problems) == dict.fromkeys(bad, 1)
    assert {problem.id: problem.reason for problem in problems.list} == {e.id: reason for reason, e in bad.items()}
    assert "a response of 7 tokens; the largest bucket holds 6" in {problem.message for problem in problems.list}
    with pytest.raises(InputError, match=r"e1: a history of 9 tokens; the largest bucket holds 8 \[history_too_long\]"):
        make_pipeline(source, buckets=SMALL, batch=1, seed=0, problems=Problems("fatal"))
    with pytest.raises(ValueError, match="no example can be used"):
        make_pipeline(ExampleList([bad["empty_history"]]), buckets=SMALL, batch=1, seed=0)


def test_the_smallest_bucket_that_fits() -> None:
    lengths = Lengths.of(
        [example(0, history=4), example(1, history=5), example(2, boundaries=2), example(3, summary=None)]
    )
    shapes = Buckets(history=(4, 8), prefix=2, summary=3, response=6, boundaries=(1, 2)).shapes()
    placed, known = assign_buckets(lengths, shapes, Problems("fatal"))
    assert [str(known[b]) for b in placed] == ["2 | 4+3 | 6", "2 | 8+3 | 6", "2 | 8+3 8+3 | 6", "2 | 8+0 | 6"]
    assert [bucket.tokens for bucket in shapes] == sorted(bucket.tokens for bucket in shapes)
    with pytest.raises(ValueError, match=r"Buckets\.history = \(0,\)"):
        Buckets(history=(0,)).shapes()


def test_every_example_once_an_epoch_in_few_shapes() -> None:
    batches = make_pipeline(examples(), buckets=SMALL, batch=4, seed=3, epochs=2)
    found = list(batches)
    half = len(found) // 2
    assert len(found) == 2 * half
    for epoch in (found[:half], found[half:]):
        seen = Counter(i for batch in epoch for i in batch.index.tolist() if i >= 0)
        assert seen == Counter(range(23))
    assert not all(same(a, b) for a, b in zip(found[:half], found[half:], strict=True))  # another order
    fillers = [batch for batch in found if (batch.index < 0).any()]
    assert 0 < len(fillers) <= 4  # at most one a bucket and epoch
    for batch in fillers:
        assert not batch.weights[batch.index < 0].any()
        assert not batch.response_length[batch.index < 0].any()
    compiled = Counter()

    @jax.jit
    def step(batch: Batch) -> jax.Array:
        compiled[batch.histories[0].shape] += 1  # runs when a shape is traced
        return batch.weights.sum()

    for batch in found:
        step(batch)
    assert dict(compiled) == {(4, 4): 1, (4, 8): 1}


@pytest.mark.parametrize(("threads", "prefetch"), [(0, 0), (2, 4)])
def test_resuming_gives_the_same_bits(threads: int, prefetch: int) -> None:
    def made() -> Any:
        replay = ExampleList(example(100 + i, summary=None, history=3) for i in range(7))
        return make_pipeline(
            examples(),
            buckets=SMALL,
            batch=4,
            seed=1,
            replay=replay,
            curriculum=0.5,
            threads=threads,
            prefetch=prefetch,
        )

    whole = take(made(), 20)
    iterator = iter(made())
    for _ in range(9):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    later = [next(iterator) for _ in range(3)]  # what was given out after the save does not matter
    iterator.close()
    resumed = iter(made())
    resumed.set_state(state)
    again = [next(resumed) for _ in range(11)]
    assert all(same(a, b) for a, b in zip(again, whole[9:], strict=True))
    assert all(same(a, b) for a, b in zip(later, again[:3], strict=True))
    resumed.set_state(state)  # back again
    assert same(next(resumed), whole[9])
    resumed.close()


def test_processes_share_out_each_global_batch() -> None:
    def part(index: int, count: int) -> list[Batch]:
        return take(
            make_pipeline(examples(), buckets=SMALL, batch=4, seed=1, process_index=index, process_count=count), 12
        )

    whole = part(0, 1)
    for batch, first, second in zip(whole, part(0, 2), part(1, 2), strict=True):
        joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), first, second)
        assert same(joined, batch)
    assert process_rows(8, 3, 4) == (6, 8)
    with pytest.raises(ValueError, match="batch = 4 is no multiple of process_count = 3"):
        part(0, 3)
    with pytest.raises(ValueError, match="process_index = 2 of process_count = 2"):
        part(2, 2)


def test_only_the_rows_of_this_process_are_read() -> None:
    class Counting(ExampleList):
        def __init__(self, found: Any) -> None:
            super().__init__(found)
            self.read: list[int] = []

        def __getitem__(self, index: int, /) -> Any:
            self.read.append(index)
            return super().__getitem__(index)

    source = Counting([example(i) for i in range(8)])
    source.lengths  # noqa: B018
    source.read.clear()
    found = make_pipeline(source, buckets=SMALL, batch=4, seed=0, process_index=1, process_count=2, threads=0, epochs=1)
    indices = [i for batch in found for i in batch.index.tolist()]
    assert sorted(source.read) == sorted(indices)
    assert len(indices) == 4


def test_another_number_of_processes_goes_on_at_the_same_global_batch(tmp_path: Path) -> None:
    def made(index: int = 0, count: int = 1, **more: Any) -> Any:
        options = {"buckets": SMALL, "batch": 4, "seed": 1, "process_index": index, "process_count": count}
        return make_pipeline(examples(), **(options | more))

    whole = take(made(), 6)
    iterator = iter(made(0, 2))
    for _ in range(5):
        next(iterator)
    ocp.save_checkpointables(tmp_path / "saved", {"data": iterator})
    iterator.close()
    restored = iter(made())
    ocp.load_checkpointables(tmp_path / "saved", {"data": restored})
    assert restored.get_state()["next_batch"] == 5
    assert same(next(restored), whole[5])
    restored.close()

    state = iter(made()).get_state()
    for change, message in [
        ({"seed": 2}, "seed was 1, is 2"),
        ({"batch": 2}, "batch was 4, is 2"),
        ({"buckets": Buckets(history=(16,), prefix=2, summary=3, response=6)}, "buckets was"),
    ]:
        with pytest.raises(CostModelError, match=message):
            iter(made(**change)).set_state(state)
    other = iter(make_pipeline(examples(22), buckets=SMALL, batch=4, seed=1))
    with pytest.raises(CostModelError, match=r"data was .*usable was \[23\], is \[22\]"):
        other.set_state(state)
    with pytest.raises(CostModelError, match="no state of a BatchIterator"):
        other.set_state({"next_index": 3})


def test_a_replay_has_its_share_of_every_stretch() -> None:
    replay = ExampleList(example(100 + i, summary=None, history=3) for i in range(6))
    found = take(make_pipeline(examples(), buckets=SMALL, batch=2, seed=0, replay=replay, replay_share=0.25), 80)
    replayed = [batch.summaries[0].shape[1] == 0 for batch in found]
    for stretch in range(0, 80, 8):
        assert sum(replayed[stretch : stretch + 8]) == 2
    for batch, is_replay in zip(found, replayed, strict=True):
        assert ((batch.index >= 23) == is_replay)[batch.index >= 0].all()  # the two sources' numbers do not meet
    with pytest.raises(ValueError, match="replay_share = 0"):
        make_pipeline(examples(), buckets=SMALL, batch=2, seed=0, replay=replay, replay_share=0)


def _lengths_over_time(curriculum: float | int, **more: Any) -> np.ndarray:
    draw = np.random.default_rng(0)
    history = draw.integers(1, 1000, 400).astype(np.int32)
    plan = Plan(np.zeros(400, np.int32), history, batch=10, seed=0, curriculum=curriculum, **more)
    return np.asarray([history[plan[i].index].mean() for i in range(len(plan))])


def test_a_curriculum_goes_from_short_to_long() -> None:
    strict, half, none = (_lengths_over_time(c) for c in (1, 0.5, 0))
    assert (np.diff(strict) > 0).all()
    correlation = [np.corrcoef(np.arange(40), found)[0, 1] for found in (half, none)]
    assert correlation[0] > 0.8
    assert abs(correlation[1]) < 0.5
    early = _lengths_over_time(1, horizon=10)  # all of it within ten batches, whose examples are drawn from all lengths
    assert (np.diff(early[:10]) > 0).all()
    assert early[9] > 900
    assert abs(np.corrcoef(np.arange(30), early[10:])[0, 1]) < 0.5
    draw = np.random.default_rng(1).integers(1, 9, 50).astype(np.int32)
    plan = Plan(np.zeros(50, np.int32), draw, batch=5, seed=0, curriculum=1)
    later = [draw[plan[10 + i].index].mean() for i in range(10)]  # the second epoch has none
    assert not (np.diff(later) >= 0).all()
    with pytest.raises(ValueError, match="curriculum = 2"):
        Plan(np.zeros(5, np.int32), draw[:5], batch=5, seed=0, curriculum=2)


class Episodes:
    """Ready batches, each a pure function of its number."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Batch:
        bucket = Bucket(prefix=2, histories=(5,), summaries=(2,), response=4)
        return collate([example(4 * index + row) for row in range(4)], range(4 * index, 4 * index + 4), bucket)


def test_ready_batches() -> None:
    whole = take(batches_of(Episodes(), seed=0), 12)
    assert [int(batch.index[0]) for batch in whole] == [4 * (i % 5) for i in range(12)]
    shuffled = [int(batch.index[0]) for batch in take(batches_of(Episodes(), seed=0, shuffle=True), 10)]
    assert sorted(shuffled[:5]) == sorted(shuffled[5:]) == [0, 4, 8, 12, 16]
    parts = [take(batches_of(Episodes(), seed=0, process_index=p, process_count=2), 12) for p in range(2)]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert same(jax.tree.map(lambda a, b: np.concatenate([a, b]), first, second), batch)
    iterator = iter(batches_of(Episodes(), seed=0, identity={"task": "C"}))
    next(iterator)
    state = iterator.get_state()
    resumed = iter(batches_of(Episodes(), seed=0, identity={"task": "C"}))
    resumed.set_state(state)
    assert same(next(resumed), whole[1])
    with pytest.raises(CostModelError, match='task was "C", is "A"'):
        iter(batches_of(Episodes(), seed=0, identity={"task": "A"})).set_state(state)
    assert len(list(batches_of(Episodes(), seed=0, epochs=2))) == 10
    with pytest.raises(ValueError, match="no multiple of process_count = 3"):
        take(batches_of(Episodes(), seed=0, process_count=3), 1)
