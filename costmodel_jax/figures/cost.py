"""Cost of each policy relative to keeping everything, one panel per cache rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import blended_transform_factory

from costmodel_jax.errors import CostModelError
from costmodel_jax.figures.style import BLUE, GREY, INK, ORANGE, canvas, level, styled, wrapped

__all__ = ["cost_by_policy"]

COLUMNS = 4
ROW, HEAD = 0.3, 0.75  # inches: a policy, and what a panel needs besides


@styled
def cost_by_policy(rows: Sequence[Mapping[str, Any]], subtitle: str = "") -> tuple[Figure, list[dict[str, Any]]]:
    """Bars from 1 (keeping everything) to the cost of each policy, on a logarithmic axis, one panel per cache rule.

    Args:
      rows: one per policy and cache with ``policy``, ``cache`` and ``vs_keep_all`` (None or NaN where there is no
        number); optionally ``low`` and ``high`` (an interval), ``status`` (why there is no number), ``runs`` and
        ``of`` (how many runs the number is over, of how many).
      subtitle: what they were counted on.

    Returns:
      The figure, and the rows in the order shown.

    Raises:
      CostModelError: no rows, two rows for one bar, or a ratio that is not positive.
    """
    policies = list(dict.fromkeys(str(row["policy"]) for row in rows))
    caches = list(dict.fromkeys(str(row["cache"]) for row in rows))
    cells = {(str(row["policy"]), str(row["cache"])): row for row in rows}
    if not rows:
        raise CostModelError("there are no rows to draw: give at least one policy and one cache rule")
    if len(cells) != len(rows):
        raise CostModelError("two rows are for the same policy and cache rule: select one architecture and one w first")
    ratios = [ratio for row in rows if (ratio := _number(row.get("vs_keep_all"))) is not None]
    if any(ratio <= 0 for ratio in ratios):
        raise CostModelError("vs_keep_all must be positive")

    columns = min(len(caches), COLUMNS)
    lines = math.ceil(len(caches) / COLUMNS)
    figure = canvas(
        lines * (ROW * len(policies) + HEAD), "What a context policy costs, relative to keeping all", subtitle
    )
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    low, high = min([1.0, *ratios]), max([1.0, *ratios])
    room = (high / low) ** 0.5  # for the numbers beside the bars
    for panel, cache in zip(panels.flat, caches, strict=False):
        _panel(panel, [cells.get((policy, cache), {}) for policy in policies], low, high)
        panel.set_title(wrapped(cache, 24))
        panel.set_xlim(low / max(room, 1.35), high * max(room, 1.35))
    for panel in panels.flat[len(caches) :]:
        panel.set_axis_off()
    panels[0, 0].set_yticks(range(len(policies)), [wrapped(policy) for policy in policies])
    panels[0, 0].set_ylim(len(policies) - 0.4, -0.6)
    figure.supxlabel("cost / cost of keep-all (FLOPs, log scale)", fontsize=9.0)
    table = [dict(cells[policy, cache]) for cache in caches for policy in policies if (policy, cache) in cells]
    return figure, table


def _panel(panel: Axes, rows: Sequence[Mapping[str, Any]], low: float, high: float) -> None:
    level(panel, x=1.0)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(FixedLocator(_ticks(high / low)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.tick_params(axis="y", length=0)
    panel.spines["left"].set_visible(False)
    beside = blended_transform_factory(panel.transData, panel.transData)
    for y, row in enumerate(rows):
        ratio = _number(row.get("vs_keep_all"))
        if ratio is None:
            panel.text(
                1.0, y, f" {row.get('status') or 'no number'}", va="center", fontsize=8.0, color=GREY, style="italic"
            )
            continue
        color = BLUE if ratio <= 1 else ORANGE
        panel.barh(y, ratio - 1.0, left=1.0, height=0.62, color=color)
        ends = [ratio]
        low_end, high_end = _number(row.get("low")), _number(row.get("high"))
        if low_end is not None and high_end is not None:
            ends += [low_end, high_end]
            panel.plot((low_end, high_end), (y, y), color=INK, linewidth=1.0, solid_capstyle="butt")
        cheaper = ratio < 1
        panel.annotate(
            f"{ratio:.2f}" + _over(row),
            (min(ends) if cheaper else max(ends), y), xycoords=beside, xytext=(-3 if cheaper else 3, 0),
            textcoords="offset points", ha="right" if cheaper else "left", va="center", fontsize=8.0,
        )  # fmt: skip


def _ticks(reach: float) -> tuple[float, ...]:
    """Few enough for a narrow panel."""
    if reach <= 3:
        return (0.5, 0.7, 1.0, 1.5, 2.0)
    if reach <= 12:
        return (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    return (0.01, 0.1, 1.0, 10.0, 100.0) if reach <= 100 else (0.0001, 0.01, 1.0, 100.0, 10_000.0)


def _over(row: Mapping[str, Any]) -> str:
    """Says so where a number is not over all the runs."""
    runs, of = row.get("runs"), row.get("of")
    return f" ({runs}/{of})" if runs is not None and of is not None and runs < of else ""


def _number(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
