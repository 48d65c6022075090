"""Episodes: what a history, a summary and a response hold, by looking at the tokens alone."""

from __future__ import annotations

from dataclasses import replace

import grain
import numpy as np
import pytest

from remory_jax.data.batch import Batch
from remory_jax.ledger import LedgerSource, LedgerTask, draw_episodes
from remory_jax.ledger.episodes import SPLITS

TASKS = {
    "A": LedgerTask(variant="A", history=48),
    "B": LedgerTask(variant="B"),
    "C": LedgerTask(),
    "C, terse": LedgerTask(terse=True),
    "C, two boundaries": LedgerTask(boundaries=2),
    "C, 16 facts": LedgerTask(facts=16, kept=4, history=128, slots=16),
}


@pytest.fixture(params=TASKS.values(), ids=TASKS)
def task(request: pytest.FixtureRequest) -> LedgerTask:
    found: LedgerTask = request.param
    return found


def facts_of(task: LedgerTask, text: np.ndarray) -> dict[int, tuple[int, ...]]:
    """Every key in a text and the values that follow it at once."""
    keys = range(task.first_key, task.first_key + task.keys)
    found = {
        int(text[i]): tuple(text[i + 1 : i + 1 + task.answers].tolist()) for i in range(len(text)) if text[i] in keys
    }
    values = range(task.first_value, task.first_value + task.values)
    assert all(value in values for answer in found.values() for value in answer)
    assert sum(token in values for token in text) == task.answers * len(found), "a value without its key"
    return found


def test_histories_hold_every_fact_and_responses_ask_for_all(task: LedgerTask) -> None:
    batch = draw_episodes(task, 0, "train", 0, 40).batch()
    assert batch.boundaries == task.boundaries
    orders = set()
    for row in range(40):
        history = [facts_of(task, text[row]) for text in batch.histories]
        assert [len(part) for part in history] == [task.facts // task.boundaries] * task.boundaries
        every = {key: answer for part in history for key, answer in part.items()}
        assert len(every) == task.facts, "keys are distinct"
        response = facts_of(task, batch.response[row])
        assert response == every
        orders.add(tuple(np.argsort(list(response)).tolist()))
    assert len(orders) > 30, "the order of the response is random"
    assert sum(text.shape[1] for text in batch.histories) == task.history


def test_summaries_keep_exactly_so_many(task: LedgerTask) -> None:
    episodes = draw_episodes(task, 1, "train", 0, 40)
    batch = episodes.batch()
    places = []
    for row in range(40):
        before: dict[int, tuple[int, ...]] = {}
        for boundary in range(task.boundaries):
            kept = facts_of(task, batch.summaries[boundary][row])
            share = task.kept // task.boundaries
            assert len(kept) == share * (boundary + 1)
            assert before.items() <= kept.items(), "a later summary holds the earlier one"
            history = facts_of(task, batch.histories[boundary][row])
            assert len(kept.items() & history.items()) == share
            places += [list(history).index(key) for key in kept if key in history]
            before = kept
        known = batch.response[row][episodes.known[row]].tolist()
        assert sorted(known) == sorted(value for answer in before.values() for value in answer)
    assert set(places) == set(range(task.facts // task.boundaries)), "any fact may be kept"


def test_only_values_are_judged(task: LedgerTask) -> None:
    episodes = draw_episodes(task, 2, "train", 0, 20)
    batch = episodes.batch()
    is_value = (batch.response >= task.first_value) & (batch.response < task.first_value + task.values)
    np.testing.assert_array_equal(batch.weights, is_value.astype(np.float32))
    assert batch.response.shape[1] == task.response
    for row in range(20):
        for boundary, history in enumerate(batch.histories):
            values = batch.response[row][episodes.origin[row] == boundary]
            wanted = [value for answer in facts_of(task, history[row]).values() for value in answer]
            assert sorted(values.tolist()) == sorted(wanted)


def test_summary_plus_spends_what_memory_costs(task: LedgerTask) -> None:
    """The same positions, as many whole facts as they hold, and the summary's own among them."""
    for rows in (2, 4, 8, 16):
        episodes = draw_episodes(replace(task, slots=rows), 3, "held_out", 0, 20)
        plain, plus = episodes.batch(), episodes.batch(plus=True)
        extra = plus.summaries[-1].shape[1] - plain.summaries[-1].shape[1]
        assert extra == rows + 2, "the rows and a marker on each side"
        cost = {"A": 2, "B": 4, "C": 2 if task.terse else 4}[task.variant]
        gained = min(extra // cost, task.facts - task.kept)
        for row in range(20):
            few, many = facts_of(task, plain.summaries[-1][row]), facts_of(task, plus.summaries[-1][row])
            assert len(many) == len(few) + gained
            assert few.items() <= many.items()
            every = {key: answer for text in plain.histories for key, answer in facts_of(task, text[row]).items()}
            assert many.items() <= every.items()
        for one, other in zip(plain.summaries[:-1], plus.summaries[:-1], strict=True):
            np.testing.assert_array_equal(one, other)
        text = episodes.summary_plus(rows=0)[0]
        assert len(facts_of(task, text)) == task.kept + min(2 // cost, task.facts - task.kept)


def test_episodes_do_not_depend_on_their_batch() -> None:
    task = LedgerTask()
    whole = draw_episodes(task, 5, "train", 0, 12).batch()
    parts = [draw_episodes(task, 5, "train", start, count).batch() for start, count in ((0, 5), (5, 6), (11, 1))]
    for name in ("response", "index", "weights"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
    np.testing.assert_array_equal(np.concatenate([part.histories[0] for part in parts]), whole.histories[0])
    np.testing.assert_array_equal(np.concatenate([part.summaries[0] for part in parts]), whole.summaries[0])


def test_no_episode_is_in_two_splits_or_twice_in_one() -> None:
    """Of thousands of episodes of three seeds; a history of eight facts does not come twice by chance."""
    task = LedgerTask()
    drawn = np.concatenate(
        [draw_episodes(task, seed, split, 0, 1500).histories[0] for seed in (0, 1, 2) for split in SPLITS]
    )
    facts = np.concatenate(
        [draw_episodes(task, seed, split, 0, 1500).units[:, :, :2] for seed in (0, 1, 2) for split in SPLITS]
    )
    assert len(np.unique(drawn, axis=0)) == len(drawn) == 18000
    pairs = np.sort(facts[:, :, 0] * 1000 + facts[:, :, 1], axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs)


def test_tokens_are_uniform() -> None:
    task = LedgerTask()
    units = draw_episodes(task, 7, "train", 0, 4000).units
    for column, first, size in ((0, task.first_key, 32), (1, task.first_value, 32), (2, task.first_filler, 16)):
        counts = np.bincount(units[:, :, column].ravel() - first, minlength=size)
        assert counts.size == size
        expected = 32000 / size
        assert np.max(np.abs(counts - expected)) < 5 * expected**0.5


def test_a_source_of_batches() -> None:
    """As Grain takes it."""
    task = LedgerTask(boundaries=2)
    source = LedgerSource(task=task, seed=3, split="train", batch_size=6, batches=5)
    assert len(source) == 5
    data = grain.MapDataset.source(source)
    for number in range(5):
        batch = data[number]
        assert isinstance(batch, Batch)
        np.testing.assert_array_equal(batch.index, np.arange(6 * number, 6 * number + 6))
        np.testing.assert_array_equal(batch.response, draw_episodes(task, 3, "train", 6 * number, 6).response)
    longer = replace(source, plus=True)[1]
    assert longer.summaries[-1].shape[1] == source[1].summaries[-1].shape[1] + 10
    with pytest.raises(IndexError, match="batch 5 of 5"):
        source[5]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"variant": "D"}, "variant = 'D'"),
        ({"kept": 9}, "kept = 9 of 8"),
        ({"keys": 7}, "keys = 7"),
        ({"history": 31}, "history = 31"),
        ({"boundaries": 3}, "no multiple of boundaries"),
        ({"slots": 0}, "slots = 0"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LedgerTask(**fields)  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_shape_checks")
def test_unknown_splits_and_negative_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="split = 'test'"):
        draw_episodes(LedgerTask(), 0, "test", 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed = -1"):
        draw_episodes(LedgerTask(), -1, "train", 0, 1)
