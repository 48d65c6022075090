"""Paired bootstrap intervals over tasks or whole chains, for costs and for solved flags."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, UInt32

from costmodel_jax.errors import CostModelError
from costmodel_jax.precision import has_tracer

__all__ = ["Interval", "paired_bootstrap", "resample_indices"]

Runs: TypeAlias = (
    Num[np.ndarray, "..."] | Num[Array, "..."] | Bool[np.ndarray, "..."] | Bool[Array, "..."] | Sequence[Any]
)
Scalar: TypeAlias = float | Float[Array, ""]

_STATISTICS = ("ratio_of_totals", "median_ratio", "solved_difference")


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["estimate", "low", "high"],
    meta_fields=["level", "statistic", "clusters", "resamples", "seed"],
)
@dataclass(frozen=True, kw_only=True)
class Interval:
    """A paired estimate and its percentile bootstrap interval, with what it takes to make it again."""

    estimate: Scalar  # the statistic of the data as they are: a ratio, or percentage points
    low: Scalar  # the (1 - level) / 2 quantile of the resampled statistic
    high: Scalar  # the (1 + level) / 2 quantile
    level: float
    statistic: str
    clusters: int  # labels resampled, not runs
    resamples: int
    seed: int


def paired_bootstrap(
    treated: Runs,
    baseline: Runs,
    cluster: Sequence[Any] | np.ndarray | Array | None = None,
    statistic: str = "ratio_of_totals",
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    *,
    chunk: int = 64,
) -> Interval:
    """Percentile interval of a paired comparison, by resampling clusters with replacement, both sides together.

    Statistics, over the runs i of a resample:

    - ``ratio_of_totals``: sum_i treated_i / sum_i baseline_i
    - ``median_ratio``: median_i (treated_i / baseline_i)
    - ``solved_difference``: 100 (mean_i treated_i - mean_i baseline_i), percentage points

    The interval runs between the (1 - level) / 2 and (1 + level) / 2 quantiles (linear between order statistics) of the
    statistic over ``resamples`` draws (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13). A cluster
    drawn twice counts twice with all its runs, so runs of one task or chain are never taken for independent evidence.
    Percentile intervals are somewhat narrow where there are fewer than about twenty clusters.

    Args:
      treated: one cost, or one solved flag, per run [runs].
      baseline: the same run by run under the baseline [runs].
      cluster: label of each run's task or chain [runs], anything hashable; None makes every run its own cluster.
      statistic: as above.
      resamples: number of draws.
      seed: the draws depend on it and on the number of clusters alone, never on the chunk or on the caller's x64 flag.
      level: of the interval, in (0, 1).
      chunk: draws evaluated at once; memory is of the order of chunk x runs float64.

    Returns:
      An ``Interval`` of Python floats, or of traced float64 values where treated or baseline is traced (then their
      values cannot be checked).

    Raises:
      CostModelError: lengths that differ, fewer than two clusters, a value that is not finite (a run that is not
        computable has NaN), a baseline cost that is not positive, a flag outside [0, 1], or a setting out of range.
    """
    _check_settings(statistic, resamples, seed, level, chunk)
    for name, side in (("treated", treated), ("baseline", baseline)):
        if np.ndim(side) != 1:
            raise CostModelError(f"{name} has shape {np.shape(side)}: give one value per run, a vector")
    runs = len(treated)
    if runs != len(baseline):
        raise CostModelError(
            f"treated has {runs} runs and baseline has {len(baseline)}: give the same runs in one order"
        )
    for name, side in (("treated", treated), ("baseline", baseline)):
        _check_values(name, side, statistic)
    members, clusters = _members(cluster, runs)
    with jax.enable_x64(True):
        values = _interval(
            _float64(treated), _float64(baseline), jnp.asarray(members, jnp.int32),
            _words(seed), jnp.asarray([(1.0 - level) / 2.0, (1.0 + level) / 2.0], jnp.float64),
            statistic=statistic, clusters=clusters, resamples=resamples, chunk=chunk,
        )  # fmt: skip
        estimate, low, high = values if has_tracer(values) else (float(value) for value in values)
    return Interval(
        estimate=estimate, low=low, high=high, level=level, statistic=statistic, clusters=clusters,
        resamples=resamples, seed=seed,
    )  # fmt: skip


def resample_indices(clusters: int, resamples: int, seed: int) -> Int[np.ndarray, "resamples clusters"]:
    """The draws ``paired_bootstrap`` uses: row i holds the clusters of resample i, numbered in label order."""
    with jax.enable_x64(True):
        return np.asarray(_draws(_words(seed), clusters=clusters, resamples=resamples))


@functools.partial(jax.jit, static_argnames=("clusters", "resamples"))
def _draws(words: UInt32[Array, " words"], *, clusters: int, resamples: int) -> Int[Array, "resamples clusters"]:
    return _in_chunks(lambda index: _draw(words, index, clusters), resamples, 64)


def _float64(side: Runs) -> Float[Array, " runs"]:
    return jnp.asarray(side if has_tracer(side) else np.asarray(side, np.float64), jnp.float64)


def _in_chunks(function: Callable[[Int[Array, ""]], Any], resamples: int, chunk: int) -> Array:
    """``function`` of every resample index. Whole chunks only: a remainder would compile the function twice."""
    chunk = min(chunk, resamples)
    padded = -(-resamples // chunk) * chunk
    values: Array = jax.lax.map(function, jnp.arange(padded, dtype=jnp.int32), batch_size=chunk)
    return values[:resamples]


def _words(seed: int) -> UInt32[np.ndarray, " words"]:
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def _draw(words: UInt32[np.ndarray | Array, " words"], index: Int[Array, ""], clusters: int) -> Int[Array, " clusters"]:
    # One key per resample makes the draws independent of the chunk; the named generator, of the default one. The
    # key is made of its words because making it of a seed is lowered under the caller's precision, not under ours.
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32"), index)
    bits = jax.random.bits(key, (clusters,), jnp.uint32).astype(jnp.uint64)
    # Uniform up to clusters / 2**32, with one draw of bits where randint would compile two.
    return jnp.right_shift(bits * jnp.uint64(clusters), jnp.uint64(32)).astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("statistic", "clusters", "resamples", "chunk"))
def _interval(
    treated: Float[Array, " runs"],
    baseline: Float[Array, " runs"],
    members: Int[Array, " runs"],
    words: UInt32[Array, " words"],
    edges: Float[Array, " edges"],
    *,
    statistic: str,
    clusters: int,
    resamples: int,
    chunk: int,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Estimate and the two quantiles."""
    evaluate: Callable[[Int[Array, " clusters"]], Float[Array, ""]]
    if statistic == "median_ratio":
        ratios = treated / baseline
        order = jnp.argsort(ratios)
        evaluate = functools.partial(_median, ratios[order], members[order])
    else:
        rows = jnp.stack([treated, baseline, jnp.ones_like(treated)], axis=1)  # [runs, 3]
        totals = jnp.zeros((clusters, 3), jnp.float64).at[members].add(rows)
        evaluate = functools.partial(_of_totals, totals, statistic)

    def resample(index: Int[Array, ""]) -> Float[Array, ""]:
        return evaluate(_draw(words, index, clusters))

    values = _in_chunks(resample, resamples, chunk)
    low, high = jnp.quantile(values, edges)
    return evaluate(jnp.arange(clusters, dtype=jnp.int32)), low, high


def _of_totals(totals: Float[Array, "clusters 3"], statistic: str, drawn: Int[Array, " clusters"]) -> Float[Array, ""]:
    # Halving by additions alone: a reduction or a product would add in another order for another batch size.
    terms = totals[drawn]
    terms = jnp.pad(terms, ((0, 2 ** (len(terms) - 1).bit_length() - len(terms)), (0, 0)))
    while len(terms) > 1:
        terms = terms[: len(terms) // 2] + terms[len(terms) // 2 :]
    treated, baseline, runs = terms[0]
    if statistic == "ratio_of_totals":
        return jnp.divide(treated, baseline)
    return jnp.divide(100.0 * (treated - baseline), runs)


def _median(
    ratios: Float[Array, " runs"], members: Int[Array, " runs"], drawn: Int[Array, " clusters"]
) -> Float[Array, ""]:
    """Median of sorted ``ratios`` when each run is there as often as its cluster was drawn."""
    times = jnp.zeros(drawn.shape, jnp.int32).at[drawn].add(1)
    until = jnp.cumsum(times[members])
    size = until[-1]
    middle = jnp.stack([(size - 1) // 2, size // 2])
    below, above = ratios[jnp.searchsorted(until, middle, side="right")]
    return jnp.divide(below + above, 2.0)


def _members(cluster: Sequence[Any] | np.ndarray | Array | None, runs: int) -> tuple[np.ndarray, int]:
    """The number of each run's cluster and how many there are."""
    if cluster is None:
        members, clusters = np.arange(runs), runs
    else:
        labels = np.asarray(cluster).tolist() if isinstance(cluster, Array) else list(cluster)
        if len(labels) != runs:
            raise CostModelError(f"cluster has {len(labels)} labels for {runs} runs: give one label per run")
        for index, label in enumerate(labels):
            if label is None or label != label:
                raise CostModelError(f"cluster[{index}] is {label}: give every run the label of its task or chain")
        # Labels of any type in one order that depends neither on the runs' order nor on the process's hash seed.
        ordered = sorted(set(labels), key=lambda label: (type(label).__name__, repr(label)))
        numbers = {label: number for number, label in enumerate(ordered)}
        members, clusters = np.array([numbers[label] for label in labels], np.int32), len(numbers)
    if clusters < 2:
        raise CostModelError(
            "one cluster says nothing about how clusters differ: give runs of at least two tasks or chains"
            if clusters
            else "treated and baseline have no runs"
        )
    return members, clusters


def _check_settings(statistic: str, resamples: int, seed: int, level: float, chunk: int) -> None:
    if statistic not in _STATISTICS:
        raise CostModelError(f"statistic = {statistic!r} must be one of {', '.join(_STATISTICS)}")
    for name, value in (("resamples", resamples), ("chunk", chunk)):
        if value < 1:
            raise CostModelError(f"{name} = {value} must be >= 1")
    if not 0 < level < 1:
        raise CostModelError(f"level = {level:g} must lie strictly between 0 and 1: 0.95 for a 95% interval")
    if not 0 <= seed < 2**63:
        raise CostModelError(f"seed = {seed} must be >= 0 and below 2**63")


def _check_values(name: str, side: Runs, statistic: str) -> None:
    if has_tracer(side):
        return
    values = np.asarray(side, np.float64)
    if statistic == "solved_difference":
        wrong, rule = ~((values >= 0) & (values <= 1)), "a solved flag, 0 or 1 (or a score between them)"
    elif name == "baseline":
        wrong, rule = ~((values > 0) & np.isfinite(values)), "a cost > 0: the ratio to it is not defined otherwise"
    else:
        wrong, rule = ~((values >= 0) & np.isfinite(values)), "a finite cost >= 0"
    if not wrong.any():
        return
    index = int(np.argmax(wrong))
    if np.isnan(values[index]):
        raise CostModelError(f"{name}[{index}] is NaN (not computable): leave that pair out of both sides")
    raise CostModelError(f"{name}[{index}] = {values[index]:g} must be {rule}")
