"""Counts priced: tidy rows for export, and totals over runs for a person."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from costmodel_jax.calls import bucket
from costmodel_jax.grid import COUNTS, KEEP_ALL, Cell, Grid, RunCounts, measured_counts
from costmodel_jax.pricing import Prices, cost, cost_per_call
from costmodel_jax.schema import Run
from costmodel_jax.statistics import paired_bootstrap
from costmodel_jax.tables import Chunk

__all__ = ["Priced", "cost_of_calls", "label", "price"]

MEASURED = "measured"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Priced:
    """A grid under one architecture and one w.

    Attributes:
      flops: float64 [runs] by policy and cache name; NaN where there are no numbers.
      measured: what the server measured, as a cell of its own.
      measured_flops: float64 [runs].
    """

    grid: Grid
    architecture: str
    prices: Prices
    w: float
    flops: Mapping[tuple[str, str], np.ndarray]
    measured: Cell
    measured_flops: np.ndarray

    def ratio(self, cell: Cell) -> np.ndarray:
        """Float64 [runs]: cost relative to keeping everything under the same cache rule."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.flops[cell.policy, cell.cache] / self.flops[KEEP_ALL, cell.cache])

    def chunks(self) -> Iterator[Chunk]:
        """One row per run, cell by cell; what the server measured comes first, where it did."""
        if self.measured.ok.any():
            yield self._chunk(self.measured, self.measured_flops, None)
        for cell in self.grid.shown():
            yield self._chunk(cell, self.flops[cell.policy, cell.cache], self.ratio(cell))

    def call_chunks(self) -> Iterator[Chunk]:
        """One row per call, cell by cell."""
        for cell in (*([self.measured] if self.measured.ok.any() else []), *self.grid.shown()):
            flops = cost_of_calls(cell.runs, self.prices, self.w)
            sizes = [len(run.call) for run in cell.runs]
            facts = self._facts(cell)
            yield {
                **{name: [v for v, size in zip(facts[name], sizes, strict=True) for _ in range(size)] for name in KEYS},
                "call": _joined(cell.runs, "call").tolist(),
                "request": _joined(cell.runs, "request").astype(np.int64).tolist(),
                **{name: _joined(cell.runs, name).tolist() for name in COUNTS},
                "flops": flops.tolist(),
                **{
                    name: [v for v, size in zip(facts[name], sizes, strict=True) for _ in range(size)]
                    for name in ORIGIN
                },
            }

    def _chunk(self, cell: Cell, flops: np.ndarray, ratio: np.ndarray | None) -> Chunk:
        facts = self._facts(cell)
        ok = cell.ok
        return {
            **{name: facts[name] for name in KEYS},
            "calls": [len(run.call) if run.ok else None for run in cell.runs],
            "requests": [run.total("request") if run.ok else None for run in cell.runs],
            **{name: [run.total(name) if run.ok else None for run in cell.runs] for name in COUNTS},
            "flops": _numbers(flops),
            "vs_keep_all": [None] * len(ok) if ratio is None else _numbers(ratio),
            **{name: facts[name] for name in ORIGIN},
        }

    def _facts(self, cell: Cell) -> dict[str, list[Any]]:
        runs = self.grid.runs
        return {
            "run": [run.id for run in runs],
            "policy": [cell.policy] * len(runs),
            "cache": [cell.cache] * len(runs),
            "architecture": [self.architecture] * len(runs),
            "w": [self.w] * len(runs),
            "status": [counts.status for counts in cell.runs],
            "label": [label(run, cell, counts) for run, counts in zip(runs, cell.runs, strict=True)],
            "lengths": [run.evidence.lengths for run in runs],
            "cached": [run.evidence.cached for run in runs],
            "reasoning": [run.evidence.reasoning for run in runs],
            "format": [run.format for run in runs],
            "model": [run.model for run in runs],
        }

    def totals(self, *, resamples: int = 0, seed: int = 0) -> list[dict[str, Any]]:
        """One entry per policy and cache rule, over the runs that have numbers; the comparison is over the same runs.

        Keeping everything has one too, whether it was asked for or not.

        Args:
          resamples: draws of the bootstrap that gives a 95% interval over tasks; 0 for none.
          seed: of the bootstrap.
        """
        entries = [self._total(cell, resamples, seed) for cell in self.grid.shown(with_baseline=True)]
        for cache in self.grid.caches:
            full = [e for e in entries if e["cache"] == cache and e["runs"] and not e["without"]]
            if full:
                min(full, key=lambda entry: entry["flops"])["cheapest"] = True
        if self.measured.ok.any():
            entries.insert(0, self._measured_total())
        return entries

    def _total(self, cell: Cell, resamples: int, seed: int) -> dict[str, Any]:
        base = self.grid.cells[KEEP_ALL, cell.cache]
        ok = cell.ok & base.ok
        flops, kept = self.flops[cell.policy, cell.cache], self.flops[KEEP_ALL, cell.cache]
        own_prompt = sum(int(run.prompt[~run.request].sum()) for run, use in zip(cell.runs, ok, strict=True) if use)
        spent, spent_keeping = float(flops[ok].sum()), float(kept[ok].sum())
        entry: dict[str, Any] = {
            "policy": cell.policy,
            "cache": cell.cache,
            "architecture": self.architecture,
            "w": self.w,
            "runs": int(ok.sum()),
            "without": dict(Counter(run.status for run in cell.runs if not run.ok)),
            "calls": sum(len(run.call) for run, use in zip(cell.runs, ok, strict=True) if use),
            "requests": int(cell.totals("request")[ok].sum()),
            **{name: int(cell.totals(name)[ok].sum()) for name in COUNTS},
            "flops": spent if ok.any() else None,
            "vs_keep_all": spent / spent_keeping if spent_keeping else None,
            "cheapest": False,
            "shrank_but_dearer": own_prompt < int(base.totals("prompt")[ok].sum()) and spent > spent_keeping,
            "labels": sorted({label(r, cell, c) for r, c in zip(self.grid.runs, cell.runs, strict=True) if c.ok}),
        }
        if resamples:
            clusters = [run.chain or run.task or run.id for run, use in zip(self.grid.runs, ok, strict=True) if use]
            entry["interval"] = None
            if len(set(clusters)) > 1 and cell.policy != KEEP_ALL and np.all(kept[ok] > 0):
                found = paired_bootstrap(flops[ok], kept[ok], cluster=clusters, resamples=resamples, seed=seed)
                entry["interval"] = [float(found.low), float(found.high)]
        return entry

    def _measured_total(self) -> dict[str, Any]:
        cell, ok = self.measured, self.measured.ok
        return {
            "policy": MEASURED,
            "cache": MEASURED,
            "architecture": self.architecture,
            "w": self.w,
            "runs": int(ok.sum()),
            "without": dict(Counter(run.status for run in cell.runs if not run.ok)),
            "calls": sum(len(run.call) for run in cell.runs),
            "requests": 0,
            **{name: int(cell.totals(name).sum()) for name in COUNTS},
            "flops": float(np.nansum(self.measured_flops)),
            "vs_keep_all": None,
            "cheapest": False,
            "shrank_but_dearer": False,
            "labels": [MEASURED],
        }


KEYS = ("run", "policy", "cache", "architecture", "w")
ORIGIN = ("status", "label", "lengths", "cached", "reasoning", "format", "model")


def price(grid: Grid, architecture: str, prices: Prices, w: float) -> Priced:
    """Price every cell of a grid.

    Raises:
      CostModelError: for a w below 1.
    """
    measured = Cell(policy=MEASURED, cache=MEASURED, runs=tuple(map(measured_counts, grid.runs)))
    cells = [*grid.cells.values(), measured]
    flat = [run for cell in cells for run in cell.runs]
    flops = _cost_of_runs(flat, prices, w).reshape(len(cells), len(grid.runs))
    return Priced(
        grid=grid,
        architecture=architecture,
        prices=prices,
        w=w,
        flops=dict(zip(grid.cells, flops[:-1], strict=True)),
        measured=measured,
        measured_flops=flops[-1],
    )


def label(run: Run, cell: Cell, counts: RunCounts) -> str:
    """Where a row's numbers come from: ``measured``, ``replayed`` or ``modelled`` (see ``tables.RUN_COLUMNS``)."""
    if cell.policy == MEASURED:
        return MEASURED
    return "modelled" if run.evidence.lengths == "modelled" or counts.request.any() else "replayed"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _OneCall:
    """Counts with a calls axis of length 1, as pricing reads them."""

    prompt: np.ndarray
    reused: np.ndarray
    generated: np.ndarray
    processed: np.ndarray
    pairs: np.ndarray
    extra: np.ndarray
    ok: np.ndarray


def _cost_of_runs(runs: Sequence[RunCounts], prices: Prices, w: float) -> np.ndarray:
    """Float64 [runs]. Prices that are linear in the counts need only their exact sums."""
    if prices.windows or prices.pair_generated is not None:
        calls = cost_of_calls(runs, prices, w)
        stops = np.cumsum([len(run.call) for run in runs])
        spent = [float(part.sum()) for part in np.split(calls, stops[:-1])]
        return np.where([run.ok for run in runs], spent, np.nan)
    one = _OneCall(
        **{name: np.array([[run.total(name)] for run in runs], np.int64) for name in COUNTS},
        extra=np.array([[run.extra.sum()] for run in runs], np.float64),
        ok=np.array([run.ok for run in runs]),
    )
    return np.asarray(cost(one, prices, w))


def cost_of_calls(runs: Sequence[RunCounts], prices: Prices, w: float) -> np.ndarray:
    """Float64 [calls of all runs]: the cost of every call, run after run."""
    calls = sum(len(run.call) for run in runs)
    padded = bucket(calls)  # so that few shapes are ever compiled
    flat = _OneCall(
        **{name: np.pad(_joined(runs, name), (0, padded - calls))[:, None] for name in (*COUNTS, "extra")},
        ok=np.ones(padded, bool),
    )
    return np.asarray(cost_per_call(flat, prices, w))[:calls, 0]


def _joined(runs: Sequence[RunCounts], name: str) -> np.ndarray:
    return np.concatenate([getattr(run, name) for run in runs])


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
