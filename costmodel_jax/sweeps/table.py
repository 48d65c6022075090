"""A sweep as Arrow tables: one row per run, policy, cache rule, architecture and w, in blocks of runs.

Names and weights are dictionary-encoded: a row then takes some eighty bytes in memory, and few in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from costmodel_jax.sweeps.facts import Facts
from costmodel_jax.sweeps.totals import STATUSES, Totals
from costmodel_jax.tables import RUN_COLUMNS

__all__ = ["COLUMNS", "schema", "table"]

COLUMNS = RUN_COLUMNS
"""Those of ``costmodel price``; see `costmodel_jax.tables.RUN_COLUMNS`."""

_FACTS = ("lengths", "cached", "reasoning", "format", "model")
_COUNTS = ("calls", "requests", "prompt", "reused", "generated", "processed", "pairs")
_WHOLE = ("generated", "processed", "pairs")  # of what prices multiply


def schema() -> pa.Schema:
    """Of every table of a sweep."""
    return pa.schema(
        [
            (name, pa.dictionary(pa.int32(), pa.string()) if kind == "string" else getattr(pa, kind)())
            for name, kind in COLUMNS.items()
        ]
    )


def table(
    facts: Facts,
    totals: Totals,
    flops: np.ndarray,
    base: np.ndarray,
    names: tuple[Sequence[str], Sequence[str], Sequence[str], Sequence[float]],
) -> pa.Table:
    """Rows in the order of runs, policies, caches, architectures and w.

    Args:
      flops: float64 [runs, policies, caches, architectures, w], NaN where there are no numbers.
      base: the same of keeping everything [runs, 1, caches, architectures, w].
      names: of policies, caches and architectures, and the values of w.
    """
    shape = flops.shape
    policies, caches, architectures, w = names
    status = totals.status
    missing = _spread(status != 0, shape) if status.any() else None

    def number(values: np.ndarray) -> pa.Array:
        return pa.array(_spread(values, shape), mask=missing)

    def key(axis: int, values: Sequence[Any]) -> pa.DictionaryArray:
        index = np.arange(shape[axis], dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return _coded(_spread(index, shape), values)

    def fact(values: Sequence[str | None]) -> pa.DictionaryArray:
        place = {value: i for i, value in enumerate(dict.fromkeys(value for value in values if value is not None))}
        index = np.array([-1 if value is None else place[value] for value in values], np.int32)
        return _coded(_spread(index[:, None, None], shape), list(place))

    modelled = np.array([lengths == "modelled" for lengths in facts.lengths])[:, None, None]
    labels = (modelled | (totals.requests > 0)).astype(np.int32)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = flops / base
    counts = {name: getattr(totals, name) for name in ("calls", "requests", "prompt", "reused")}
    counts |= {name: getattr(totals.measured, name) for name in _WHOLE}
    columns: dict[str, pa.Array] = {
        "run": key(0, facts.run),
        "policy": key(1, policies),
        "cache": key(2, caches),
        "architecture": key(3, architectures),
        "w": pa.array(_spread(np.asarray(w, np.float64), shape)),
        **{name: number(counts[name]) for name in _COUNTS},
        "flops": pa.array(flops.reshape(-1), mask=np.isnan(flops).reshape(-1) if np.isnan(flops).any() else None),
        "vs_keep_all": pa.array(ratio.reshape(-1), mask=np.isnan(ratio).reshape(-1) if np.isnan(ratio).any() else None),
        "status": _coded(_spread(status.astype(np.int32), shape), STATUSES),
        "label": _coded(_spread(labels, shape), ("replayed", "modelled")),
        **{name: fact(getattr(facts, name)) for name in _FACTS},
    }
    return pa.table([columns[name] for name in COLUMNS], schema=schema())


def _spread(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Values of the first axes, or of all where they have as many, at every row."""
    if values.ndim == 1:
        values = values.reshape((1,) * (len(shape) - 1) + (-1,))
    whole = values.reshape(values.shape + (1,) * (len(shape) - values.ndim))
    return np.broadcast_to(whole, shape).reshape(-1)


def _coded(index: np.ndarray, values: Sequence[Any]) -> pa.DictionaryArray:
    """Names by their number; null where it is negative."""
    missing = index < 0 if (index < 0).any() else None
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=missing), pa.array(list(values), pa.string()))
