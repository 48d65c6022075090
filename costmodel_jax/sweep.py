"""`sweep`: every run under every policy, cache rule, architecture and w, as one tidy table.

Counting is independent of the model, so a run is counted once per policy and cache rule and priced for every
architecture and w by products (Think or Remember, arXiv 2611.10982).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float64

from costmodel_jax import specs
from costmodel_jax.architecture import Architecture
from costmodel_jax.caching import CacheRule
from costmodel_jax.errors import CostModelError
from costmodel_jax.policies import KeepAll, Policy
from costmodel_jax.pricing import Capped, Prices, spent
from costmodel_jax.schema import Run
from costmodel_jax.sweeps.facts import Facts
from costmodel_jax.sweeps.shapes import Shape
from costmodel_jax.sweeps.totals import Totals, count_totals

__all__ = ["Axes", "Sweep", "sweep", "sweep_axes"]

Named: TypeAlias = Mapping[str, Any] | Sequence[Any] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Axes:
    """What runs are swept over, each by name and in order; see `sweep`."""

    policies: Mapping[str, Policy]
    caches: Mapping[str, CacheRule]
    prices: Mapping[str, Prices]
    w: tuple[float, ...]

    @classmethod
    def of(
        cls,
        policies: Named = None,
        caches: Named = None,
        architectures: Named = None,
        w: int | float | Sequence[int | float] = 1.0,
    ) -> Axes:
        """Resolve names; arguments and errors as of `sweep`."""
        models = _named(
            architectures,
            specs.DEFAULT_ARCHITECTURES,
            specs.parse_arch,
            lambda found: str(getattr(found, "name", "") or getattr(found, "label", "")),
            (Architecture, Prices),
            "architectures",
        )
        weights = tuple(float(each) for each in ([w] if isinstance(w, (int, float)) else w))
        if not weights or not min(weights) >= 1:
            raise CostModelError(f"w = {weights}: give one or more numbers of at least 1")
        return cls(
            policies=_named(
                policies, specs.DEFAULT_POLICIES, specs.parse_policy, specs.policy_name, Policy, "policies"
            ),
            caches=_named(caches, specs.DEFAULT_CACHES, specs.parse_cache, specs.cache_name, CacheRule, "caches"),
            prices={n: each.prices() if isinstance(each, Architecture) else each for n, each in models.items()},
            w=weights,
        )

    def describe(self) -> dict[str, Any]:
        """All that decides a table beside its runs, as plain data."""
        return {
            "policies": {n: [type(p).__name__, asdict(p)] for n, p in self.policies.items()},  # type: ignore[call-overload]
            "caches": {name: asdict(each) for name, each in self.caches.items()},
            "prices": {name: asdict(each) for name, each in self.prices.items()},
            "w": list(self.w),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """Totals of runs under policies and cache rules, and prices to multiply them with.

    Rows are made when they are asked for: in memory are only totals, some hundred bytes for a run, policy and rule.

    Attributes:
      facts: ids of the runs and where their numbers are from.
      policies, caches: names, in the order of the axes of ``totals``.
      prices: by architecture.
      w: prices of a generated position relative to a prefilled one.
      totals: int64 [runs, policies, caches].
      kept: totals of keeping everything [runs, 1, caches], which costs are compared with.
      shapes: of the batches that were counted, with their rows: each is compiled once.
    """

    facts: Facts
    policies: tuple[str, ...]
    caches: tuple[str, ...]
    prices: Mapping[str, Prices]
    w: tuple[float, ...]
    totals: Totals
    kept: Totals
    shapes: frozenset[tuple[Shape, int]]

    def __len__(self) -> int:
        """Rows of the table."""
        return int(np.prod(self.totals.status.shape)) * len(self.prices) * len(self.w)

    def flops(self) -> Float64[np.ndarray, "runs policies caches architectures w"]:
        """The cost of every row; NaN where there are no numbers."""
        return _flops(self.totals, self.prices, self.w)

    def tables(self, *, rows: int = 2**20) -> Iterator[Any]:
        """Arrow tables of about ``rows`` rows each, whole runs; see `costmodel_jax.tables.RUN_COLUMNS`."""
        from costmodel_jax.sweeps.table import table

        names = (self.policies, self.caches, tuple(self.prices), self.w)
        step = max(rows * len(self.facts.run) // max(len(self), 1), 1)
        for first in range(0, len(self.facts.run), step):
            part = slice(first, first + step)
            own, kept = (jax.tree.map(lambda leaf, part=part: leaf[part], each) for each in (self.totals, self.kept))
            flops, base = (_flops(each, self.prices, self.w) for each in (own, kept))
            yield table(self.facts.part(part), own, flops, base, names)

    def to_arrow(self) -> Any:
        """The whole table as a `pyarrow.Table`."""
        import pyarrow as pa

        return pa.concat_tables(self.tables(), promote_options="none").unify_dictionaries()

    def to_pandas(self) -> Any:
        """The whole table as a `pandas.DataFrame`; names are categories. Needs pandas."""
        return self.to_arrow().to_pandas()

    def to_parquet(self, path: str | os.PathLike[str]) -> int:
        """Write a Parquet file, block by block, which appears whole or not at all.

        Returns:
          The number of rows.

        Raises:
          InputError: if the file cannot be written.
        """
        from costmodel_jax.sweeps.files import write_parquet

        return write_parquet(path, self.tables())


def sweep(
    runs: Sequence[Run],
    policies: Named = None,
    caches: Named = None,
    architectures: Named = None,
    w: int | float | Sequence[int | float] = 1.0,
    mesh: Mesh | None = None,
) -> Sweep:
    """Price every run under every policy, cache rule, architecture and w.

    Each of the three is a mapping by name, or a sequence of objects or of specs as on the command line
    (``"keep-latest:5"``, ``"vllm:block=32"``, ``"Qwen3-8B"``); None takes the command line's defaults.

    Args:
      runs: of any lengths, at least one.
      policies: what the client shows.
      caches: what the server reuses.
      architectures: `Architecture` or `Prices`.
      w: price of a generated position relative to a prefilled one, one or several.
      mesh: its devices share the runs.

    Raises:
      CostModelError: nothing to sweep, names that occur twice, or a w below 1.
      InputError: a spec that names nothing.

    Example:
      >>> found = sweep(load_runs("logs/"), ["drop", "compact"], ["vllm"], ["Qwen3-8B"], w=[1.0, 3.0])
      >>> found.to_pandas().groupby("policy").flops.sum()
    """
    return sweep_axes(runs, Axes.of(policies, caches, architectures, w), mesh=mesh)


def sweep_axes(runs: Sequence[Run], axes: Axes, *, mesh: Mesh | None = None) -> Sweep:
    """`sweep` over axes whose names are resolved."""
    if not runs:
        raise CostModelError("sweep needs at least one run")
    shapes: set[tuple[Shape, int]] = set()
    everything = list(axes.policies.values())
    if KeepAll() not in everything:
        everything.insert(0, KeepAll())
    kept = everything.index(KeepAll())
    totals = count_totals(
        runs,
        everything,
        list(axes.caches.values()),
        _windows(axes.prices.values()),
        mesh=mesh,
        seen=lambda shape, rows: shapes.add((shape, rows)),
    )
    return Sweep(
        facts=Facts.of(runs),
        policies=tuple(axes.policies),
        caches=tuple(axes.caches),
        prices=axes.prices,
        w=axes.w,
        totals=_part(totals, slice(len(everything) - len(axes.policies), None)),
        kept=_part(totals, slice(kept, kept + 1)),
        shapes=frozenset(shapes),
    )


def _part(totals: Totals, which: slice) -> Totals:
    """Of some policies."""
    part: Totals = jax.tree.map(lambda leaf: leaf[:, which], totals)
    return part


def _named(
    given: Named,
    defaults: Sequence[str],
    parse: Callable[[str], Any],
    name_of: Callable[[Any], str],
    kind: type | tuple[type, ...],
    what: str,
) -> dict[str, Any]:
    """What to sweep over, by name."""
    if isinstance(given, (str, *(kind if isinstance(kind, tuple) else (kind,)))):
        given = [given]
    if isinstance(given, Mapping):
        pairs = [(str(name), parse(each) if isinstance(each, str) else each) for name, each in given.items()]
    else:
        pairs = []
        for each in defaults if given is None else given:
            found = parse(each) if isinstance(each, str) else each
            named_so = each if isinstance(each, str) or not isinstance(found, kind) else name_of(found)
            pairs.append((named_so, found))
    if not pairs:
        raise CostModelError(f"{what} is empty: give at least one, or None for the defaults")
    named: dict[str, Any] = {}
    for name, each in pairs:
        if not isinstance(each, kind):
            raise CostModelError(f"{what}: {each!r} is a {type(each).__name__}")
        if not name or name in named:
            raise CostModelError(
                f"{what}: two are called {name!r}; give a mapping with a name for each" if name
                else f"{what}: {each!r} has no name; give a mapping"
            )  # fmt: skip
        named[name] = each
    return named


def _windows(prices: Iterable[Prices]) -> Prices:
    """Prices with every window that any of them has, once."""
    sizes = dict.fromkeys(int(each.window) for one in prices for each in one.windows)
    return Prices(linear=0.0, pair=0.0, windows=tuple(Capped(window=size, pair=0.0) for size in sizes))


def _flops(totals: Totals, prices: Mapping[str, Prices], w: Sequence[float]) -> np.ndarray:
    """[runs, policies, caches, architectures, w]; NaN where there are no numbers."""
    measured = totals.measured
    sizes = [each.window for each in _windows(prices.values()).windows]
    costs = np.empty((*totals.status.shape, len(prices), len(w)))
    for a, one in enumerate(prices.values()):
        own = replace(measured, capped=tuple(measured.capped[sizes.index(int(e.window))] for e in one.windows))
        for b, weight in enumerate(w):
            costs[..., a, b] = spent(own, one, weight)
    costs[totals.status != 0] = np.nan
    return costs
