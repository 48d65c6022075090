"""Names written at the ends of lines instead of a legend, moved apart where lines end together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from costmodel_jax.figures.style import wrapped

__all__ = ["name_lines", "spread"]

LINE = 0.145  # inches a line of text needs


def name_lines(axes: Axes, ends: Mapping[str, float], colors: Mapping[str, str], height: float) -> None:
    """Write each line's last value and name to its right; the axes' limits and scale must be settled.

    Args:
      axes: what the lines are in; they end at its right border.
      ends: name -> last value.
      colors: name -> colour.
      height: of the axes, in inches, about.
    """
    names = {name: wrapped(f"{end:.2f}  {name}", 27).replace("\n", "\n          ") for name, end in ends.items()}
    lines = max(name.count("\n") + 1 for name in names.values())
    to_axes = axes.transScale + axes.transLimits
    at = [float(to_axes.transform((axes.get_xlim()[1], end))[1]) for end in ends.values()]
    for name, y, label in zip(ends, at, spread(at, LINE * lines / height, 0.0, 1.0), strict=True):
        axes.plot(
            (1.0, 1.025, 1.035),
            (y, label, label),
            color=colors[name],
            linewidth=0.7,
            transform=axes.transAxes,
            clip_on=False,
        )
        axes.text(1.042, label, names[name], transform=axes.transAxes, va="center", fontsize=8.0, color=colors[name])


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart until neighbours are ``gap`` apart, each as little as possible, inside [low, high].

    Labels that touch form a block, which is centred on the mean of where its members belong. If they do not all fit
    they are spaced evenly.
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    if not order:
        return []
    gap = min(gap, (high - low) / max(len(order) - 1, 1))
    blocks: list[list[float]] = []  # [sum of the starts the members ask for, members]
    for i in order:
        blocks.append([positions[i], 1.0])
        while len(blocks) > 1 and _end(blocks[-2], gap, low, high) + gap > _start(blocks[-1], gap, low, high):
            wish, members = blocks.pop()
            blocks[-1][0] += wish - blocks[-1][1] * gap * members
            blocks[-1][1] += members
    moved = [0.0] * len(positions)
    ranks = iter(order)
    for block in blocks:
        start = _start(block, gap, low, high)
        for member in range(int(block[1])):
            moved[next(ranks)] = start + member * gap
    return moved


def _start(block: list[float], gap: float, low: float, high: float) -> float:
    wish, members = block
    return min(max(wish / members, low), high - (members - 1) * gap)


def _end(block: list[float], gap: float, low: float, high: float) -> float:
    return _start(block, gap, low, high) + (block[1] - 1) * gap
