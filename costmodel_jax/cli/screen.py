"""Where output goes: answers to stdout, all else to stderr."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from costmodel_jax.tables import to_json

__all__ = ["Screen", "table"]


class Screen:
    """The two streams of a command.

    Args:
      json: whether stdout holds one JSON document and nothing else.
      quiet: whether stderr holds nothing but errors.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json, self.quiet = json, quiet
        self.out = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self.err = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)

    def note(self, message: str) -> None:
        """Something to know, on stderr."""
        if not self.quiet:
            self.err.print(message, soft_wrap=True)

    def say(self, message: str | Table = "", indent: int = 0) -> None:
        """A part of the answer for a person, folded to the terminal's width; nothing where the answer is JSON."""
        if self.json:
            return
        if isinstance(message, str) and message:
            hang = " " * (indent + 2)
            message = textwrap.fill(
                message, self.out.width, initial_indent=" " * indent, subsequent_indent=hang, break_on_hyphens=False
            )
        self.out.print(message, soft_wrap=isinstance(message, str))

    def line(self, message: str) -> None:
        """A part of the answer that stays on one line, such as a path; nothing where the answer is JSON."""
        if not self.json:
            self.out.print(message, soft_wrap=True)

    def show(self, title: str, rows: Table) -> None:
        """A table under its title."""
        if not self.json:
            self.out.print(Text(textwrap.fill(title, self.out.width, subsequent_indent="  "), style="bold"))
            self.out.print(rows)
            self.out.print()

    def answer(self, document: dict[str, Any]) -> None:
        """The answer for a program; nothing where it is for a person."""
        if self.json:
            sys.stdout.write(to_json(document) + "\n")

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[], None]]:
        """A bar on stderr, on a terminal alone; gives the function that moves it on by one."""
        shown = not self.quiet and self.err.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.err, transient=True, disable=not shown) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)


def table(*columns: str, left: Sequence[str] = (), least: int = 0) -> Table:
    """An empty table.

    Args:
      columns: names; numbers stand to the right and are never folded.
      left: the columns that stand to the left and are folded where too long.
      least: width of the first column, at least.
    """
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, collapse_padding=True)
    for position, column in enumerate(columns):
        text = column in left
        made.add_column(
            column,
            justify="left" if text else "right",
            overflow="fold",
            no_wrap=not text,
            min_width=None if position else least,
        )
    return made
