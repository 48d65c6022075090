"""What can be seen in a drawn figure: which texts, where, and whether they can be read."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from costmodel_jax.figures.style import style


def texts(figure: Figure) -> list[tuple[Text, Any]]:
    """Every text that is really drawn, with its box in pixels."""
    drawn: list[Text] = []
    draw = Text.draw

    def noted(text: Text, renderer: Any) -> None:
        drawn.append(text)
        draw(text, renderer)

    with style(), mock.patch.object(Text, "draw", noted):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        drawn.clear()  # the layout is settled only now
        canvas.draw()
        shown = [text for text in drawn if text.get_visible() and text.get_text().strip()]
        assert shown
        return [(text, text.get_window_extent(canvas.get_renderer())) for text in shown]


def assert_readable(figure: Figure) -> None:
    """No text is cut by the border or lies on another."""
    width, height = figure.get_size_inches() * figure.dpi
    placed = texts(figure)
    for text, box in placed:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text.get_text()
    for (left, a), (right, b) in itertools.combinations(placed, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        upright = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 1 or upright <= 2, (left.get_text(), right.get_text())


def said(figure: Figure) -> str:
    return "\n".join(text.get_text() for text, _ in texts(figure))
