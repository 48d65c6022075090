"""Paired bootstrap: the same numbers as plain NumPy on the same draws, and intervals that cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from costmodel_jax.errors import CostModelError
from costmodel_jax.statistics import paired_bootstrap, resample_indices

STATISTICS = ["ratio_of_totals", "median_ratio", "solved_difference"]


def plain(statistic, treated, baseline):
    """The statistic of one sample of runs, by its definition."""
    if statistic == "ratio_of_totals":
        return treated.sum() / baseline.sum()
    if statistic == "median_ratio":
        return np.median(treated / baseline)
    return 100 * (treated.mean() - baseline.mean())


def sample(statistic, runs=23, seed=5):
    generator = np.random.default_rng(seed)
    if statistic == "solved_difference":
        return (generator.random(runs) < 0.7).astype(float), (generator.random(runs) < 0.5).astype(float)
    baseline = generator.lognormal(30.0, 1.0, runs)
    return baseline * generator.lognormal(-0.1, 0.3, runs), baseline


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("clustered", [False, True], ids=["runs", "chains"])
def test_equals_numpy_on_the_same_draws(statistic, clustered):
    treated, baseline = sample(statistic)
    labels = np.array([f"chain-{i % 7 if i < 20 else 0}" for i in range(23)]) if clustered else np.arange(23)
    names = sorted(set(labels.tolist()), key=repr) if clustered else np.arange(23)
    draws = resample_indices(len(names), resamples=400, seed=11)
    assert draws.shape == (400, len(names))
    values = []
    for drawn in draws:
        rows = np.concatenate([np.flatnonzero(labels == names[k]) for k in drawn])
        values.append(plain(statistic, treated[rows], baseline[rows]))
    low, high = np.quantile(values, [0.05, 0.95])
    got = paired_bootstrap(
        treated, baseline, labels if clustered else None, statistic, resamples=400, seed=11, level=0.9
    )
    assert got.estimate == pytest.approx(plain(statistic, treated, baseline), rel=1e-14, abs=1e-14)
    assert (got.low, got.high) == pytest.approx((low, high), rel=1e-12, abs=1e-12)
    assert (got.clusters, got.resamples, got.seed, got.level) == (len(names), 400, 11, 0.9)
    assert got.statistic == statistic


@pytest.mark.parametrize("runs", [22, 23])
def test_the_median_of_an_even_and_of_an_odd_number_of_runs(runs):
    treated, baseline = sample("median_ratio", runs)
    got = paired_bootstrap(treated, baseline, statistic="median_ratio", resamples=400)
    assert got.estimate == np.median(treated / baseline)


def test_draws_are_with_replacement_uniform_and_repeatable():
    draws = resample_indices(5, resamples=400, seed=3)
    assert draws.min() == 0
    assert draws.max() == 4
    share = np.bincount(draws.ravel(), minlength=5) / draws.size
    assert np.abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / draws.size)
    np.testing.assert_array_equal(draws, resample_indices(5, resamples=400, seed=3))
    np.testing.assert_array_equal(draws[:100], resample_indices(5, resamples=100, seed=3))
    assert (draws != resample_indices(5, resamples=400, seed=4)).any()


@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_chunk_does_not_change_a_bit(statistic):
    treated, baseline = sample(statistic)
    intervals = [
        paired_bootstrap(treated, baseline, statistic=statistic, resamples=100, seed=1, chunk=chunk)
        for chunk in (1, 7, 64)
    ]
    assert all(interval == intervals[0] for interval in intervals)


def test_the_callers_precision_does_not_change_a_bit():
    treated, baseline = sample("ratio_of_totals")
    plain_setting = paired_bootstrap(treated, baseline, resamples=100)
    with jax.enable_x64(True):
        assert paired_bootstrap(treated, baseline, resamples=100) == plain_setting
    assert type(plain_setting.low) is float


def test_order_of_runs_and_names_of_chains_do_not_matter_to_the_estimate():
    treated, baseline = sample("median_ratio")
    order = np.random.default_rng(0).permutation(23)
    one = paired_bootstrap(treated, baseline, statistic="median_ratio", resamples=400)
    other = paired_bootstrap(treated[order], baseline[order], statistic="median_ratio", resamples=400)
    assert one.estimate == other.estimate


def test_pairs_move_together():
    baseline = np.random.default_rng(0).lognormal(0.0, 2.0, 40)
    got = paired_bootstrap(0.5 * baseline, baseline, resamples=200)
    assert (got.estimate, got.low, got.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_chain_repeated_by_its_runs_is_not_more_evidence():
    treated, baseline = sample("ratio_of_totals", 12)
    once = paired_bootstrap(treated, baseline, resamples=400)
    labels = [f"task {i}" for i in range(12) for _ in range(9)]
    many = paired_bootstrap(np.repeat(treated, 9), np.repeat(baseline, 9), labels, resamples=400)
    assert many.clusters == 12
    naive = paired_bootstrap(np.repeat(treated, 9), np.repeat(baseline, 9), resamples=400)
    assert naive.high - naive.low < 0.6 * (many.high - many.low)
    assert many.high - many.low == pytest.approx(once.high - once.low, rel=0.25)


def test_labels_may_be_anything_hashable():
    treated, baseline = sample("ratio_of_totals", 4)
    kinds = [[("a", None), ("a", 1), ("a", None), "b"], jnp.asarray([0, 1, 0, 2]), [3, 5, 3, 9]]
    intervals = [paired_bootstrap(treated, baseline, labels, resamples=50) for labels in kinds]
    assert [interval.clusters for interval in intervals] == [3, 3, 3]
    assert intervals[1] == intervals[2]


def test_solved_flags_may_be_booleans_and_come_in_points():
    got = paired_bootstrap(
        np.array([True, True, False, True]), [False, True, False, False], statistic="solved_difference", resamples=20
    )
    assert got.estimate == 50.0
    assert -100 <= got.low <= got.high <= 100


def test_coverage_of_chained_runs():
    """Chains of three runs with a common factor: about 95% of the intervals hold the true ratio."""
    generator = np.random.default_rng(17)
    chains, length, trials = 40, 3, 200
    labels = np.repeat(np.arange(chains), length)
    covered = 0
    for seed in range(trials):
        factor = np.repeat(generator.lognormal(-0.5 * 0.4**2, 0.4, chains), length)  # mean 1
        baseline = generator.gamma(4.0, 1.0, chains * length)
        interval = paired_bootstrap(0.9 * factor * baseline, baseline, labels, resamples=400, seed=seed)
        covered += interval.low <= 0.9 <= interval.high
    assert 0.88 <= covered / trials <= 0.99


@pytest.mark.parametrize("statistic", STATISTICS)
def test_traced_values_give_the_same_interval(statistic):
    treated, baseline = (values.astype(np.float32) for values in sample(statistic))
    labels = np.arange(23) % 9
    host = paired_bootstrap(treated, baseline, labels, statistic, resamples=64)
    traced = jax.jit(lambda t, b: paired_bootstrap(t, b, labels, statistic, resamples=64))(treated, baseline)
    np.testing.assert_allclose(
        [float(traced.estimate), float(traced.low), float(traced.high)],
        [host.estimate, host.low, host.high],
        rtol=1e-12,
    )
    assert traced.estimate.dtype == jnp.float64


ONES = np.ones(4)
BAD = [
    ({"baseline": np.ones(5)}, "4 .* 5"),
    ({"treated": np.ones((2, 2))}, "treated .*one value per run"),
    ({"treated": np.array([1, 1, np.nan, 1])}, r"treated\[2\].*not computable"),
    ({"baseline": np.array([1, np.inf, 1, 1])}, r"baseline\[1\]"),
    ({"baseline": np.array([1, 1, 1, 0.0])}, r"baseline\[3\] = 0"),
    ({"baseline": np.array([1, 1, 1, 0.0]), "statistic": "median_ratio"}, r"baseline\[3\] = 0"),
    ({"treated": np.array([-1, 1, 1, 1.0])}, r"treated\[0\] = -1"),
    ({"treated": np.array([2, 1, 1, 1.0]), "statistic": "solved_difference"}, r"treated\[0\] = 2"),
    ({"cluster": ["a", "a", "a", "a"]}, "one cluster"),
    ({"treated": np.ones(1), "baseline": np.ones(1)}, "one cluster"),
    ({"treated": np.ones(0), "baseline": np.ones(0)}, "no runs"),
    ({"cluster": ["a", "b", "a"]}, "cluster.*3.*4"),
    ({"cluster": ["a", None, "a", "b"]}, r"cluster\[1\]"),
    ({"cluster": np.array([1.0, np.nan, 1.0, 2.0])}, r"cluster\[1\] is nan"),
    ({"statistic": "mean"}, "statistic.*mean.*ratio_of_totals"),
    ({"resamples": 0}, "resamples = 0"),
    ({"chunk": 0}, "chunk = 0"),
    ({"level": 1.0}, "level = 1"),
    ({"level": 95.0}, "level = 95"),
    ({"seed": -1}, "seed = -1"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_wrong_input_is_named(change, message):
    with pytest.raises(CostModelError, match=message):
        paired_bootstrap(**{"treated": ONES, "baseline": ONES} | change)
