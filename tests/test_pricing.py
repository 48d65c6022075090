"""Costs against token-by-token loops, exactness under every x64 setting, and refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from costmodel_jax.architecture import architectures
from costmodel_jax.errors import CostModelError
from costmodel_jax.pricing import Capped, CountsLike, Prices, cost, cost_per_call


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Counted:
    """Stand-in for the library's counts."""

    prompt: Any
    reused: Any
    generated: Any
    processed: Any
    pairs: Any
    extra: Any
    ok: Any


def counted(calls: list[list[tuple[int, int, int]]], *, extra: float = 0.0, ok: list[bool] | None = None) -> Counted:
    """Counts of (P, R, G) calls, padded with zero calls; N and Q token by token."""
    width = max(len(run) for run in calls)
    padded = [run + [(0, 0, 0)] * (width - len(run)) for run in calls]
    pairs = [[sum(len(keys) for keys in seen(*call)) for call in run] for run in padded]
    grid = np.asarray(padded, np.int64).reshape(len(calls), width, 3)
    prompt, reused, generated = grid[..., 0], grid[..., 1], grid[..., 2]
    return Counted(
        prompt=prompt,
        reused=reused,
        generated=generated,
        processed=prompt - reused + generated,
        pairs=np.asarray(pairs, np.int64),
        extra=np.where(prompt > 0, extra, 0.0),
        ok=np.asarray([True] * len(calls) if ok is None else ok),
    )


def seen(prompt: int, reused: int, generated: int) -> list[range]:
    """The keys that each processed position meets: its own and all before it."""
    return [range(position) for position in range(reused + 1, prompt + generated + 1)]


def brute(run: list[tuple[int, int, int]], prices: Prices, w: float) -> float:
    """Cost of a run, position by position."""
    total = 0.0
    for prompt, reused, generated in run:
        for keys in seen(prompt, reused, generated):
            is_generated = len(keys) > prompt
            total += prices.linear * (w if is_generated else 1.0) + prices.state
            total += prices.head if is_generated else 0.0
            pair = prices.pair if prices.pair_generated is None or not is_generated else prices.pair_generated
            total += pair * len(keys)
            for capped in prices.windows:
                own = capped.pair if capped.pair_generated is None or not is_generated else capped.pair_generated
                total += own * min(len(keys), capped.window)
    return total


RUNS = [[(5, 0, 3), (12, 7, 4)], [(9, 9, 1)], [(3, 1, 0), (8, 2, 6), (20, 16, 2)]]
FULL = Prices(
    linear=1000.0,
    pair=7.0,
    windows=(Capped(window=4, pair=3.0), Capped(window=10, pair=5.0, pair_generated=11.0)),
    state=13.0,
    head=17.0,
    pair_generated=19.0,
)


@pytest.mark.parametrize("prices", [Prices(linear=1000.0, pair=1.0), FULL, replace(FULL, windows=())])
@pytest.mark.parametrize("w", [1.0, 1.5, 5])
def test_cost_equals_position_by_position(prices: Prices, w: float) -> None:
    counts = counted(RUNS)
    expected = [brute(run, prices, w) for run in RUNS]
    total = cost(counts, prices, w)
    assert isinstance(total, np.ndarray) and total.dtype == np.float64
    np.testing.assert_allclose(total, expected, rtol=1e-15)
    calls = cost_per_call(counts, prices, w)
    assert calls.shape == (3, 3) and calls.dtype == np.float64
    np.testing.assert_allclose(calls[0], [brute([call], prices, w) for call in RUNS[0]] + [0.0], rtol=1e-15)
    np.testing.assert_allclose(calls.sum(axis=-1), total, rtol=1e-15)


call = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 20)).map(
    lambda c: (max(c[:2]), min(c[:2]), c[2])
)


@settings(max_examples=40)
@given(st.lists(call, min_size=3, max_size=3), st.integers(1, 40), st.floats(1, 8))
def test_capped_pairs_in_closed_form(run: list[tuple[int, int, int]], window: int, w: float) -> None:
    prices = Prices(linear=3.0, pair=0.5, windows=(Capped(window=window, pair=2.0, pair_generated=9.0),))
    np.testing.assert_allclose(cost(counted([run]), prices, w), [brute(run, prices, w)], rtol=1e-14)


def test_figure_one_of_the_paper() -> None:
    prices = architectures["Qwen3.6-27B"].prices()
    keep, drop = (18_600, 18_100, 100), (16_600, 16_000, 100)  # (P, R, G) of the second call
    expected = {
        keep: (600, 11_040_300, 33.56),
        drop: (700, 11_445_350, 38.59),
        (18_600, 16_000, 100): (2_700, 46_846_350, 149.91),
    }
    for one, (processed, pairs, tera) in expected.items():
        counts = counted([[one]])
        assert (counts.processed.sum(), counts.pairs.sum()) == (processed, pairs)
        assert round(float(cost(counts, prices)[0]) / 1e12, 2) == tera


def test_w_multiplies_linear_work_of_generated_positions_only() -> None:
    counts = counted(RUNS)
    difference = cost(counts, FULL, 3.0) - cost(counts, FULL, 1.0)
    np.testing.assert_allclose(difference, 2.0 * 1000.0 * counts.generated.sum(axis=-1), rtol=1e-12)


def test_extra_flops_are_added_once() -> None:
    prices = Prices(linear=2.0, pair=1.0)
    plain, extra = cost(counted(RUNS), prices), cost(counted(RUNS, extra=1e6), prices)
    np.testing.assert_allclose(extra - plain, [2e6, 1e6, 3e6])


def test_runs_that_are_not_ok_have_no_cost() -> None:
    counts = counted(RUNS, ok=[True, False, True])
    assert np.isnan(cost(counts, FULL)).tolist() == [False, True, False]
    assert np.isnan(cost_per_call(counts, FULL)).all(axis=-1).tolist() == [False, True, False]


def test_single_run() -> None:
    counts = jax.tree.map(lambda leaf: leaf[0], counted(RUNS))
    assert cost(counts, FULL, 2.0) == cost(counted(RUNS), FULL, 2.0)[0]
    np.testing.assert_array_equal(cost_per_call(counts, FULL), cost_per_call(counted(RUNS), FULL)[0])


def test_stand_in_is_what_pricing_reads() -> None:
    assert isinstance(counted(RUNS), CountsLike)


# Exactness


def large() -> Counted:
    """One call whose pairs pass 2**31 and whose FLOPs pass 2**53."""
    prompt = 3_000_001
    zero = np.zeros((1, 1), np.int64)
    return Counted(
        prompt=zero + prompt,
        reused=zero,
        generated=zero,
        processed=zero + prompt,
        pairs=zero + prompt * (prompt + 1) // 2,
        extra=np.zeros((1, 1)),
        ok=np.asarray([True]),
    )


@pytest.mark.parametrize("x64", [False, True])
def test_large_counts_are_exact_whatever_the_flag(x64: bool) -> None:
    prompt = 3_000_001
    window = 2_500_000_003  # past 32 bits: no pair is capped
    prices = Prices(linear=1.0, pair=1.0, windows=(Capped(window=window, pair=1.0),))
    expected = prompt + prompt * (prompt + 1)
    with jax.enable_x64(x64):
        assert int(cost(large(), prices)[0]) == expected
        assert int(cost_per_call(large(), prices)[0, 0]) == expected
        assert jnp.zeros(1, int).dtype == (jnp.int64 if x64 else jnp.int32)  # the caller's setting, as before


@pytest.mark.parametrize("x64", [False, True])
def test_under_jit_with_counts_closed_over(x64: bool) -> None:
    prices = architectures["Qwen3.6-27B"].prices(state=True, head=True)
    expected = cost(large(), prices, 1.5)
    with jax.enable_x64(x64):
        total = jax.jit(lambda w: cost(large(), prices, w))(1.5)
    assert total.dtype == jnp.float64
    np.testing.assert_array_equal(np.asarray(total), expected)


def test_under_jit_with_arguments() -> None:
    with jax.enable_x64(True):
        total = jax.jit(cost)(counted(RUNS), FULL, 2.0)
    np.testing.assert_allclose(np.asarray(total), cost(counted(RUNS), FULL, 2.0), rtol=1e-15)


def test_narrowed_arguments_are_refused() -> None:
    with pytest.raises(CostModelError, match=r"counts\.prompt is int32.*close over"):
        jax.jit(cost)(large(), FULL)
    with pytest.raises(CostModelError, match=r"prices\.linear is float32.*close over"):
        jax.jit(lambda prices: cost(large(), prices))(FULL)


@pytest.mark.parametrize("x64", [False, True])
def test_under_vmap_over_w(x64: bool) -> None:
    counts, ws = counted(RUNS), np.asarray([1.0, 1.1, 4.0])
    expected = np.stack([cost(counts, FULL, float(w)) for w in ws])
    with jax.enable_x64(x64):
        total = jax.vmap(lambda w: cost(counts, FULL, w))(ws)
    assert total.dtype == jnp.float64
    np.testing.assert_allclose(np.asarray(total), expected, rtol=1e-15 if x64 else 1e-6)  # w itself is the caller's


def over_counts() -> Any:
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), large(), large())
    return jax.vmap(lambda counts: cost(counts, Prices(linear=1.0, pair=1.0)))(stacked)


def over_prices() -> Any:
    prices = Prices(linear=np.asarray([48_701_112_321.0, 2.0]), pair=np.zeros(2))
    axes = Prices(linear=0, pair=0, state=None, head=None)
    return jax.vmap(lambda one: cost(large(), one), in_axes=(axes,))(prices)


def test_under_vmap_over_counts_and_prices() -> None:
    with jax.enable_x64(True):
        assert [int(total) for total in over_counts()[:, 0]] == [3_000_001 * 3_000_002 // 2 + 3_000_001] * 2
        assert over_prices()[:, 0].tolist() == [3_000_001 * 48_701_112_321.0, 6_000_002.0]
    with pytest.raises(CostModelError, match=r"counts\.prompt is int32.*enable_x64"):
        over_counts()
    with pytest.raises(CostModelError, match=r"prices\.linear is float32.*enable_x64"):
        over_prices()


def test_gradient_with_respect_to_a_price_is_its_count() -> None:
    counts = counted(RUNS)
    with jax.enable_x64(True):
        gradient = jax.grad(lambda prices: jnp.sum(cost(counts, prices)))(Prices(linear=1.0, pair=1.0))
    assert (float(gradient.linear), float(gradient.pair)) == (counts.processed.sum(), counts.pairs.sum())


def test_prices_are_a_pytree_with_a_static_label() -> None:
    leaves, treedef = jax.tree.flatten(replace(FULL, label="windows"))
    assert len(leaves) == 10
    assert jax.tree.unflatten(treedef, leaves).label == "windows"
    assert jax.tree.map(lambda _: None, FULL).linear is None
    assert jax.tree.map(lambda leaf: leaf * 2, FULL).windows[0].window == 8


# Prices of architectures, priced


def test_windows_of_gpt_oss_saturate() -> None:
    model = architectures["gpt-oss-20b"]
    counts = counted([[(200, 0, 0)]])
    capped = sum(min(position, 128) for position in range(1, 201))
    extra = cost(counts, model.prices(windowed=True)) - cost(counts, model.prices())
    np.testing.assert_allclose(extra, [196_608.0 * capped])


def test_absorbed_decoding_prices_generated_pairs() -> None:
    model = architectures["GLM-4.7-Flash"]
    counts = counted([[(50, 20, 5)]])
    decoded = sum(range(51, 56))
    extra = cost(counts, model.prices(absorbed=True)) - cost(counts, model.prices())
    np.testing.assert_allclose(extra, [(2_045_440.0 - 962_560.0) * decoded])


# Refusals


@pytest.mark.parametrize("w", [0.5, float("nan"), np.asarray([1.0, 2.0])])
def test_bad_w(w: Any) -> None:
    with pytest.raises(CostModelError, match="w "):
        cost(counted(RUNS), FULL, w)


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_bad_prices(price: float) -> None:
    given: dict[str, Any] = {"linear": 1.0, "pair": 1.0}
    for name in ("linear", "pair", "state", "head", "pair_generated"):
        with pytest.raises(CostModelError, match=rf"Prices\.{name} = {price}"):
            Prices(**(given | {name: price}))
    with pytest.raises(CostModelError, match="Capped"):
        Capped(window=1, pair=price)


def test_bad_windows() -> None:
    with pytest.raises(CostModelError, match="window = 0"):
        Capped(window=0, pair=1.0)
    with pytest.raises(CostModelError, match="one number per price"):
        cost(counted(RUNS), Prices(linear=np.ones(2), pair=1.0))
