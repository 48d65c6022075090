"""How every figure looks: one width, one palette, a header of its own, labels that never overlap.

Figures are built without pyplot, so no global state changes and no display is needed. They are 8 inches wide, which is
readable at the 800 pixels a README gives them.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

__all__ = [
    "BLUE",
    "FAINT",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "PALETTE",
    "WIDTH",
    "canvas",
    "level",
    "ratio_ticks",
    "style",
    "styled",
    "tokens",
    "wrapped",
]

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 8.0  # inches
# Okabe and Ito's palette, which people with any colour vision tell apart, in an order that keeps neighbours distinct.
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
PALETTE = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#B58900", "#555555", "#000000")
INK, GREY, FAINT = "#222222", "#6B6B6B", "#D9D9D9"

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same picture on every machine
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "text.usetex": False,
    "figure.dpi": 100.0,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.bbox": None,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults with this style on top, whatever the caller has set; undone on leaving."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def styled(build: Callable[P, T]) -> Callable[P, T]:
    """Run a function that draws inside ``style``."""

    @functools.wraps(build)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with style():
            return build(*args, **kwargs)

    return inside


def canvas(height: float, title: str, subtitle: str = "", key: Sequence[Artist] = ()) -> Figure:
    """A figure whose plots fill what its header leaves.

    Args:
      height: of the plots, in inches; the header comes on top.
      title, subtitle: lines are broken to fit.
      key: labelled artists, explained in one line under the subtitle.
    """
    titles = textwrap.wrap(title, 82)
    subtitles = textwrap.wrap(subtitle, 112)
    below_title = 0.1 + 0.19 * len(titles)
    below_subtitle = below_title + 0.16 * len(subtitles)
    header = below_subtitle + (0.26 if key else 0.04)
    height += header
    figure = Figure(
        figsize=(WIDTH, height),
        layout=ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, 1.0 - header / height), h_pad=0.06, w_pad=0.06),
    )
    left = 0.08 / WIDTH
    figure.text(left, 1 - 0.1 / height, "\n".join(titles), va="top", fontsize=10.5, fontweight="bold", linespacing=1.25)
    figure.text(
        left, 1 - below_title / height, "\n".join(subtitles), va="top", fontsize=8.5, color=GREY, linespacing=1.3
    )
    if key:
        legend = figure.legend(
            handles=list(key), loc="upper left", bbox_to_anchor=(0.0, 1 - (below_subtitle + 0.03) / height),
            ncols=len(key), frameon=False, fontsize=8.5, borderpad=0.0, borderaxespad=0.08 * 72 / 8.5,
            handlelength=1.0, handleheight=0.9, handletextpad=0.5, columnspacing=1.6,
        )  # fmt: skip
        legend.set_in_layout(False)
    return figure


def wrapped(name: str, width: int = 22) -> str:
    """A policy's or a rule's name on several lines, broken after a colon, a comma or a hyphen."""
    lines = [""]
    for part in re.findall(r"[^:,\-]*[:,\-]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.strip() for line in lines)


def tokens(value: int | float, _: object = None) -> str:
    """A number of tokens for an axis: 800, 16k, 1.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def level(axes: Axes, *, x: float | None = None, y: float | None = None) -> None:
    """A reference line behind the data."""
    if x is not None:
        axes.axvline(x, color=GREY, linewidth=1.0, zorder=0.5)
    if y is not None:
        axes.axhline(y, color=GREY, linewidth=1.0, zorder=0.5)


def ratio_ticks(axes: Axes, low: float, high: float) -> None:
    """A logarithmic vertical axis from ``low`` to ``high`` with enough ticks at round ratios."""
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks = [
        tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0) if low <= tick <= high
    ]
    if len(ticks) < 3:
        ticks = [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
