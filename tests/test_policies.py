"""What policies refuse, what they report, and that their parameters can be traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import costmodel_jax as cm
from costmodel_jax.counting import STATUS

PAPER = cm.cache_rules["paper"]


def run(calls: int = 8, *, reasoning: str = "observed") -> cm.Run:
    return cm.Run.from_dict(
        {
            "id": "r",
            "evidence": {"reasoning": reasoning},
            "calls": [
                {
                    "input": [{"kind": "system", "tokens": 100}] * (t == 0) + [{"kind": "tool", "tokens": 30}],
                    "output": [{"kind": "reasoning", "tokens": 20}, {"kind": "assistant", "tokens": 5}],
                }
                for t in range(calls)
            ],
        }
    )


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cm.KeepLatest(-1), r"KeepLatest.k = -1 must be at least 0"),
        (lambda: cm.KeepLatest(2.5), r"KeepLatest.k = 2.5 must be an integer"),
        (lambda: cm.KeepLatest(True), r"KeepLatest.k = True must be an integer"),
        (lambda: cm.ClearEvery(0), r"ClearEvery.k = 0 must be at least 1"),
        (lambda: cm.ClearToolResults(100, keep=-2), r"ClearToolResults.keep = -2"),
        (lambda: cm.Compact(100, summary=-5), r"Compact.summary = -5"),
        (lambda: cm.CompactWithMemory(100, slots=-1), r"CompactWithMemory.slots = -1"),
    ],
)
def test_parameters_that_make_no_sense(make: object, message: str) -> None:
    with pytest.raises(cm.CostModelError, match=message):
        make()


def test_unknown_reasoning_is_reported_not_treated_as_zero() -> None:
    batch = cm.pack([run(reasoning="unknown"), run()])
    counts = cm.count(batch, cm.DropImmediately(), PAPER)
    assert [STATUS[status] for status in counts.status] == ["reasoning unknown", "ok"]
    assert (counts.prompt[0][counts.mask[0]] == -1).all()
    costs = cm.cost(counts, cm.Prices(linear=1.0, pair=1.0))
    assert np.isnan(costs[0])
    assert costs[1] > 0
    assert cm.count(batch, cm.KeepAll(), PAPER).ok.all()


def test_floor_that_does_not_fit_is_infeasible_and_not_simulated() -> None:
    batch = cm.pack([run()])
    fits = cm.Compact(200, keep_tail=40, summary=30, reserve=30)  # 100 + 30 + 40 + 30 = 200
    assert cm.count(batch, fits, PAPER).ok.all()
    for too_much in ({"reserve": 31}, {"summary": 31}, {"keep_tail": 41}):
        fields = {"keep_tail": 40, "summary": 30, "reserve": 30, **too_much}
        counts = cm.count(batch, cm.Compact(200, **fields), PAPER)
        assert STATUS[counts.status[0]] == "infeasible"
        assert np.isnan(cm.cost(counts, cm.Prices(linear=1.0, pair=1.0)))[0]
    short = cm.pack([run(2)])  # it never reaches the trigger, so there is nothing to refuse
    assert cm.count(short, cm.Compact(200, keep_tail=200), PAPER).ok.all()


def test_a_call_beyond_64_bits_is_refused_not_wrapped() -> None:
    big = cm.Run.from_dict({"id": "big", "calls": [{"input": [{"kind": "user", "tokens": 2**31 - 1}]}]})
    fits = cm.count(cm.pack([big]), cm.KeepAll(), PAPER)
    assert int(fits.pairs[0, 0]) == (2**31 - 1) * 2**31 // 2
    calls = [{"input": [{"kind": "user", "tokens": 2**30}]}, *({"output": [{"kind": "assistant", "tokens": 1}]},) * 16]
    many = cm.count(cm.pack([cm.Run.from_dict({"id": "m", "calls": calls})]), cm.KeepAll(), cm.CacheRule("none"))
    assert STATUS[many.status[0]] == "beyond 64 bits"
    with pytest.raises(cm.CostModelError, match="exact below"):
        cm.pack([cm.Run.from_dict({"id": "b", "calls": [{"input": [{"kind": "user", "tokens": 2**31 - 1}] * 2}]})])


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        (lambda v: cm.KeepLatest(v), [0, 1, 3, 100]),
        (lambda v: cm.ClearEvery(v), [1, 2, 5]),
        (lambda v: cm.ClearToolResults(v, 1), [0, 150, 200, 10**6]),
        (lambda v: cm.Compact(v, keep_tail=40, summary=30), [200, 260, 10**6]),
        (lambda v: cm.CompactWithMemory(240, keep_tail=40, summary=20, slots=v), [0, 7]),
    ],
)
def test_parameters_can_be_traced(policy: object, values: list[int]) -> None:
    batch = cm.pack([run(), run(5)])
    for traced in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        swept = traced(lambda v: cm.count(batch, policy(v), PAPER))(jnp.asarray(values))
        for i, value in enumerate(values):
            alone = cm.count(batch, policy(value), PAPER)
            for field in ("prompt", "reused", "generated", "processed", "pairs", "mask", "status"):
                np.testing.assert_array_equal(np.asarray(getattr(swept, field))[i], getattr(alone, field))


def test_memory_rows_cost_positions_and_the_networks_own_flops() -> None:
    batch = cm.pack([run()])
    fields = {"keep_tail": 40, "summary": 20, "instruction": 5}
    plain = cm.count(batch, cm.Compact(240, **fields), PAPER)
    memory = cm.count(batch, cm.CompactWithMemory(240, **fields, slots=16, memory_flops=2.0), PAPER)
    first = int(np.flatnonzero(plain.summary[0])[0])
    assert memory.prompt[0, first + 1] == plain.prompt[0, first + 1] + 16
    # Call 3 sends 320 tokens: 265 of history, of which head (100) and tail (35) stay.
    history = plain.prompt[0, first] - 5
    kept = plain.prompt[0, first + 1] - 20 - 30
    assert memory.extra[0, first] == 2.0 * (history - kept)
    assert plain.extra.sum() == 0


def test_single_run_without_a_leading_axis() -> None:
    batch = cm.pack([run(), run(5)])
    whole = cm.count(batch, cm.KeepLatest(1), PAPER)
    one = cm.count(jax.tree.map(lambda leaf: leaf[1], batch), cm.KeepLatest(1), PAPER)
    np.testing.assert_array_equal(one.pairs, whole.pairs[1])
    assert cm.total(whole.pairs)[1] == whole.pairs[1].sum()
