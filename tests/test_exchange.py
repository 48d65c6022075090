"""The closed forms against the golden numbers and against two alternatives served token by token."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel_jax import exchange
from costmodel_jax.errors import CostModelError
from costmodel_jax.exchange import (
    attention_share,
    calls_to_payback,
    edit_break_even,
    edit_delta,
    exchange_rate,
    keep_delta,
    rebuild_cost,
    regeneration_rate,
    retention_horizon,
    summary_request_cost,
)
from costmodel_jax.pricing import Capped, Prices

QWEN36 = Prices(linear=48_701_112_320, pair=393_216)
QWEN36_ATTENTION = Prices(linear=47_647_293_440, pair=1_572_864)
SMALL = Prices(linear=10, pair=1)
FREE_ATTENTION = Prices(linear=10, pair=0)


# --- golden values ---------------------------------------------------------------------------------------------------

# c in GFLOP as printed to four decimals, beta, P* as printed.
PRINTED_RATES = {
    "Qwen3-0.6B": (0.8808, 229_376, 3_840),
    "Qwen3-1.7B": (2.8186, 229_376, 12_288),
    "Qwen3-4B": (7.2666, 589_824, 12_320),
    "Qwen3-8B": (13.8915, 589_824, 23_552),
    "Qwen3-32B": (62.4112, 2_097_152, 29_760),
    "Qwen3-30B-A3B": (5.4610, 786_432, 6_944),
    "SmolLM2-135M": (0.2123, 69_120, 3_072),
    "GLM-4.7-Flash": (6.5242, 962_560, 6_778),
}


def test_exchange_rate_of_the_papers_model():
    assert exchange_rate(QWEN36) == pytest.approx(123_853.3, abs=0.05)
    assert exchange_rate(QWEN36_ATTENTION) == pytest.approx(30_293.3, abs=0.05)


@pytest.mark.parametrize("name", PRINTED_RATES)
def test_exchange_rate_of_printed_prices(name):
    giga, pair, expected = PRINTED_RATES[name]
    slack = 0.00005e9 / pair + 0.5  # both sides were printed rounded
    assert exchange_rate(Prices(linear=giga * 1e9, pair=pair)) == pytest.approx(expected, abs=slack)


def test_regeneration_rate_at_its_corners():
    rate = exchange_rate(QWEN36)
    assert regeneration_rate(QWEN36, w=1.0, rho=1.0) == pytest.approx(rate)
    assert regeneration_rate(QWEN36, w=1.0, rho=0.0) == 0.0
    assert regeneration_rate(QWEN36, w=3.0, rho=0.5) == pytest.approx(2.5 * rate)


# Second call of the paper's first figure: prefix reused, positions processed, pairs, TFLOP.
FIGURE_1 = {
    "keep, generation reused": (18_100, 600, 11_040_300, 33.56),
    "drop": (16_000, 700, 11_445_350, 38.59),
    "keep, prompt only": (16_000, 2_700, 46_846_350, 149.91),
    "keep, no reuse": (0, 18_700, 174_854_350, None),
    "drop, no reuse": (0, 16_700, 139_453_350, None),
}


@pytest.mark.parametrize("bar", FIGURE_1)
def test_figure_1(bar):
    reused, processed, pairs, tera = FIGURE_1[bar]
    cost = QWEN36.linear * processed + QWEN36.pair * pairs
    assert rebuild_cost(QWEN36, H=reused, n=processed) == cost
    assert rebuild_cost(Prices(linear=0, pair=1), H=reused, n=processed) == pairs
    if tera is not None:
        assert cost / 1e12 == pytest.approx(tera, abs=0.005)


def test_keep_delta_is_the_gap_between_the_bars_of_figure_1():
    bars = {name: QWEN36.linear * n + QWEN36.pair * q for name, (_, n, q, _) in FIGURE_1.items()}
    block = {"H": 16_000, "r": 2_000, "a": 100, "L": 600}
    assert keep_delta(QWEN36, **block, rho=1) == bars["keep, generation reused"] - bars["drop"]
    assert keep_delta(QWEN36, **block, rho=0) == bars["keep, prompt only"] - bars["drop"]


@pytest.mark.parametrize(("a", "expected", "slack"), [(7, 503.5, 0.05), (4_000, 291_708, 0.5)])
def test_retention_horizon(a, expected, slack):
    assert retention_horizon(QWEN36, H=20_000, r=2_000, a=a) == pytest.approx(expected, abs=slack)


def test_compaction():
    edit = {"H": 10, "b": 100, "s": 20, "tail": 30}
    request = {"history": 140, "instruction": 5, "summary": 20}
    aligned = summary_request_cost(SMALL, **request, aligned=True)
    apart = summary_request_cost(SMALL, **request, aligned=False)
    assert rebuild_cost(SMALL, H=10, n=50) == 2_275
    assert (aligned, apart) == (4_075, 15_345)
    assert edit_break_even(SMALL, **edit, k_gen=0) == 28.4375
    assert edit_break_even(SMALL, **edit, k_gen=aligned) == 79.375
    assert edit_break_even(SMALL, **edit, k_gen=apart) == 220.25
    assert edit_delta(SMALL, **edit, k_gen=aligned, L=79.375) == 0.0
    assert edit_delta(SMALL, **edit, k_gen=aligned, L=0) == 2_275 + 4_075


def test_a_summary_request_may_share_only_a_part_of_the_prefix():
    request = {"history": 140, "instruction": 5, "summary": 20}
    part = summary_request_cost(SMALL, **request, aligned=False, reused=48)
    assert part == sum(10 + position for position in range(49, 166))
    assert summary_request_cost(SMALL, **request, aligned=True, reused=48) == part
    assert summary_request_cost(SMALL, **request, aligned=False, reused=48, w=3.0) == part + 2 * 10 * 20


def test_half_of_the_compute_is_attention_at_the_exchange_rate():
    assert attention_share(QWEN36, length=exchange_rate(QWEN36)) == pytest.approx(0.5, abs=1e-12)
    assert attention_share(SMALL, length=30) == 0.75
    assert attention_share(FREE_ATTENTION, length=1_000) == 0.0
    assert attention_share(Prices(linear=0, pair=0), length=0) == 0.0


def test_payback_is_the_break_even_in_calls_with_its_band():
    edit = {"H": 10, "b": 100, "s": 20, "tail": 30, "k_gen": 4_075}
    band = calls_to_payback(SMALL, **edit, positions_per_call=(5, 10, 40))
    assert band.positions == 79.375
    assert (band.fewest, band.expected, band.most) == (79.375 / 40, 7.9375, 15.875)
    point = calls_to_payback(SMALL, **edit, positions_per_call=10)
    assert point.fewest == point.expected == point.most == 7.9375
    never = calls_to_payback(SMALL, **edit | {"s": 100}, positions_per_call=(5, 10, 40))
    assert never.positions == never.fewest == never.most == np.inf


def test_free_attention_gives_infinite_horizons_or_none():
    assert exchange_rate(FREE_ATTENTION) == np.inf
    assert retention_horizon(FREE_ATTENTION, H=5, r=2, a=3) == np.inf
    assert retention_horizon(FREE_ATTENTION, H=5, r=2, a=0) == 0.0
    assert edit_break_even(FREE_ATTENTION, H=5, b=9, s=2, tail=3, k_gen=0) == np.inf
    assert regeneration_rate(FREE_ATTENTION, w=1.0, rho=0.0) == 0.0
    assert regeneration_rate(FREE_ATTENTION, w=2.0, rho=0.0) == np.inf


# --- kinds of numbers ------------------------------------------------------------------------------------------------

# One valid call of every closed form.
FORMS = {
    exchange_rate: {},
    regeneration_rate: {"w": 2.0, "rho": 0.25},
    rebuild_cost: {"H": 90_000, "n": 70_000},
    keep_delta: {"H": 20_000, "r": 2_000, "a": 7, "L": 300, "rho": 1},
    retention_horizon: {"H": 20_000, "r": 2_000, "a": 7},
    edit_delta: {"H": 10_000, "b": 5_000, "s": 200, "tail": 900, "L": 40_000, "k_gen": 1e12},
    edit_break_even: {"H": 10_000, "b": 5_000, "s": 200, "tail": 900, "k_gen": 1e12},
    summary_request_cost: {"history": 140, "instruction": 5, "summary": 20, "aligned": True, "reused": 128, "w": 2.0},
    attention_share: {"length": 70_000},
}


def numbers(arguments):
    return {name: value for name, value in arguments.items() if name != "aligned"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_python_numbers_give_a_python_float(form):
    value = form(QWEN36, **FORMS[form])
    assert type(value) is float
    as_scalars = {name: np.float32(v) for name, v in numbers(FORMS[form]).items()}
    assert type(form(QWEN36, **FORMS[form] | as_scalars)) is float


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_arrays_give_float64_whatever_their_type_and_the_callers_setting(form, array):
    prices = Prices(linear=QWEN36.linear, pair=array(np.float32(QWEN36.pair)))
    value = form(prices, **FORMS[form])
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.float64
    assert value.shape == ()
    assert value == form(QWEN36, **FORMS[form])
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_jit_agrees_under_a_32_bit_caller(form):
    arguments = {name: np.float32(value) for name, value in numbers(FORMS[form]).items()}
    fixed = {name: value for name, value in FORMS[form].items() if name not in arguments}
    small = Prices(linear=np.float32(2**20), pair=np.float32(384))

    @jax.jit
    def compiled(prices, arguments):
        return form(prices, **arguments, **fixed)

    value = compiled(small, arguments)
    assert value.dtype == jnp.float64
    assert float(value) == pytest.approx(form(small, **arguments, **fixed), rel=1e-15)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_gradients_match_finite_differences(form):
    def of_linear(linear):
        return form(Prices(linear=linear, pair=393_216.0), **FORMS[form])

    with jax.enable_x64(True):
        slope = float(jax.grad(of_linear)(jnp.float64(4e10)))
    step = 1e6
    assert slope == pytest.approx((of_linear(4e10 + step) - of_linear(4e10 - step)) / (2 * step), rel=1e-4, abs=1e-18)


def test_gradients_stay_finite_where_an_edit_never_pays():
    def positions(s):
        return jnp.where(s < 5.0, edit_break_even(SMALL, H=10, b=5, s=s, tail=2, k_gen=0), 0.0)

    with jax.enable_x64(True):
        assert jax.grad(positions)(jnp.float64(5.0)) == 0.0
        assert jnp.isfinite(jax.grad(positions)(jnp.float64(4.0)))


def test_vmap_over_prices_and_lengths_equals_a_loop():
    models = [Prices(linear=2.0**30, pair=3e5), Prices(linear=2.0**35, pair=4e5)]  # exact in 32 bits
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    lengths = jnp.asarray([10, 2_000, 300_000])
    one_model = jax.vmap(lambda prices, H: retention_horizon(prices, H=H, r=50, a=10), (None, 0))
    table = jax.vmap(one_model, (0, None))(stacked, lengths)
    loop = [[retention_horizon(prices, H=int(H), r=50, a=10) for H in lengths] for prices in models]
    np.testing.assert_allclose(np.asarray(table), loop, rtol=1e-15)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_arrays_broadcast_into_a_heat_map(array):
    H, a = array([[0], [1_000]]), array([1, 10, 100])
    grid = retention_horizon(QWEN36, H=H, r=50, a=a)
    assert grid.shape == (2, 3)
    assert grid[1, 2] == retention_horizon(QWEN36, H=1_000, r=50, a=100)
    traced = jax.jit(lambda H, a: retention_horizon(QWEN36, H=H, r=50, a=a))(H, a)
    np.testing.assert_allclose(np.asarray(traced), grid, rtol=1e-15)


def test_pairs_beyond_32_bits_are_exact_under_a_32_bit_jit():
    form = jax.jit(lambda H, n: rebuild_cost(Prices(linear=0, pair=1), H, n))
    assert int(form(90_000, 70_000)) == 90_000 * 70_000 + 70_000 * 70_001 // 2


def test_payback_is_a_pytree_under_jit():
    edit = {"H": 10, "b": 100, "s": 20, "tail": 30, "k_gen": 4_075}
    band = jax.jit(lambda prices, per_call: calls_to_payback(prices, **edit, positions_per_call=(5, per_call, 40)))(
        Prices(linear=10.0, pair=1.0), 10.0
    )
    assert (float(band.expected), float(band.most)) == (7.9375, 15.875)


def test_state_and_head_are_paid_per_position():
    paid = Prices(linear=10, pair=1, state=4, head=100)
    plain = Prices(linear=14, pair=1)
    assert exchange_rate(paid) == exchange_rate(plain) == 14
    assert rebuild_cost(paid, H=3, n=5) == rebuild_cost(plain, H=3, n=5)
    request = {"history": 9, "instruction": 2, "summary": 3, "aligned": True, "reused": 8, "w": 3.0}
    assert summary_request_cost(paid, **request) == sum(14 + i for i in range(9, 15)) + 3 * (2 * 10 + 100)
    assert regeneration_rate(paid, w=3.0, rho=0.5) == 3 * 10 + 4 + 100 - 0.5 * 14


# --- refusals --------------------------------------------------------------------------------------------------------

BAD = [
    (regeneration_rate, {"w": 0.5}, "w = 0.5"),
    (regeneration_rate, {"rho": 1.5}, "rho = 1.5"),
    (regeneration_rate, {"rho": -0.1}, "rho = -0.1"),
    (rebuild_cost, {"H": -1}, "H = -1"),
    (rebuild_cost, {"n": float("nan")}, "n = nan"),
    (rebuild_cost, {"n": np.array([4, 5, -6])}, r"n\[2\] = -6"),
    (keep_delta, {"L": -3}, "L = -3"),
    (keep_delta, {"rho": 0.5}, "rho = 0.5"),
    (keep_delta, {"rho": 2}, "rho = 2"),
    (retention_horizon, {"r": 0}, "r = 0"),
    (edit_delta, {"L": float("inf")}, "L = inf"),
    (edit_break_even, {"k_gen": -1.0}, "k_gen = -1"),
    (edit_break_even, {"tail": jnp.asarray([-2])}, r"tail\[0\] = -2"),
    (summary_request_cost, {"reused": 146}, "reused = 146"),
    (summary_request_cost, {"summary": -1}, "summary = -1"),
    (summary_request_cost, {"w": 0.0}, "w = 0"),
    (attention_share, {"length": -1}, "length = -1"),
]


@pytest.mark.parametrize(("form", "change", "message"), BAD)
def test_wrong_values_are_named(form, change, message):
    with pytest.raises(CostModelError, match=message):
        form(QWEN36, **FORMS[form] | change)


@pytest.mark.parametrize("bad", [{"linear": -1.0}, {"pair": -1.0}, {"pair": float("nan")}])
def test_wrong_prices_are_named(bad):
    prices = Prices(**{"linear": 10.0, "pair": 1.0} | {name: np.asarray(value) for name, value in bad.items()})
    with pytest.raises(CostModelError, match=f"prices.{next(iter(bad))}"):
        exchange_rate(prices)


@pytest.mark.parametrize("extension", [{"windows": (Capped(window=4, pair=1.0),)}, {"pair_generated": 2.0}])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_prices_without_a_closed_form_are_refused(form, extension):
    with pytest.raises(CostModelError, match=next(iter(extension))):
        form(Prices(linear=10, pair=1, **extension), **FORMS[form])


@pytest.mark.parametrize("per_call", [0, (0, 5, 9), (5, 4, 9), (1, 5, 4)])
def test_a_band_must_ascend_from_a_positive_number(per_call):
    with pytest.raises(CostModelError, match="positions_per_call"):
        calls_to_payback(SMALL, 10, 100, 20, 30, 0, per_call)


def test_concrete_values_are_checked_under_jit_and_a_traced_mix_of_rules_is_not_a_number():
    with pytest.raises(CostModelError, match="a = -1"):
        jax.jit(lambda H: keep_delta(SMALL, H=H, r=1, a=-1, L=1, rho=1))(4)
    deltas = jax.jit(lambda rho: keep_delta(SMALL, H=3, r=1, a=1, L=1, rho=rho))(jnp.asarray([0.0, 0.5, 1.0]))
    assert np.isnan(deltas).tolist() == [False, True, False]


def test_every_closed_form_takes_keywords_and_is_covered_above():
    public = {getattr(exchange, name) for name in exchange.__all__}
    functions = {value for value in public if inspect.isfunction(value)}
    assert functions == {*FORMS, calls_to_payback}
