"""Call by call: what was processed and why, above the line; what came from the cache, below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from costmodel_jax.errors import CostModelError
from costmodel_jax.figures.style import BLUE, GREEN, INK, ORANGE, canvas, styled, tokens, wrapped

__all__ = ["waterfall"]

REUSED = "#BDBDBD"
PARTS = (("recomputed", ORANGE), ("new", BLUE), ("generated", GREEN))
# Inches. Laid out by hand, because the two halves of a panel touch and all panels are equally high.
NAME, ABOVE, BELOW, FOOT, LEFT, RIGHT = 0.34, 0.95, 0.55, 0.5, 0.72, 0.1
PANEL = NAME + ABOVE + BELOW
CAUSES = 2  # written beside a panel's name
VISIBLE, APART = 0.05, 0.2  # breaks are named in the plot if they are this high and this far apart


@styled
def waterfall(
    panels: Mapping[str, Sequence[Mapping[str, Any]]], subtitle: str = ""
) -> tuple[Figure, list[dict[str, Any]]]:
    """Stacked bars per call, one panel per policy: recomputed, new and generated upwards, reused downwards.

    Both directions are in tokens, each on a scale of its own that all panels share, because reuse is tens of times the
    rest. Diamonds mark summary requests; the largest breaks carry their cause.

    Args:
      panels: name of each policy -> one row per call and summary request in order, with ``call``, ``summary``,
        ``reused``, ``recomputed``, ``new``, ``generated`` and ``cause``, as ``Explanation.to_rows`` gives.
      subtitle: which run, under which cache rule.

    Returns:
      The figure, and all rows with their ``policy``.

    Raises:
      CostModelError: no panel, or a panel without calls.
    """
    if not panels or not all(panels.values()):
        raise CostModelError("a waterfall needs at least one policy, and calls under each")
    figure = canvas(PANEL * len(panels) + FOOT, "What each call reused and what it processed", subtitle, _key())
    pairs = _halves(figure, len(panels))
    every = [row for rows in panels.values() for row in rows]
    processed = max(sum(int(row[name]) for name, _ in PARTS) for row in every)
    reused = max(int(row["reused"]) for row in every)
    for (above, below), (name, rows) in zip(pairs, panels.items(), strict=True):
        _bars(above, below, rows)
        above.set_ylim(0, max(processed, 1) * 1.25)
        below.set_ylim(max(reused, 1) * 1.05, 0)
        above.set_title(
            wrapped(name, 60),
            fontweight="bold",
            fontsize=8.5,
        )
        above.set_title(
            _told(rows),
            loc="right",
            fontsize=8.0,
            color=ORANGE,
        )
        _mark(above, rows)
    pairs[-1][1].tick_params(axis="x", length=3, labelbottom=True)
    pairs[-1][1].set_xlim(-0.7, max(int(row["call"]) for row in every) + 0.7)
    pairs[-1][1].set_xlabel("call (a summary request shares the place of the call it precedes)")
    return figure, [{"policy": name, **row} for name, rows in panels.items() for row in rows]


def _halves(figure: Figure, panels: int) -> list[tuple[Axes, Axes]]:
    """The axes above and below the line of each panel, from the top."""
    figure.set_layout_engine("none")
    width, height = figure.get_size_inches()
    pairs: list[tuple[Axes, Axes]] = []
    for panel in range(panels):
        line = FOOT + BELOW + PANEL * (panels - 1 - panel)
        shared = pairs[0][0] if pairs else None
        across = (LEFT / width, 1 - (LEFT + RIGHT) / width)
        above = figure.add_axes((across[0], line / height, across[1], ABOVE / height), sharex=shared)
        below = figure.add_axes((across[0], (line - BELOW) / height, across[1], BELOW / height), sharex=shared or above)
        above.set_ylabel("tokens")
        above.yaxis.set_label_coords(-0.55 / (width - LEFT - RIGHT), (ABOVE - BELOW) / 2 / ABOVE)
        pairs.append((above, below))
    return pairs


def _bars(above: Axes, below: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    x, width = _places(rows)
    base = np.zeros(len(rows))
    for name, color in PARTS:
        values = np.array([int(row[name]) for row in rows], np.float64)
        above.bar(x, values, width, bottom=base, color=color, align="edge")
        base += values
    below.bar(x, [int(row["reused"]) for row in rows], width, color=REUSED, align="edge")
    below.spines["bottom"].set_visible(False)
    above.spines["bottom"].set_color(INK)
    for axes, ticks in ((above, 4), (below, 3)):
        axes.yaxis.set_major_locator(MaxNLocator(ticks, prune="lower" if axes is above else None))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "" if value == 0 else tokens(value)))
        axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
        axes.tick_params(axis="x", length=0, labelbottom=False)


def _places(rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Left edge and width of each bar; a summary request takes the first half of its call's place."""
    calls = np.array([int(row["call"]) for row in rows])
    requests = np.array([bool(row["summary"]) for row in rows])
    preceded = np.isin(calls, calls[requests])
    full = 1.0 if len(rows) > 40 else 0.86
    width = np.where(preceded, full / 2, full)
    return calls - full / 2 + np.where(preceded & ~requests, full / 2, 0.0), width


def _told(rows: Sequence[Mapping[str, Any]]) -> str:
    """How much was processed again, and why."""
    causes: dict[str, list[int]] = {}
    for row in rows:
        if int(row["recomputed"]) > 0:
            causes.setdefault(str(row["cause"]), []).append(int(row["recomputed"]))
    if not causes:
        return "nothing recomputed"
    named = sorted(causes, key=lambda cause: -sum(causes[cause]))[:CAUSES]
    said = ", ".join(f"{cause} {len(causes[cause])}×" for cause in named)
    more = f", {len(causes) - CAUSES} more" if len(causes) > CAUSES else ""
    return f"{tokens(sum(map(sum, causes.values())))} recomputed: {said}{more}"


def _mark(above: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Diamonds at summary requests, and in words the cause of breaks where they are few and stand apart."""
    left, width = _places(rows)
    heights = [sum(int(row[name]) for name, _ in PARTS) for row in rows]
    middle, top = left + width / 2, above.get_ylim()[1]
    requests = [i for i, row in enumerate(rows) if row["summary"]]
    if requests:  # an empty line would have a box at the corner of the figure
        above.plot(middle[requests], [heights[i] + top * 0.06 for i in requests], "D", markersize=4.0, color=INK)
    breaks = [i for i, row in enumerate(rows) if int(row["recomputed"]) > top * VISIBLE]
    span = middle[-1] - middle[0] + 1
    if not breaks or min(np.diff(middle[breaks]), default=span) < span * APART:
        return
    for i in breaks:
        right = middle[i] < span * 0.75
        side = left[i] + width[i] if right else left[i]
        above.annotate(
            str(rows[i]["cause"]), (side, heights[i]), xytext=(3 if right else -3, 0),
            textcoords="offset points", ha="left" if right else "right", va="top", fontsize=8.0, color=ORANGE,
        )  # fmt: skip


def _key() -> list[Artist]:
    return [
        *(Patch(color=color, label=name) for name, color in PARTS),
        Patch(color=REUSED, label="reused (below the line)"),
        Line2D([], [], marker="D", linestyle="", markersize=4.0, color=INK, label="summary request"),
    ]
