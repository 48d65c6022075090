"""The gap table from known divergences; conditions and controls on an actor; what a person sees."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))

from examples import filled, random_batch, setting_for, tiny_actor, tiny_network

from costmodel_jax.figures import save
from remory_jax.evaluation import CONDITIONS, Judged, Measured, evaluate, gap_rows, gap_table
from remory_jax.evaluation.figures import kl_by_position, training_curves
from remory_jax.evaluation.gap import shown
from remory_jax.training.experiment import HeldOut
from remory_jax.training.probe import donors


def judged(reverse: np.ndarray, positions: int) -> Judged:
    return Judged(
        reverse=reverse.astype(np.float32),
        forward=(2 * reverse).astype(np.float32),
        agree=(reverse < 0.5).astype(np.float32),
        positions=np.full(len(reverse), positions, np.int32),
    )


def known(examples: int = 200) -> Measured:
    """Memory leaves a quarter of what the summary leaves, in every example."""
    random = np.random.default_rng(0)
    base = random.uniform(0.5, 1.5, (examples, 3))
    weights = np.tile(np.asarray([1.0, 0.0, 2.0], np.float32), (examples, 1))
    conditions = {
        "full context": judged(0 * base, 100),
        "summary": judged(base, 20),
        "summary + memory": judged(base / 4, 30),
        "shuffled memory": judged(base * random.uniform(0.9, 1.3, base.shape), 30),
    }
    return Measured(conditions=conditions, weights=weights, records=np.arange(examples, dtype=np.int32))


def test_the_table_says_what_the_divergences_are() -> None:
    measured = known()
    table = {gap.condition: gap for gap in gap_table(measured)}
    assert list(table) == [name for name in CONDITIONS if name in measured.conditions]
    memory = table["summary + memory"]
    assert memory.closed == pytest.approx(0.75, abs=1e-6)
    assert memory.low == pytest.approx(0.75, abs=1e-6)  # paired: the ratio is the same in every resample
    assert memory.high == pytest.approx(0.75, abs=1e-6)
    assert (table["full context"].closed, table["summary"].closed) == (1.0, 0.0)
    shuffled = table["shuffled memory"]
    assert shuffled.low < shuffled.closed < shuffled.high < 0
    base = measured.conditions["summary"].reverse
    assert table["summary"].reverse_kl == pytest.approx(float((base[:, 0] + 2 * base[:, 2]).mean() / 3), rel=1e-6)
    assert table["summary"].forward_kl == pytest.approx(2 * table["summary"].reverse_kl, rel=1e-6)
    assert memory.positions == 30


def test_examples_of_one_record_are_drawn_together() -> None:
    measured = known(40)
    apart = gap_table(measured)[-1]
    together = gap_table(replace(measured, records=np.arange(40, dtype=np.int32) // 20))[-1]
    assert together.high - together.low != pytest.approx(apart.high - apart.low)


def test_shuffled_memory_is_of_another_record() -> None:
    batch = random_batch(6, histories=(4,), summaries=(2,))
    item = HeldOut(batch=replace(batch, index=np.array([3, 4, 7, 8, 9, -1], np.int32)))
    assert donors(item).tolist() == [1, 2, 3, 4, 0, 5]
    assert donors(replace(item, records=np.array([0, 0, 1, 1, 1, -1]))).tolist() == [2, 2, 0, 0, 0, 5]
    assert donors(replace(item, records=np.zeros(6, np.int32))).tolist() == [1, 2, 3, 4, 0, 5]


def test_no_gap_is_an_error() -> None:
    measured = known(4)
    same = dict(measured.conditions, summary=measured.conditions["full context"])
    with pytest.raises(ValueError, match=r"KL\(summary\) is 0"):
        gap_table(replace(measured, conditions=same))


def test_what_people_see(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(shown(gap_table(known())))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "summary + memory" in text
    picture, rows = save(*kl_by_position(known(), "known"), tmp_path / "kl.png")
    assert picture.stat().st_size > 10_000
    assert rows.read_text().startswith("condition,position,reverse_kl")
    lines = [{"kind": "train", "step": step, "loss": 1 / step} for step in (1, 2, 3)]
    lines += [{"kind": "probe", "step": 2, "reverse_kl": 0.4, "own_minus_shuffled": -0.1}]
    _, rows = save(*training_curves(lines), tmp_path / "training.png")
    assert "own_minus_shuffled" in rows.read_text()
    assert gap_rows(gap_table(known()))[0]["condition"] == "full context"


def test_every_condition_and_control_is_judged() -> None:
    actor, network = tiny_actor(), tiny_network()
    setting, params, buffers = setting_for(network)
    batch = filled(random_batch(3, histories=(10, 6), summaries=(3, 3)), 1)
    longer = (np.tile(batch.summaries[-1], (1, 2)), 2 * batch.summary_lengths[-1])
    measured = evaluate(setting, params, buffers, actor, [HeldOut(batch=batch, longer=longer)])
    assert set(measured.conditions) == set(CONDITIONS)
    assert len(measured.weights) == 3  # without the row that filled up
    assert np.all(measured.conditions["full context"].reverse == 0)
    assert np.all(measured.conditions["full context"].agree[measured.weights > 0] == 1)
    own, shuffled = (measured.conditions[name].reverse for name in ("summary + memory", "shuffled memory"))
    assert np.max(np.abs(own - shuffled)) > 1e-4
    prefix, lengths = batch.prefix_length[:3], [length[:3] for length in batch.history_lengths]
    assert np.array_equal(measured.conditions["full context"].positions, prefix + lengths[0] + lengths[1])
    words = batch.summary_lengths[-1][:3]
    assert np.array_equal(measured.conditions["summary"].positions, prefix + words + 2)
    assert np.array_equal(measured.conditions["summary++"].positions, prefix + 2 * words + 2)
    with pytest.raises(ValueError, match="two examples or more"):
        evaluate(setting, params, buffers, actor, [HeldOut(batch=random_batch(1))])
    with pytest.raises(ValueError, match="no held-out batch"):
        evaluate(setting, params, buffers, actor, [])
