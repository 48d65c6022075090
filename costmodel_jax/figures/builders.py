"""Figures from runs: each counts and prices what it needs and hands plain numbers to the function that draws.

All share one signature: (runs, policies, caches, architectures, w), the middle three by name, of which a figure takes
what it can show and says in its subtitle what that was.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from matplotlib.figure import Figure

from costmodel_jax.architecture import Architecture
from costmodel_jax.architecture import architectures as presets
from costmodel_jax.caching import CacheRule
from costmodel_jax.compaction import Compact
from costmodel_jax.errors import CostModelError, InfeasibleError
from costmodel_jax.exchange import exchange_rate
from costmodel_jax.explain import explain
from costmodel_jax.figures.cost import cost_by_policy
from costmodel_jax.figures.crossover import crossover
from costmodel_jax.figures.generation_price import cost_by_generation_price
from costmodel_jax.figures.horizon import horizon
from costmodel_jax.figures.reuse import predicted_reuse
from costmodel_jax.figures.sweeps import by_trigger
from costmodel_jax.figures.trigger import cost_by_trigger
from costmodel_jax.figures.waterfall import waterfall
from costmodel_jax.grid import count_grid, longest_prompt
from costmodel_jax.policies import AsRecorded, ClearToolResults, Policy
from costmodel_jax.rows import price
from costmodel_jax.schema import Run
from costmodel_jax.specs import COMPACTION, policy_name

__all__ = ["FIGURES", "Builder", "Built"]

Built: TypeAlias = tuple[Figure, list[dict[str, Any]]]
Policies: TypeAlias = Mapping[str, Policy]
Caches: TypeAlias = Mapping[str, CacheRule]
Architectures: TypeAlias = Mapping[str, Architecture]
Builder: TypeAlias = Callable[[Sequence[Run], Policies, Caches, Architectures, float], Built]
T = TypeVar("T")

RESAMPLES = 2_000
PANELS = 4  # policies in a waterfall
PRICES = np.linspace(1.0, 5.0, 9)
TRIGGERS, SHORTEST = 13, 1_000  # how many are tried; tokens of a prompt worth trying them on
AMONG = (
    "Qwen3.6-27B",
    "Qwen3.6-27B-all-attention",
    "Qwen3-32B",
    "Qwen3-8B",
    "Qwen3-30B-A3B",
    "gpt-oss-20b",
    "GLM-4.7-Flash",
    "SmolLM2-135M",
)  # what a single architecture is shown among


def _cost(runs: Sequence[Run], policies: Policies, caches: Caches, architectures: Architectures, w: float) -> Built:
    name, architecture = _first("architecture", architectures)
    _some(runs)
    priced = price(count_grid(runs, policies, caches), name, architecture.prices(), w)
    totals = [entry for entry in priced.totals(resamples=RESAMPLES) if entry["cache"] in caches]
    rows = [_row(entry, len(runs)) for entry in totals]
    tasks = len({run.chain or run.task or run.id for run in runs})
    interval = f"; lines: 95% intervals over {tasks} tasks" if any("low" in row for row in rows) else ""
    return cost_by_policy(rows, f"{_about(runs)}, {name}, w = {w:g}{interval}")


def _row(entry: Mapping[str, Any], of: int) -> dict[str, Any]:
    """A total as ``cost_by_policy`` takes it."""
    named = ("policy", "cache", "architecture", "w", "flops", "vs_keep_all", "runs")
    row = {name: entry[name] for name in named} | {"of": of}
    if entry["vs_keep_all"] is None:
        row["status"] = max(entry["without"], key=lambda status: entry["without"][status], default="no number")
    if entry.get("interval"):
        row["low"], row["high"] = entry["interval"]
    return row


def _generation_price(
    runs: Sequence[Run], policies: Policies, caches: Caches, architectures: Architectures, w: float
) -> Built:
    (name, architecture), (cache, rule) = _first("architecture", architectures), _first("cache rule", caches)
    _some(runs)
    grid = count_grid(runs, policies, {cache: rule})
    prices = architecture.prices()
    rows = [
        _row(entry, len(runs))
        for each in PRICES
        for entry in price(grid, name, prices, float(each)).totals()
        if entry["cache"] == cache
    ]
    return cost_by_generation_price(rows, f"{_about(runs)}, cache rule {cache}, {name}")


def _trigger(runs: Sequence[Run], policies: Policies, caches: Caches, architectures: Architectures, w: float) -> Built:
    (name, architecture), (cache, rule) = _first("architecture", architectures), _first("cache rule", caches)
    longest = max(map(longest_prompt, _some(runs)))
    triggered = {_apart_from_trigger(p): p for p in policies.values() if isinstance(p, (Compact, ClearToolResults))}
    if not triggered:
        raise CostModelError("this figure needs a policy with a trigger, such as compact or clear-tool-results")
    if longest < SHORTEST:
        raise CostModelError(f"the longest prompt has {longest:,} tokens: no trigger would make a difference")
    triggers = sorted({int(float(f"{each:.2g}")) for each in np.geomspace(longest / 8, longest, TRIGGERS)})
    rows = by_trigger(runs, triggered, triggers, rule, architecture.prices(), w)
    return cost_by_trigger(rows, f"{_about(runs)}, cache rule {cache}, {name}, w = {w:g}")


def _apart_from_trigger(policy: Any) -> str:
    """Name of a policy that does not tell its trigger, so that two that differ in it alone are one line."""
    return policy_name(dataclasses.replace(policy, trigger=COMPACTION["trigger"]))


def _waterfall(
    runs: Sequence[Run], policies: Policies, caches: Caches, architectures: Architectures, w: float
) -> Built:
    cache, rule = _first("cache rule", caches)
    run = max(_some(runs), key=lambda run: sum(segment.tokens for segment in run.segments))
    panels: dict[str, list[dict[str, Any]]] = {}
    left_out = []
    for name, policy in policies.items():
        try:
            panels[name] = explain(run, policy, rule).to_rows()
        except InfeasibleError:
            left_out.append(f"{name} is infeasible")
        except CostModelError:
            left_out.append(f"{name} is not computable")
    if len(panels) > PANELS:
        left_out.append(f"of {len(panels)} policies the {PANELS} that recompute most, each of another kind")
        panels = _worst_of_each_kind(panels, policies)
    if not panels:
        raise CostModelError(f"no policy can be drawn for run {run.id!r}: {'; '.join(left_out)}")
    subtitle = "; ".join(
        [f"the longest run, {run.id}{_synthetic([run], ' (synthetic)')}, cache rule {cache}", *left_out]
    )
    return waterfall(panels, subtitle)


def _worst_of_each_kind(panels: Mapping[str, Any], policies: Policies) -> dict[str, Any]:
    """The policies that recompute most, no two of one class, in the order given."""
    worst: dict[type[Policy], str] = {}
    for name in sorted(panels, key=lambda name: -sum(row["recomputed"] for row in panels[name])):
        worst.setdefault(type(policies[name]), name)
    return {name: panels[name] for name in panels if name in list(worst.values())[:PANELS]}


def _crossover(
    runs: Sequence[Run], policies: Policies, caches: Caches, architectures: Architectures, w: float
) -> Built:
    shown = dict(architectures)
    if len(shown) < 2:
        shown |= {name: presets[name] for name in AMONG if name not in shown}
    prices = {name: architecture.prices() for name, architecture in shown.items()}
    subtitle = "from each model's config: linear work of the decoder layers against attention pairs"
    return crossover(prices, subtitle, marked=tuple(architectures) if len(architectures) == 1 else ())


def _horizon(runs: Sequence[Run], policies: Policies, caches: Caches, architectures: Architectures, w: float) -> Built:
    name, architecture = _first("architecture", architectures)
    prices = architecture.prices()
    blocks = list(_reasoning_blocks(runs))
    prefix = round(statistics.median(H for H, _, _ in blocks)) if blocks else 20_000
    dots = f"; dots: the {len(blocks):,} reasoning blocks of {_about(runs)}" if blocks else ""
    subtitle = f"{name} (P* = {float(exchange_rate(prices)):,.0f}), generation reused{dots}"
    return horizon(prices, "r", H=prefix, blocks=[(r, a) for _, r, a in blocks], subtitle=subtitle)


def _reasoning_blocks(runs: Sequence[Run]) -> Iterator[tuple[int, int, int]]:
    """(H, r, a): what stands before a call's reasoning when nothing is hidden, the reasoning, and the answer."""
    for run in runs:
        shown, session = 0, run.calls[0].session
        for call in run.calls if run.evidence.reasoning != "unknown" else ():
            if call.session is not None and call.session != session:
                shown, session = 0, call.session
            shown += sum(segment.tokens for segment in call.input)
            out = sum(segment.tokens for segment in call.output)
            reasoning = sum(segment.tokens for segment in call.output if segment.kind == "reasoning")
            if reasoning:
                yield shown, reasoning, out - reasoning
            shown += out


def _reuse(runs: Sequence[Run], policies: Policies, caches: Caches, architectures: Architectures, w: float) -> Built:
    measured = [run for run in runs if any(_hit(run, t) is not None for t in range(len(run.calls)))]
    if not measured:
        raise CostModelError(
            "no run has measured cache hits (usage.cached_tokens): draw this figure from logs of a server that reports "
            "them"
        )
    grid = count_grid(measured, {"as-recorded": AsRecorded()}, caches)
    setting, predicted, recorded = [], [], []
    for cell in grid.shown():
        for run, counts in zip(measured, cell.runs, strict=True):
            for call, reused in zip(counts.call, counts.reused, strict=True):
                hit = _hit(run, int(call))
                if hit is not None:
                    setting.append(cell.cache)
                    predicted.append(int(reused))
                    recorded.append(hit)
    return predicted_reuse(setting, predicted, recorded, f"{_about(measured)} as recorded, by cache rule")


def _hit(run: Run, call: int) -> int | None:
    usage = run.calls[call].usage
    return None if usage is None else usage.cached_tokens


def _about(runs: Sequence[Run]) -> str:
    return f"{len(runs):,} {_synthetic(runs, 'synthetic ')}run{'s' * (len(runs) != 1)}"


def _synthetic(runs: Sequence[Run], word: str) -> str:
    """The word where nothing was recorded, so that no sample passes for a measurement."""
    return word if all(any(note.startswith("synthetic") for note in run.notes) for run in runs) else ""


def _first(what: str, named: Mapping[str, T]) -> tuple[str, T]:
    if not named:
        raise CostModelError(f"this figure needs a {what}")
    return next(iter(named.items()))


def _some(runs: Sequence[Run]) -> Sequence[Run]:
    if not runs:
        raise CostModelError("this figure needs at least one run")
    return runs


FIGURES: Mapping[str, Builder] = {
    "cost": _cost,
    "w": _generation_price,
    "trigger": _trigger,
    "waterfall": _waterfall,
    "crossover": _crossover,
    "horizon": _horizon,
    "reuse": _reuse,
}
"""Name -> what makes the figure and its rows of (runs, policies, caches, architectures, w).

- ``cost``: every policy and cache rule relative to keeping all, first architecture, with intervals over tasks
- ``w``: the same against the price of generation, first cache rule and architecture
- ``trigger``: cost and mean prompt of policies that have a trigger, against it, first cache rule and architecture
- ``waterfall``: the longest run call by call, first cache rule, the policies that recompute most
- ``crossover``: attention share and P* of the architectures; a single one is shown among well-known ones
- ``horizon``: L* over reasoning and answer length, first architecture, with the runs' reasoning blocks as dots
- ``reuse``: hits that the cache rules predict against measured ones; needs runs with measured hits
"""
