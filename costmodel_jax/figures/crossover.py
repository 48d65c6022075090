"""Where attention overtakes the linear work: its share of a position's FLOPs against the length of the context."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from costmodel_jax.errors import CostModelError
from costmodel_jax.exchange import attention_share, exchange_rate
from costmodel_jax.figures.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    canvas,
    level,
    styled,
    tokens,
    wrapped,
)
from costmodel_jax.pricing import Prices

__all__ = ["crossover"]

LENGTHS = np.geomspace(1e3, 1e6, 121)
CURVES, ROW, HEAD = 2.1, 0.21, 0.75  # inches


@styled
def crossover(
    prices: Mapping[str, Prices], subtitle: str = "", marked: Collection[str] = ()
) -> tuple[Figure, list[dict[str, Any]]]:
    """Curves of beta P / (c + beta P) over context length P, and P* = c / beta, where it is one half.

    Two architectures of which one's name is the other's with ``-all-attention`` behind it are drawn in colour: what a
    hybrid saves. All curves are one curve shifted, so they are told apart by their P* below, on the same axis.

    Args:
      prices: name of each architecture -> its prices.
      subtitle: a remark.
      marked: names to draw in colour where only hybrids are.

    Returns:
      The figure, and rows with ``architecture``, ``context``, ``attention_share`` and ``exchange_rate`` (P*).

    Raises:
      CostModelError: no architecture.
    """
    if not prices:
        raise CostModelError("give at least one architecture")
    stars = {name: float(exchange_rate(each)) for name, each in prices.items()}
    order = sorted(stars, key=lambda name: stars[name])
    colors = _colors(order, marked)
    heights = (CURVES, ROW * len(order) + 0.1)
    figure = canvas(sum(heights) + HEAD, "Where attention overtakes the linear work", subtitle)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    table = []
    for name in reversed(order):
        share = np.asarray(attention_share(prices[name], LENGTHS))
        weak = colors[name] == GREY
        above.plot(LENGTHS, share, color=colors[name], linewidth=1.3 if weak else 2.2, zorder=2 if weak else 3)
        table += [
            {
                "architecture": name,
                "context": float(length),
                "attention_share": float(part),
                "exchange_rate": stars[name],
            }
            for length, part in zip(LENGTHS, share, strict=True)
        ]
    _shares(above)
    for y, name in enumerate(order):
        _star(above, below, y, stars[name], colors[name])
    _lengths(below)
    below.set_yticks(range(len(order)), [wrapped(name, 30) for name in order])
    below.set_ylim(len(order) - 0.4, -0.6)
    return figure, table


def _colors(order: list[str], marked: Collection[str]) -> dict[str, str]:
    """Blue and orange for hybrids and their all-attention variants, else the palette while it lasts."""
    pairs = [(name, name + "-all-attention") for name in order if name + "-all-attention" in order]
    if not pairs:
        return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(order)}
    hybrids, variants = zip(*pairs, strict=True)
    colors = dict.fromkeys(order, GREY) | dict.fromkeys(marked, GREEN)
    return colors | dict.fromkeys(hybrids, BLUE) | dict.fromkeys(variants, ORANGE)


def _shares(axes: Axes) -> None:
    level(axes, y=0.5)
    axes.set_ylim(0, 1)
    axes.set_yticks((0, 0.25, 0.5, 0.75, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylabel("attention share of a\nposition's FLOPs")
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _star(above: Axes, below: Axes, y: int, star: float, color: str) -> None:
    inside = LENGTHS[0] <= star <= LENGTHS[-1]
    where = min(max(star, LENGTHS[0]), LENGTHS[-1])
    if inside:
        above.plot(star, 0.5, "o", markersize=5, color=color, zorder=4)
        above.plot((star, star), (0, 0.5), color=color, linewidth=0.7, alpha=0.6, zorder=1)
    marker = "o" if inside else "<" if star < LENGTHS[0] else ">"
    below.axhline(y, color=FAINT, linewidth=0.6, zorder=0.5)
    below.plot(where, y, marker, markersize=6, color=color)
    right = where < 3e5
    below.annotate(
        f"{star:,.0f}" if np.isfinite(star) else "never", (where, y), xytext=(7 if right else -7, 0),
        textcoords="offset points", ha="left" if right else "right", va="center", fontsize=8.0, color=color,
    )  # fmt: skip


def _lengths(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xlim(LENGTHS[0], LENGTHS[-1])
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 3.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(tokens))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("context length (tokens); dots: P* = c / β, where half of the work is attention")
