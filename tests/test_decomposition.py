"""The split of a cost difference, against a token-by-token count and with sums that are exact to the bit."""

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel_jax.caching import CacheRule
from costmodel_jax.decomposition import decompose, decompose_costs
from costmodel_jax.errors import CostModelError
from costmodel_jax.policies import DropImmediately, KeepAll
from costmodel_jax.pricing import Prices
from costmodel_jax.schema import Evidence, Run

SMALL = Prices(linear=1000.0, pair=1.0)
QWEN36 = Prices(linear=48_701_112_320.0, pair=393_216.0)
GENERATION = CacheRule(reuse="prompt+generation", block=1)


def run(name, calls, *, task=None, chain=None, evidence=None):
    """A run from (new input, reasoning, answer) lengths; the first input is the system prompt."""
    kinds = ["system", *["tool"] * len(calls)]
    return Run.from_dict(
        {
            "schema": "agent-run/1", "id": name, "task": task, "chain": chain,
            "calls": [
                {
                    "input": [{"kind": kind, "tokens": new}],
                    "output": [{"kind": "reasoning", "tokens": r}, {"kind": "assistant", "tokens": a}],
                }
                for kind, (new, r, a) in zip(kinds, calls, strict=False)
            ],
            **({"evidence": evidence} if evidence else {}),
        }
    )  # fmt: skip


def served(calls, *, drop, reuse_generation):
    """N, Q and G of those lengths, one token at a time."""
    history, stored = [], []
    processed = pairs = generated = 0
    for t, (new, r, a) in enumerate(calls):
        if drop:
            history = [token for token in history if token[0] != "reasoning"]
        prompt = history + [("input", t, i) for i in range(new)]
        output = [("reasoning", t, i) for i in range(r)] + [("answer", t, i) for i in range(a)]
        reused = 0
        for sequence in stored:
            shared = 0
            while shared < min(len(sequence), len(prompt)) and sequence[shared] == prompt[shared]:
                shared += 1
            reused = max(reused, shared)
        for position in range(reused, len(prompt) + len(output)):
            processed += 1
            pairs += position + 1
        generated += len(output)
        stored.append(prompt + output if reuse_generation else prompt)
        history = prompt + output
    return np.array([processed, pairs, generated])


TRAP = [(100, 20, 5), *[(10, 20, 5)] * 5]
X0 = [TRAP, [(40, 6, 3), (2, 9, 1), (5, 0, 4)], [(7, 3, 2)]]
X1 = [[(100, 30, 5), *[(10, 12, 5)] * 7], [(40, 4, 3), (8, 2, 2)], [(7, 1, 1), (3, 3, 0), (1, 1, 1), (2, 8, 1)]]


def both(x0=X0, x1=X1, tasks=("a", "b", "c")):
    baseline = [run(f"keep-{t}", calls, task=t) for t, calls in zip(tasks, x0, strict=True)]
    return baseline, [run(f"drop-{t}", calls, task=t) for t, calls in zip(tasks, x1, strict=True)]


def split(baseline, treated, **changes):
    settings = {
        "baseline_policy": KeepAll(),
        "treated_policy": DropImmediately(),
        "cache": GENERATION,
        "prices": SMALL,
        "w": 2.0,
    }
    return decompose(baseline, treated, **settings | changes)


@pytest.mark.parametrize("reuse_generation", [False, True], ids=["prompt", "generation"])
def test_every_part_by_brute_force(reuse_generation):
    rule = CacheRule(reuse="prompt+generation" if reuse_generation else "prompt", block=1)
    result = split(*both(), cache=rule)
    corners = {
        (policy, x): np.array(
            [served(calls, drop=bool(policy), reuse_generation=reuse_generation) for calls in trajectories]
        )
        for policy in (0, 1)
        for x, trajectories in ((0, X0), (1, X1))
    }
    cost = {key: value @ [1000, 1, 1000] for key, value in corners.items()}
    measures = [(name, i) for i, name in enumerate(("processed", "pairs", "generated"))]
    for name, C in [*((name, {k: v[:, i] for k, v in corners.items()}) for name, i in measures), ("cost", cost)]:
        part = getattr(result.runs, name)
        np.testing.assert_array_equal(part.difference, C[1, 1] - C[0, 0])
        np.testing.assert_array_equal(part.treated.mechanical, C[1, 1] - C[0, 1])
        np.testing.assert_array_equal(part.treated.behavioural, C[0, 1] - C[0, 0])
        np.testing.assert_array_equal(part.baseline.mechanical, C[1, 0] - C[0, 0])
        np.testing.assert_array_equal(part.baseline.behavioural, C[1, 1] - C[1, 0])
        for key, corner in (((0, 0), "c00"), ((0, 1), "c01"), ((1, 0), "c10"), ((1, 1), "c11")):
            np.testing.assert_array_equal(getattr(part, corner), C[key])
            assert getattr(getattr(result.total, name), corner) == C[key].sum()
        assert part.difference.dtype == (np.float64 if name == "cost" else np.int64)
        total = getattr(result.total, name)
        assert type(total.difference) is (float if name == "cost" else int)
        assert total.treated.mechanical + total.treated.behavioural == total.difference
        assert total.baseline.mechanical + total.baseline.behavioural == total.difference


def test_one_trajectory_has_no_behavioural_part():
    result = split([run("x0", TRAP)], [run("x1", TRAP)], w=1.0)
    assert (result.total.cost.c00, result.total.cost.c11) == (345_150.0, 362_975.0)
    for part in (result.total.cost.treated, result.total.cost.baseline):
        assert (part.mechanical, part.behavioural) == (17_825.0, 0.0)


def test_one_policy_has_no_mechanical_part():
    result = split(*both(), treated_policy=KeepAll())
    assert result.total.cost.treated.mechanical == result.total.cost.baseline.mechanical == 0.0
    assert result.total.cost.treated.behavioural == result.total.cost.difference != 0.0


def test_the_named_reference_is_the_headline_and_both_are_in_the_table():
    first, second = split(*both()), split(*both(), reference="baseline")
    assert (first.mechanical, first.behavioural) == (
        first.total.cost.treated.mechanical,
        first.total.cost.treated.behavioural,
    )
    assert second.mechanical == first.total.cost.baseline.mechanical != first.mechanical
    assert first.difference == second.difference == first.mechanical + first.behavioural
    rows = first.rows()
    assert len(rows) == (3 + 1) * 4 * 2
    assert all(row["mechanical"] + row["behavioural"] == row["difference"] for row in rows)
    totals = [row for row in rows if row["baseline"] == "total"]
    assert {(row["quantity"], row["reference"]) for row in totals} == {
        (quantity, reference)
        for quantity in ("processed", "pairs", "generated", "cost")
        for reference in ("treated", "baseline")
    }
    for row in totals:
        alike = [r for r in rows if (r["quantity"], r["reference"]) == (row["quantity"], row["reference"])]
        assert sum(r["mechanical"] for r in alike if r is not row) == row["mechanical"]


# --- pairing ---------------------------------------------------------------------------------------------------------


def test_runs_pair_by_task_whatever_their_order():
    baseline, treated = both()
    result = split(baseline, treated)
    shuffled = split(baseline, [treated[2], treated[0], treated[1]])
    assert shuffled.treated_ids == result.treated_ids == ("drop-a", "drop-b", "drop-c")
    assert shuffled.total == result.total


def test_runs_pair_by_task_and_chain_and_repeats_in_order():
    calls = [(5, 1, 1)]
    keys = [("a", "1"), ("a", "2"), ("a", "1"), ("b", None)]
    baseline = [run(f"k{i}", calls, task=task, chain=chain) for i, (task, chain) in enumerate(keys)]
    treated = [run(f"d{i}", calls, task=task, chain=chain) for i, (task, chain) in reversed(list(enumerate(keys)))]
    assert split(baseline, treated).treated_ids == ("d2", "d1", "d0", "d3")


def test_runs_without_tasks_pair_by_position():
    x0, x1 = [run("k0", X0[0]), run("k1", X0[1])], [run("d0", X1[0], task="only here"), run("d1", X1[1])]
    assert split(x0, x1).treated_ids == ("d0", "d1")


MISMATCHES = [
    ([("k", "a"), ("l", "b")], [("d", "a"), ("e", "c")], "'l'.*no treated.*'e'.*no baseline"),
    ([("k", "a"), ("l", "a")], [("d", "a")], "'l'.*no treated"),
    ([("k", None), ("l", None)], [("d", None)], "2 baseline.*1 treated"),
    ([("k", "a"), ("l", None)], [("d", "b"), ("e", None)], "'k'.*'d'.*different tasks"),
    ([], [], "no runs"),
]


@pytest.mark.parametrize(("baseline", "treated", "message"), MISMATCHES)
def test_mismatches_name_the_runs(baseline, treated, message):
    sides = ([run(name, [(5, 1, 1)], task=task) for name, task in side] for side in (baseline, treated))
    with pytest.raises(CostModelError, match=message):
        split(*sides)


def test_an_unknown_reference_is_named():
    with pytest.raises(CostModelError, match=r"reference = 'other'.*treated.*baseline"):
        split(*both(), reference="other")


def test_pairs_that_are_not_computable_are_left_out_by_name():
    unknown = Evidence(reasoning="unknown")
    baseline, treated = both()
    hidden = run("drop-b", X1[1], task="b", evidence={"reasoning": unknown.reasoning})
    result = split(baseline, [treated[0], hidden, treated[2]])
    assert result.baseline_ids == ("keep-a", "keep-c")
    assert [(left.baseline, left.treated) for left in result.left_out] == [("keep-b", "drop-b")]
    assert "reasoning unknown" in result.left_out[0].reason
    without = split([baseline[0], baseline[2]], [treated[0], treated[2]])
    assert result.total == without.total
    with pytest.raises(CostModelError, match=r"keep-b.*reasoning unknown"):
        split([baseline[1]], [hidden])


# --- the arithmetic alone --------------------------------------------------------------------------------------------

COST = st.floats(0, 1e22, allow_nan=False)
TABLE = st.lists(st.tuples(COST, COST, COST, COST), min_size=1, max_size=20)


@given(TABLE)
def test_costs_add_up_to_the_bit(rows):
    given_costs = np.array(rows).T
    result = decompose_costs(*given_costs)
    largest = float(given_costs.sum())
    for name, cost in zip(("c00", "c01", "c10", "c11"), given_costs, strict=True):
        assert np.abs(getattr(result, name) - cost).max() <= largest * 2.0**-52
    for part in (result.treated, result.baseline):
        np.testing.assert_array_equal(part.mechanical + part.behavioural, result.difference)
        for values in (part.mechanical, part.behavioural, result.difference):
            assert fractions.Fraction(values.sum()) == sum(map(fractions.Fraction, values.tolist()))


def test_rounding_alone_would_not_add_up():
    """Otherwise the common grid would be for nothing."""
    c00, c01, c11 = 0.1, 0.7, 0.3
    assert (c11 - c01) + (c01 - c00) != c11 - c00
    result = decompose_costs(c00, c01, 0.5, c11)
    assert result.treated.mechanical + result.treated.behavioural == result.difference


def test_whole_costs_below_2_to_the_51_are_kept_as_they_are():
    costs = [2.0**49 + 1, 2.0**49 + 3, 2.0**49 - 1, 2.0**48 + 7]
    result = decompose_costs(*costs)
    assert [result.c00, result.c01, result.c10, result.c11] == costs


def test_counts_stay_integers_of_any_size():
    big = 2**62
    result = decompose_costs(big, big + 1, 3, big - 5)
    assert (result.treated.mechanical, result.treated.behavioural, result.difference) == (-6, 1, -5)
    arrays = decompose_costs(*(np.array([value]) for value in (big, big + 1, 3, big - 5)))
    assert arrays.difference.dtype == np.int64
    assert arrays.baseline.mechanical[0] == 3 - big


def test_jit_and_vmap_equal_the_host_to_the_bit():
    costs = np.random.default_rng(2).lognormal(30, 2, (4, 9))
    host = decompose_costs(*costs)
    with jax.enable_x64(True):
        traced = jax.jit(decompose_costs)(*costs)
        rows = jax.vmap(decompose_costs)(*(jnp.asarray(cost)[:, None] for cost in costs))
    jax.tree.map(np.testing.assert_array_equal, traced, host)
    np.testing.assert_array_equal(rows.treated.mechanical + rows.treated.behavioural, rows.difference)
    closed = jax.jit(lambda: decompose_costs(*(costs * jnp.float32(1) for costs in costs)))
    with pytest.raises(CostModelError, match="float32"):
        closed()
    with pytest.raises(CostModelError, match="int32"):
        jax.jit(decompose_costs)(*np.arange(4))


def test_real_prices_beyond_2_to_the_53_add_up():
    long = [(60_000, 4_000, 900), *[(3_000, 5_000, 400)] * 30]
    result = split([run("k", long)], [run("d", [*long, (100, 10, 1)])], prices=QWEN36, w=3.0)
    assert result.total.cost.c00 > 2**53
    for part in (result.total.cost.treated, result.total.cost.baseline):
        assert part.mechanical + part.behavioural == result.difference


@pytest.mark.parametrize("bad", [{"c01": float("nan")}, {"c10": np.inf}])
def test_values_that_are_not_finite_are_named(bad):
    with pytest.raises(CostModelError, match=next(iter(bad))):
        decompose_costs(**{"c00": 1.0, "c01": 2.0, "c10": 3.0, "c11": 4.0} | bad)


def test_unequal_shapes_are_named():
    with pytest.raises(CostModelError, match=r"\(2,\).*\(3,\)"):
        decompose_costs(np.ones(2), np.ones(3), np.ones(2), np.ones(2))
