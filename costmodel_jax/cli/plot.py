"""``costmodel plot``: figures, each with its numbers beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from costmodel_jax.cli.options import Axes, Output, Reading, Texts, arg, configuration
from costmodel_jax.cli.reading import load
from costmodel_jax.cli.screen import Screen
from costmodel_jax.errors import CostModelError, InputError
from costmodel_jax.groups import compiling_quickly
from costmodel_jax.schema import Run

__all__ = ["HELP", "Command"]

HELP = "\n".join(
    [
        "Without --figure, all that the runs have the facts for.",
        "",
        "Example:",
        "  costmodel plot logs/ --out figures/ --figure waterfall --cache vllm",
        "",
        "Figures:",
        "  cost       policies and cache rules relative to keeping all, with intervals",
        "  w          the same against the price of generation",
        "  trigger    cost and mean prompt against the trigger of compaction",
        "  waterfall  the longest run call by call",
        "  crossover  attention share and P* by architecture; needs no log",
        "  horizon    L* over reasoning and answer length; needs no log",
        "  reuse      predicted against measured hits",
    ]
)
WITHOUT_RUNS = ("crossover", "horizon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output, Axes, Reading):
    """Options of ``costmodel plot``."""

    out: Annotated[Path, arg(metavar="DIR", help="Folder to write to.")] = Path("figures")
    figure: Annotated[Texts, arg(metavar="NAME", help="Figure to draw.", help_behavior_hint="(repeatable)")] = ()
    type: Annotated[Literal["png", "svg", "pdf"], arg(metavar="TYPE", help="png, svg or pdf.")] = "png"
    w: Annotated[float, arg(metavar="W", help="Price of a generated position relative to a prefilled one.")] = 1.0

    def run(self) -> int:
        """Draw, and return the exit code."""
        from costmodel_jax import figures

        unknown = [name for name in self.figure if name not in figures.FIGURES]
        if unknown:
            raise InputError(f"--figure {unknown[0]}: unknown; known: {', '.join(figures.FIGURES)}")
        screen = Screen(json=self.json, quiet=self.quiet)
        policies, caches, architectures = self.policies(), self.caches(), self.architectures()
        names = self.figure or tuple(figures.FIGURES)
        needs_runs = self.paths or any(name not in WITHOUT_RUNS for name in names)
        runs: list[Run] = load(self, screen).runs if needs_runs else []
        written: list[Path] = []
        left_out: dict[str, str] = {}
        with screen.progress("drawing", len(names)) as advance, compiling_quickly(runs):
            for name in names:
                try:
                    figure, rows = figures.FIGURES[name](runs, policies, caches, architectures, self.w)
                    written += figures.save(figure, rows, self.out / f"{name}.{self.type}")
                except InputError:
                    raise
                except CostModelError as error:
                    if self.figure:
                        raise
                    left_out[name] = str(error)
                advance()
        screen.answer(
            {
                "command": "plot",
                "configuration": configuration(self),
                "files": [str(path) for path in written],
                "left_out": left_out,
            }
        )
        for path in written:
            screen.line(str(path))
        for name, reason in left_out.items():
            screen.note(f"{name} left out: {reason}")
        return 0
