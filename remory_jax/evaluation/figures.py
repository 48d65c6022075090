"""Figures of an evaluation and of a training run, in the style of costmodel_jax's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from costmodel_jax.figures.labels import name_lines
from costmodel_jax.figures.style import GREY, PALETTE, canvas, styled
from remory_jax.evaluation.conditions import CONDITIONS, Measured

__all__ = ["kl_by_position", "training_curves"]

_HEIGHT = 3.4  # inches
_FLOOR = 1e-6  # nats; a logarithmic axis has no zero


@styled
def kl_by_position(measured: Measured, subtitle: str = "", bins: int = 32) -> tuple[Figure, list[dict[str, Any]]]:
    """Reverse KL to the full-context teacher over the position in the response, a line per condition.

    Args:
      subtitle: what was evaluated.
      bins: at most so many points; positions without weight are left out.

    Returns:
      The figure, and its rows: condition, position (the last of its bin) and KL in nats.
    """
    weights = measured.weights.astype(np.float64)
    columns = np.flatnonzero(weights.sum(axis=0))
    groups = np.array_split(columns, min(bins, len(columns)))
    rows: list[dict[str, Any]] = [
        {
            "condition": name,
            "position": int(group[-1]),
            "reverse_kl": float(
                np.sum(measured.conditions[name].reverse[:, group] * weights[:, group]) / weights[:, group].sum()
            ),
        }
        for name in CONDITIONS
        if name in measured.conditions and name != "full context"
        for group in groups
    ]
    figure = canvas(_HEIGHT, "What each condition loses against the full context, along the response", subtitle)
    axes = figure.subplots()
    names = list(dict.fromkeys(row["condition"] for row in rows))
    colors = {name: GREY if name == "summary" else PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    ends = {}
    for name in names:
        line = [(row["position"], max(row["reverse_kl"], _FLOOR)) for row in rows if row["condition"] == name]
        axes.plot(*zip(*line, strict=True), color=colors[name], marker="o", markersize=2.5)
        ends[name] = line[-1][1]
    axes.set_yscale("log")
    axes.set_xlim(columns[0], max(columns[-1], columns[0] + 1))
    axes.set_xlabel("token of the response")
    axes.set_ylabel("KL(student || teacher), nats (log scale)")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(axis="y")
    figure.draw_without_rendering()
    name_lines(axes, ends, colors, _HEIGHT)
    return figure, rows


@styled
def training_curves(lines: Sequence[Mapping[str, Any]], subtitle: str = "") -> tuple[Figure, list[dict[str, Any]]]:
    """The loss over steps, and on a held-out batch what the memory gives and what another's memory costs.

    Without probes of a held-out batch there is the loss alone.

    Args:
      lines: of ``metrics.jsonl``, of all kinds.

    Returns:
      The figure, and its rows: kind, step, name, value.
    """
    rows = [
        {"kind": line["kind"], "step": line["step"], "name": name, "value": line[name]}
        for line in lines
        for name in ("loss", "reverse_kl", "own_minus_shuffled")
        if line.get(name) is not None
    ]
    probes = [(row["step"], row["value"]) for row in rows if row["name"] == "own_minus_shuffled"]
    title = "Training: the loss, and whether the memory is used" if probes else "Training: the loss"
    figure = canvas(_HEIGHT, title, subtitle)
    left, *others = figure.subplots(1, 2 if probes else 1, squeeze=False)[0]
    named = {"loss": "training batches", "reverse_kl": "held out"}
    for color, (name, label) in zip(PALETTE, named.items(), strict=False):
        points = [(row["step"], max(row["value"], _FLOOR)) for row in rows if row["name"] == name]
        if points:
            left.plot(*zip(*points, strict=True), color=color, label=label)
    left.set_yscale("log")
    left.set_ylabel("KL to the teacher, nats (log scale)")
    left.legend(frameon=False, fontsize=8.5)
    for right in others:
        right.plot(*zip(*probes, strict=True), color=PALETTE[2])
        right.axhline(0.0, color=GREY, linewidth=1.0)
        right.set_ylabel("own memory less another's, nats (below 0: used)")
    for axes in (left, *others):
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y")
    return figure, rows
