"""Mechanical and behavioural parts of a cost difference between two policies.

C(p; x) is what the calls of trajectory x cost when they are priced under policy p. A treated agent differs from its
baseline twice: its policy shows other prompts (mechanical, at one trajectory) and, seeing them, it acts differently
(behavioural, at one policy): C(1; x1) - C(0; x0) = dM + dB. The split depends on which trajectory or policy stays
fixed, so both references are always reported. Source: "Think or Remember" (arXiv 2611.10982), decomposition section.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from costmodel_jax.caching import CacheRule
from costmodel_jax.calls import buckets, pack
from costmodel_jax.counting import STATUS, count
from costmodel_jax.errors import CostModelError
from costmodel_jax.policies import Policy
from costmodel_jax.precision import has_tracer
from costmodel_jax.pricing import Prices, cost
from costmodel_jax.schema import Run

__all__ = ["Decomposition", "LeftOut", "Parts", "Quantities", "Split", "decompose", "decompose_costs"]

REFERENCES = ("treated", "baseline")
QUANTITIES = ("processed", "pairs", "generated", "cost")
CORNERS = ("c00", "c01", "c10", "c11")

Values = Any  # a number, or an array of one value per pair of runs


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Parts:
    """The two parts of a difference under one reference; they add up to it exactly."""

    mechanical: Values
    behavioural: Values


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Split:
    """One quantity at its four corners and its difference split both ways. Corner ``cpx`` is C(p; x)."""

    c00: Values  # baseline policy, baseline trajectory
    c01: Values  # baseline policy, treated trajectory
    c10: Values  # treated policy, baseline trajectory
    c11: Values  # treated policy, treated trajectory
    difference: Values  # c11 - c00
    treated: Parts  # mechanical at the treated trajectory, c11 - c01; behavioural, c01 - c00
    baseline: Parts  # mechanical at the baseline trajectory, c10 - c00; behavioural, c11 - c10

    def at(self, reference: str) -> Parts:
        """The parts under ``treated`` or ``baseline``."""
        return {"treated": self.treated, "baseline": self.baseline}[reference]


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """What is split: three exact integers and the cost made of them."""

    processed: Split  # N
    pairs: Split  # Q
    generated: Split  # G
    cost: Split


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A pair of runs that a policy cannot price, and why."""

    baseline: str
    treated: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """The split of every pair of runs and of their totals. The three properties are its headline."""

    baseline_ids: tuple[str, ...]
    treated_ids: tuple[str, ...]
    reference: str  # the one of the headline
    runs: Quantities  # NumPy arrays, int64 and float64 [pairs]
    total: Quantities  # Python integers and floats, over those pairs
    left_out: tuple[LeftOut, ...]  # pairs in neither

    @property
    def difference(self) -> float:
        """Total cost difference."""
        return float(self.total.cost.difference)

    @property
    def mechanical(self) -> float:
        """Mechanical part of the total cost difference, under ``reference``."""
        return float(self.total.cost.at(self.reference).mechanical)

    @property
    def behavioural(self) -> float:
        """Behavioural part of the total cost difference, under ``reference``."""
        return float(self.total.cost.at(self.reference).behavioural)

    def rows(self) -> list[dict[str, Any]]:
        """A tidy table: one row per pair of runs (then ``total``), quantity and reference. Its parts are additive."""
        rows = []
        pairs = zip(self.baseline_ids, self.treated_ids, strict=True)
        for index, (baseline, treated) in enumerate((*pairs, ("total", "total"))):
            for quantity in QUANTITIES:
                whole = index == len(self.baseline_ids)
                split: Split = getattr(self.total if whole else self.runs, quantity)
                values = split if whole else jax.tree.map(lambda array: array[index].item(), split)  # noqa: B023
                for reference in REFERENCES:
                    part = values.at(reference)
                    rows.append(
                        {
                            "baseline": baseline, "treated": treated, "quantity": quantity, "reference": reference,
                            "mechanical": part.mechanical, "behavioural": part.behavioural,
                            "difference": values.difference,
                        }
                    )  # fmt: skip
        return rows


def decompose(
    baseline: Sequence[Run],
    treated: Sequence[Run],
    *,
    baseline_policy: Policy,
    treated_policy: Policy,
    cache: CacheRule,
    prices: Prices,
    w: float | int = 1.0,
    reference: str = "treated",
) -> Decomposition:
    """Split what a treatment changed into what the policy shows and what the agent does about it.

    Runs pair by task, and by chain where both sides have chains; repeats of one task pair in their order. Where some
    run has no task they pair by position.

    Args:
      baseline: runs recorded under the baseline policy, the trajectories x0.
      treated: runs recorded under the treated policy, the trajectories x1.
      baseline_policy, treated_policy: policies 0 and 1.
      cache: what the server reuses, for all four corners.
      prices: FLOPs per count.
      w: price of a generated position relative to a prefilled one, >= 1.
      reference: ``treated`` (dM = C(1; x1) - C(0; x1), dB = C(0; x1) - C(0; x0)) or ``baseline`` (dM = C(1; x0) -
        C(0; x0), dB = C(1; x1) - C(1; x0)): which of the two is the headline. Both are in the result.

    Raises:
      CostModelError: runs that do not pair, no pair that both policies can price, an unknown reference, or what
        ``count`` and ``cost`` raise.
    """
    if reference not in REFERENCES:
        raise CostModelError(f"reference = {reference!r} must be one of {', '.join(REFERENCES)}")
    pairs = _pair(baseline, treated)
    sides = [[x0 for x0, _ in pairs], [x1 for _, x1 in pairs]]
    corners = [
        _measure(side, policy, cache, prices, w) for policy in (baseline_policy, treated_policy) for side in sides
    ]
    left_out, kept = [], []
    for index, (x0, x1) in enumerate(pairs):
        reasons = [
            f"C({corner[1]}; x{corner[2]}) is not computable: {STATUS[status]}"
            for corner, measured in zip(CORNERS, corners, strict=True)
            if (status := int(measured["status"][index]))
        ]
        if reasons:
            left_out.append(LeftOut(baseline=x0.id, treated=x1.id, reason="; ".join(reasons)))
        else:
            kept.append(index)
    if not kept:
        shown = "; ".join(f"{left.baseline!r} with {left.treated!r}: {left.reason}" for left in left_out[:5])
        raise CostModelError(f"no pair of runs can be priced under both policies: {shown}")
    runs = Quantities(**{name: decompose_costs(*(c[name][kept] for c in corners)) for name in QUANTITIES})
    total = Quantities(
        # Exact: Python integers, and floats on one grid.
        **{name: jax.tree.map(lambda array: sum(array.tolist()), getattr(runs, name)) for name in QUANTITIES}
    )
    return Decomposition(
        baseline_ids=tuple(pairs[index][0].id for index in kept),
        treated_ids=tuple(pairs[index][1].id for index in kept),
        reference=reference, runs=runs, total=total, left_out=tuple(left_out),
    )  # fmt: skip


def decompose_costs(c00: Values, c01: Values, c10: Values, c11: Values) -> Split:
    """Split costs or counts given at their four corners, ``cpx`` = C(policy p; trajectory x) of equal shapes.

    Integers give exact integers. Floats are first rounded to the multiples of one power of two, small enough (2**-52 of
    the sum of all given costs, or less) to matter to nobody and large enough that every difference, and every sum of
    differences over pairs of runs in any order, is then exact in float64: parts add up to the bit. Whole costs that
    sum to less than 2**52 are not changed. The rounding has no gradient; differentiate the costs themselves.

    Works on Python numbers, NumPy arrays, concrete JAX arrays (giving NumPy arrays) and under jit and vmap.

    Raises:
      CostModelError: shapes that differ, concrete values that are not finite, or traced values of less than 64 bits,
        which a surrounding 32-bit jit has rounded or wrapped.
    """
    values = dict(zip(CORNERS, (c00, c01, c10, c11), strict=True))
    shapes = {name: np.shape(value) for name, value in values.items()}
    if len(set(shapes.values())) > 1:
        raise CostModelError(
            f"the four corners differ in shape: {', '.join(f'{name} {shape}' for name, shape in shapes.items())}"
        )
    if all(isinstance(value, int) for value in values.values()):
        return _split(*values.values())
    traced = has_tracer(values)
    with jax.enable_x64(True):
        arrays = [(_traced if traced else _concrete)(name, value) for name, value in values.items()]
        if any(array.dtype.kind == "f" for array in arrays):
            arrays = _on_grid(*(array.astype(np.float64) for array in arrays))
        split = _split(*arrays)
    scalars = all(np.isscalar(value) for value in values.values())
    return jax.tree.map(lambda value: value.item(), split) if scalars else split


def _split(c00: Values, c01: Values, c10: Values, c11: Values) -> Split:
    return Split(
        c00=c00, c01=c01, c10=c10, c11=c11, difference=c11 - c00,
        treated=Parts(mechanical=c11 - c01, behavioural=c01 - c00),
        baseline=Parts(mechanical=c10 - c00, behavioural=c11 - c10),
    )  # fmt: skip


def _on_grid(*costs: Any) -> list[Any]:
    """Costs rounded to multiples of q = 2**k with sum |cost| < 2**52 q, so that no later sum of them can round."""
    xp: Any = jnp if has_tracer(costs) else np
    _, exponent = xp.frexp(sum(xp.sum(xp.abs(cost)) for cost in costs))
    k = exponent.astype(np.int32) - 52
    return [xp.ldexp(xp.round(xp.ldexp(cost, -k)), k) for cost in costs]


def _concrete(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise CostModelError(f"{name} has a value that is not finite: leave pairs out that are not computable")
    return array


def _traced(name: str, value: Any) -> jax.Array:
    array = jnp.asarray(value)
    if array.dtype not in (jnp.int64, jnp.float64):
        raise CostModelError(
            f"{name} is {array.dtype}, not int64 or float64, so it may have been rounded. Inside your own jit, either "
            "close over the values instead of passing them as arguments, or call it under jax.enable_x64(True)"
        )
    return array


def _measure(
    runs: list[Run], policy: Policy, cache: CacheRule, prices: Prices, w: float | int
) -> dict[str, np.ndarray]:
    """N, Q, G (int64), cost (float64) and status of each run [runs]."""
    measured: dict[str, np.ndarray] = {name: np.zeros(len(runs), np.int64) for name in (*QUANTITIES[:3], "status")}
    measured["cost"] = np.zeros(len(runs), np.float64)
    for members in buckets(runs):
        counts = count(pack([runs[index] for index in members]), policy, cache)
        for name in QUANTITIES[:3]:
            measured[name][members] = np.asarray(getattr(counts, name)).sum(axis=-1)
        measured["status"][members] = np.asarray(counts.status)
        measured["cost"][members] = np.asarray(cost(counts, prices, w))
    return measured


def _pair(baseline: Sequence[Run], treated: Sequence[Run]) -> list[tuple[Run, Run]]:
    if not baseline and not treated:
        raise CostModelError("no runs to decompose: give baseline runs and the treated runs of the same tasks")
    everyone = [*baseline, *treated]
    if any(run.task is None for run in everyone):
        return _by_position(baseline, treated)
    chains = all(any(run.chain is not None for run in side) for side in (baseline, treated))
    waiting: dict[tuple[str | None, str | None], list[Run]] = {}
    for run in treated:
        waiting.setdefault((run.task, run.chain if chains else None), []).append(run)
    pairs, alone = [], []
    for run in baseline:
        partners = waiting.get((run.task, run.chain if chains else None))
        if partners:
            pairs.append((run, partners.pop(0)))
        else:
            alone.append(run.id)
    left = [run.id for partners in waiting.values() for run in partners]
    if alone or left:
        wrong = [f"{_names(ids)} with no {side} run of the same task{' and chain' * chains}"
                 for ids, side in ((alone, "treated"), (left, "baseline")) if ids]  # fmt: skip
        raise CostModelError(f"runs do not pair: {'; '.join(wrong)}. Leave them out, or give their counterparts")
    return pairs


def _by_position(baseline: Sequence[Run], treated: Sequence[Run]) -> list[tuple[Run, Run]]:
    if len(baseline) != len(treated):
        raise CostModelError(
            f"runs without a task pair by position, and there are {len(baseline)} baseline runs and {len(treated)} "
            f"treated runs ({_names([run.id for run in baseline])}; {_names([run.id for run in treated])})"
        )
    pairs = list(zip(baseline, treated, strict=True))
    for x0, x1 in pairs:
        if None not in (x0.task, x1.task) and x0.task != x1.task:
            raise CostModelError(
                f"runs {x0.id!r} and {x1.id!r} stand at one position but have different tasks; give every run its task"
            )
    return pairs


def _names(ids: list[str]) -> str:
    shown = ", ".join(repr(name) for name in ids[:5])
    return f"{shown} and {len(ids) - 5} more" if len(ids) > 5 else shown or "none"
