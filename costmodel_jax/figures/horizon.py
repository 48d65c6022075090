"""How long a reasoning block must stay before keeping it costs more than rebuilding what stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from costmodel_jax.errors import CostModelError
from costmodel_jax.exchange import exchange_rate, retention_horizon
from costmodel_jax.figures.style import INK, ORANGE, canvas, styled, tokens
from costmodel_jax.pricing import Prices

__all__ = ["horizon"]

HEIGHT = 3.6  # inches
STEPS = 49
RANGES = {"H": (1e3, 1e6), "r": (1e1, 1e4), "a": (1e1, 1e4)}
WORDS = {
    "H": "prefix before the block, H (tokens)",
    "r": "reasoning, r (tokens)",
    "a": "answer behind the block, a (tokens)",
}


@styled
def horizon(
    prices: Prices,
    across: Literal["H", "r"] = "H",
    *,
    H: int | float = 20_000,
    r: int | float = 2_000,
    blocks: Sequence[tuple[int | float, int | float]] = (),
    subtitle: str = "",
) -> tuple[Figure, list[dict[str, Any]]]:
    """Heat map of L* = (a / r)(P* + H + (a + 1) / 2) over the answer a and either the prefix H or the reasoning r.

    Keeping the block is cheaper while fewer than L* positions are still to come, dropping it beyond.

    Args:
      prices: of an architecture.
      across: what the horizontal axis shows; the other one is held fixed.
      H, r: the fixed value, in tokens.
      blocks: (``across``, a) of reasoning blocks of runs, drawn as dots; those outside the map stand at its edge.
      subtitle: the architecture and a remark.

    Returns:
      The figure, and rows with ``H``, ``r``, ``a`` and ``retention_horizon`` (L*).

    Raises:
      CostModelError: attention is free, so that there is no horizon.
    """
    if not np.isfinite(float(exchange_rate(prices))):
        raise CostModelError(
            "attention is free at these prices (beta = 0): keeping never costs anything, L* is infinite"
        )
    fixed = {"H": ("r", r), "r": ("H", H)}[across]
    x = np.geomspace(*RANGES[across], STEPS)
    a = np.geomspace(*RANGES["a"], STEPS)
    values: dict[str, Any] = {"H": H, "r": r, "a": a[:, None], across: x[None, :]}
    stars = np.asarray(retention_horizon(prices, H=values["H"], r=values["r"], a=values["a"]))
    figure = canvas(HEIGHT, "Keep reasoning while fewer positions than L* are still to come", subtitle)
    axes = figure.subplots()
    for axis, name in ((axes.xaxis, across), (axes.yaxis, "a")):
        _log(axes, axis, WORDS[name])
    axes.set_xlim(RANGES[across])
    axes.set_ylim(RANGES["a"])
    low, high = 10 ** np.floor(np.log10(stars.min())), 10 ** np.ceil(np.log10(stars.max()))
    mesh = axes.pcolormesh(x, a, stars, norm=LogNorm(low, high), cmap="YlGnBu", shading="gouraud", rasterized=True)
    if blocks:
        dots = np.clip(np.array(blocks, np.float64), *np.array([RANGES[across], RANGES["a"]]).T)
        axes.scatter(dots[:, 0], dots[:, 1], s=7, color=ORANGE, edgecolor="white", linewidth=0.4, zorder=3)
    decades = 10.0 ** np.arange(np.log10(low), np.log10(high) + 0.5)
    axes.contour(x, a, stars, levels=decades, colors=INK, linewidths=0.9)
    for star in decades:
        _label(axes, x, a, stars, float(star))
    bar = figure.colorbar(mesh, ax=axes, pad=0.015, aspect=28)
    bar.set_label(f"L* (later positions), at {fixed[0]} = {fixed[1]:,.0f}")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tokens))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)
    table = [
        {
            "H": _at(values["H"], i, j),
            "r": _at(values["r"], i, j),
            "a": float(a[i]),
            "retention_horizon": float(stars[i, j]),
        }
        for i in range(STEPS)
        for j in range(STEPS)
    ]
    return figure, table


def _label(axes: Axes, x: np.ndarray, a: np.ndarray, stars: np.ndarray, star: float) -> None:
    """The value of a contour, written on it at the first place where it is well inside the map."""
    for column in (len(x) // 12, len(x) // 3, len(x) * 2 // 3, len(x) * 11 // 12):
        row = np.interp(np.log(star), np.log(stars[:, column]), np.arange(len(a)), left=-1, right=-1)
        if len(a) * 0.05 <= row <= len(a) * 0.95:
            height = np.exp(np.interp(row, np.arange(len(a)), np.log(a)))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
            axes.text(x[column], height, tokens(star), ha="center", va="center", fontsize=8.5, bbox=box, zorder=4)
            return


def _log(axes: Axes, axis: Any, label: str) -> None:
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(10))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(tokens))
    axis.set_label_text(label)


def _at(value: Any, i: int, j: int) -> float:
    return float(np.broadcast_to(value, (STEPS, STEPS))[i, j])
