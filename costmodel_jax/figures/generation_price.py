"""Cost of each policy relative to keeping everything, against the price of a generated position."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from costmodel_jax.errors import CostModelError
from costmodel_jax.figures.labels import name_lines
from costmodel_jax.figures.style import GREY, PALETTE, canvas, ratio_ticks, styled

__all__ = ["cost_by_generation_price"]

HEIGHT, FOOT = 2.9, 0.6  # inches


@styled
def cost_by_generation_price(
    rows: Sequence[Mapping[str, Any]], subtitle: str = "", baseline: str = "keep-all"
) -> tuple[Figure, list[dict[str, Any]]]:
    """One line per policy over w, each named at its end.

    Args:
      rows: one per policy and w with ``policy``, ``w`` and ``vs_keep_all``; None or NaN where there is no number,
        which leaves the policy out and is said.
      subtitle: runs, cache rule and architecture.
      baseline: the policy that the others are relative to, drawn thin and grey.

    Returns:
      The figure, and the rows by policy and w.

    Raises:
      CostModelError: no policy has a number at every w, or two rows are for the same policy and w.
    """
    prices = sorted({float(row["w"]) for row in rows})
    cells = {(str(row["policy"]), float(row["w"])): row for row in rows}
    if len(cells) != len(rows):
        raise CostModelError("two rows are for the same policy and w: select one cache rule and one architecture first")
    policies = list(dict.fromkeys(str(row["policy"]) for row in rows))
    lines = {name: [_number(cells.get((name, w), {}).get("vs_keep_all")) for w in prices] for name in policies}
    shown = {name: np.array(line) for name, line in lines.items() if np.all(np.isfinite(line))}
    if not shown:
        raise CostModelError("no policy has a number at every w: there is nothing to draw")
    others = [name for name in policies if name != baseline]
    looks = {
        name: (PALETTE[i % len(PALETTE)], "-" if i < len(PALETTE) else (0, (3, 1.5))) for i, name in enumerate(others)
    }
    figure = canvas(HEIGHT + FOOT, "How the price of generation changes what a policy costs", subtitle)
    axes = figure.subplots()
    for name, line in shown.items():
        color, dashes = looks.get(name, (GREY, "-"))
        axes.plot(prices, line, color=color, linestyle=dashes, linewidth=1.8 if name in looks else 1.0)
    values = np.concatenate(list(shown.values()))
    low, high = min(float(values.min()), 1.0) / 1.08, max(float(values.max()), 1.0) * 1.08
    axes.set_xlim(prices[0], prices[-1] if len(prices) > 1 else prices[0] + 1)
    axes.set_xlabel("w: price of a generated position relative to a prefilled one")
    axes.set_ylabel(f"cost / cost of {baseline} (log scale)")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    ratio_ticks(axes, low, high)
    ends = {name: float(line[-1]) for name, line in shown.items()}
    name_lines(axes, ends, {name: looks.get(name, (GREY, ""))[0] for name in shown}, HEIGHT)
    missing = [name for name in policies if name not in shown]
    if missing:
        said = textwrap.fill(f"no number for {', '.join(missing)}", 90)
        axes.set_title(said, fontsize=8.0, color=GREY, style="italic")
    return figure, [dict(cells[name, w]) for name in policies for w in prices if (name, w) in cells]


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)
