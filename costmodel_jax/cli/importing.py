"""``costmodel import``: logs of any known format to agent-run/1 JSON Lines."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from typing import Annotated

import msgspec

from costmodel_jax.cli.options import File, Output, Reading, arg, configuration
from costmodel_jax.cli.price_view import show_loaded
from costmodel_jax.cli.reading import load
from costmodel_jax.cli.screen import Screen
from costmodel_jax.errors import InputError
from costmodel_jax.importers import importers
from costmodel_jax.tables import whole_file

__all__ = ["HELP", "Command"]

HELP = "\n".join(
    [
        "Lengths are kept, never text. Runs go to stdout unless --out names a file.",
        "",
        "Example:",
        "  costmodel import ~/.claude/projects --out runs.jsonl",
        "",
        "Formats:",
        *(f"  {one.name:<15} {textwrap.shorten(one.title, 60, placeholder='...')}" for one in importers()),
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output, Reading):
    """Options of ``costmodel import``."""

    out: Annotated[File, arg(metavar="FILE", help="Where to write.", help_behavior_hint="")] = None

    def run(self) -> int:
        """Import, and return the exit code."""
        if self.json and self.out is None:
            raise InputError("--json answers with an account of what was written to --out; without --out, leave it out")
        screen = Screen(json=self.json, quiet=self.quiet)
        loaded = load(self, screen)
        lines = [msgspec.json.encode(run.to_dict()) + b"\n" for run in loaded.runs]
        if self.out is None:
            # Beside runs on stdout the account is not part of the answer.
            aside = Screen(quiet=self.quiet)
            aside.out = aside.err
            if not self.quiet:
                show_loaded(aside, loaded)
            sys.stdout.flush()
            sys.stdout.buffer.writelines(lines)
            return 0
        with whole_file(self.out) as stream:
            stream.writelines(lines)
        screen.answer(
            {"command": "import", "configuration": configuration(self), "loaded": loaded.to_dict(), "out": self.out}
        )
        show_loaded(screen, loaded)
        screen.line(f"wrote {self.out}")
        return 0
