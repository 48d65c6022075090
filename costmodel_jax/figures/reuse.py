"""Reuse as a cache rule predicts it against reuse as a server reported it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Num
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from costmodel_jax.errors import CostModelError
from costmodel_jax.figures.style import BLUE, GREY, ORANGE, canvas, styled, tokens, wrapped

__all__ = ["predicted_reuse"]

TITLE = 18  # letters that fit over a panel
FEW = {1: 3.2, 2: 3.0, 3: 2.5}  # panels in a row -> inches they may be high
COLUMNS, ROW, HEAD = 5, 1.75, 0.4  # panels a row; inches
POINTS = 20_000  # more would only make the picture slow to open


@styled
def predicted_reuse(
    setting: Sequence[str],
    predicted: Num[np.ndarray, " calls"] | Sequence[int],
    measured: Num[np.ndarray, " calls"] | Sequence[int],
    subtitle: str = "",
) -> tuple[Figure, list[dict[str, Any]]]:
    """One panel per setting: predicted against measured reuse of every call, and how many calls are exact.

    Args:
      setting: [calls] the panel each call belongs to.
      predicted: [calls] R of the rule, in tokens.
      measured: [calls] R as recorded, in tokens.
      subtitle: where the recording comes from.

    Returns:
      The figure, and one row per setting with ``calls``, ``exact``, ``predicted`` and ``measured`` (tokens in total),
      ``short`` and ``beyond`` (tokens by which measured hits miss or exceed the prediction).

    Raises:
      CostModelError: no calls, or lengths that differ.
    """
    if not len(setting) or not len(setting) == len(predicted) == len(measured):
        raise CostModelError(
            f"give one setting, one prediction and one measurement per call: {len(setting)}, {len(predicted)} and "
            f"{len(measured)} were given"
        )
    names = list(dict.fromkeys(setting))
    groups = np.array([names.index(each) for each in setting])
    x, y = np.asarray(measured, np.int64), np.asarray(predicted, np.int64)
    longest = max(len(line) for name in names for line in wrapped(name, TITLE).split("\n"))
    columns = min(COLUMNS if longest <= TITLE else COLUMNS - 1, len(names))
    lines = math.ceil(len(names) / columns)
    exact = int((x == y).sum())
    title = f"Predicted and measured reuse: {exact:,} of {len(x):,} calls equal to the token"
    figure = canvas(lines * FEW.get(columns, ROW) + HEAD, title, subtitle)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(h_pad=0.08)  # titles stand below tick labels
    panels = figure.subplots(lines, columns, squeeze=False)
    table = []
    for i, (panel, name) in enumerate(zip(panels.flat, names, strict=False)):
        here = groups == i
        table.append({"setting": name, **_facts(x[here], y[here])})
        _panel(panel, name, x[here], y[here])
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    figure.supxlabel("measured reuse (tokens)", fontsize=9.0)
    figure.supylabel("predicted reuse (tokens)", fontsize=9.0)
    return figure, table


def _facts(measured: np.ndarray, predicted: np.ndarray) -> dict[str, int]:
    return {
        "calls": len(measured),
        "exact": int((measured == predicted).sum()),
        "predicted": int(predicted.sum()),
        "measured": int(measured.sum()),
        "short": int(np.maximum(predicted - measured, 0).sum()),
        "beyond": int(np.maximum(measured - predicted, 0).sum()),
    }


def _panel(panel: Axes, name: str, measured: np.ndarray, predicted: np.ndarray) -> None:
    top = max(int(measured.max()), int(predicted.max()), 1) * 1.06
    panel.plot((0, top), (0, top), color=GREY, linewidth=0.8, zorder=1)
    right = measured == predicted
    for mask, color, order in ((right, BLUE, 2), (~right, ORANGE, 3)):
        shown = np.flatnonzero(mask)
        shown = shown[:: len(shown) // POINTS + 1]
        panel.plot(
            measured[shown],
            predicted[shown],
            "o",
            markersize=2.6,
            color=color,
            alpha=0.7,
            zorder=order,
            markeredgewidth=0,
            rasterized=True,
        )
    panel.set_aspect("equal", "box")
    panel.set_xlim(-top * 0.03, top)
    panel.set_ylim(-top * 0.03, top)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(tokens))
    panel.set_title(wrapped(name, TITLE), fontsize=7.5)
    panel.text(
        1.0, 0.04, f"{right.sum():,} of {len(right):,}\nexact", transform=panel.transAxes, ha="right", va="bottom",
        fontsize=8.0, color=BLUE if right.all() else ORANGE, linespacing=1.2,
    )  # fmt: skip
