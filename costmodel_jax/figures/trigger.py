"""What the trigger of a compacting or clearing policy costs, and how long a context it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from costmodel_jax.errors import CostModelError
from costmodel_jax.figures.labels import name_lines
from costmodel_jax.figures.style import PALETTE, canvas, level, ratio_ticks, styled, tokens

__all__ = ["cost_by_trigger"]

HEIGHTS, FOOT = (2.0, 1.3), 0.6  # inches


@styled
def cost_by_trigger(rows: Sequence[Mapping[str, Any]], subtitle: str = "") -> tuple[Figure, list[dict[str, Any]]]:
    """Cost relative to keeping everything and mean prompt length against the trigger, one line per policy.

    Args:
      rows: one per policy and trigger with ``policy``, ``trigger`` (tokens), ``vs_keep_all`` and ``mean_prompt``
        (tokens, over calls without summary requests); None or NaN where the policy is infeasible.
      subtitle: runs, cache rule and architecture.

    Returns:
      The figure, and the rows by policy and trigger.

    Raises:
      CostModelError: no policy has numbers at two triggers, or two rows are for the same policy and trigger.
    """
    cells: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        of_policy = cells.setdefault(str(row["policy"]), {})
        if int(row["trigger"]) in of_policy:
            raise CostModelError("two rows are for the same policy and trigger: select one cache rule first")
        of_policy[int(row["trigger"])] = row
    lines = {name: _line(of_policy) for name, of_policy in cells.items()}
    shown = {name: line for name, line in lines.items() if len(line[0]) > 1}
    if not shown:
        raise CostModelError("no policy is feasible at two triggers: there is no line to draw")
    figure = canvas(sum(HEIGHTS) + FOOT, "Where to set the trigger: cost, and the context it leaves", subtitle)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=HEIGHTS)
    colors = dict(zip(shown, PALETTE * len(shown), strict=False))
    for name, (triggers, ratios, prompts) in shown.items():
        above.plot(triggers, ratios, "o-", markersize=3.5, color=colors[name])
        below.plot(triggers, prompts, "o-", markersize=3.5, color=colors[name])
    level(above, y=1.0)
    above.set_ylabel("cost /\ncost of keep-all")
    ratios = np.concatenate([line[1] for line in shown.values()])
    ratio_ticks(above, min(float(ratios.min()), 1.0) / 1.08, max(float(ratios.max()), 1.0) * 1.08)
    below.set_ylabel("mean prompt\n(tokens)")
    below.set_ylim(bottom=0)
    below.yaxis.set_major_locator(MaxNLocator(3))
    below.yaxis.set_major_formatter(FuncFormatter(tokens))
    every = np.concatenate([line[0] for line in shown.values()])
    _triggers(below, float(every.min()), float(every.max()))
    above.tick_params(axis="x", length=0, labelbottom=False)
    ends = {name: float(line[1][-1]) for name, line in shown.items()}
    name_lines(above, ends, colors, HEIGHTS[0])
    missing = [name for name in lines if name not in shown]
    if missing:
        above.set_title(f"infeasible: {', '.join(missing)}", fontsize=8.0, style="italic")
    return figure, [dict(of_policy[trigger]) for of_policy in cells.values() for trigger in sorted(of_policy)]


def _line(of_policy: Mapping[int, Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Triggers, ratios and mean prompts where there are numbers."""
    triggers = np.array(sorted(of_policy), np.float64)
    ratios = np.array([_number(of_policy[int(trigger)]["vs_keep_all"]) for trigger in triggers])
    prompts = np.array([_number(of_policy[int(trigger)]["mean_prompt"]) for trigger in triggers])
    known = np.isfinite(ratios)
    return triggers[known], ratios[known], prompts[known]


def _triggers(axes: Axes, first: float, last: float) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 3.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(tokens))
    axes.set_xlim(first / 1.04, last * 1.04)
    axes.set_xlabel("trigger: prompt length above which the policy acts (tokens, log scale)")


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)
