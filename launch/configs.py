"""Experiments from the command line: a file of configs/, and overrides of any of its fields."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from costmodel_jax.errors import InputError
from remory_jax.training.experiment import Experiment

__all__ = ["load_experiment", "read_experiment"]

T = TypeVar("T")


def load_experiment(path: str | Path) -> Experiment:
    """What ``get_config()`` of a configuration file returns. The file is Python, and is run.

    Raises:
      InputError: there is no such file, or it gives no experiment.
    """
    path = Path(path)
    if not path.is_file():
        known = sorted(str(found) for found in Path("configs").glob("*.py"))
        raise InputError(f"there is no such file; there are {', '.join(known) or 'none in configs/'}", path=path)
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    get_config = getattr(module, "get_config", None)
    found = get_config() if callable(get_config) else None
    if not isinstance(found, Experiment):
        raise InputError("get_config() is missing or returns no Experiment", path=path)
    return found


def _kept(text: str) -> str:
    """The text in lines of 80 columns; what is indented, help keeps as it is."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    indents = {"initial_indent": " ", "subsequent_indent": " "}
    return "\n\n".join(textwrap.fill(paragraph, 79, break_on_hyphens=False, **indents) for paragraph in paragraphs)


def read_experiment(arguments: list[str], options: T, *, prog: str, text: str | None) -> tuple[Experiment, T]:
    """The experiment whose file is the first argument, with the overrides and options that follow.

    Raises:
      InputError: as `load_experiment`.
    """
    if not arguments or arguments[0].startswith("-"):
        if arguments[:1] in (["-h"], ["--help"]):
            print(f"usage: {prog} CONFIG.py [OPTIONS]\n\n{text}\n`{prog} CONFIG.py --help` lists every field.")
            sys.exit(0)
        raise InputError(f"name a configuration first: {prog} configs/ledger_cpu.py")
    experiment = load_experiment(arguments[0])
    both: Any = make_dataclass(
        "Arguments",
        [
            ("experiment", Annotated[Experiment, tyro.conf.arg(name="")], experiment),
            ("options", Annotated[type(options), tyro.conf.arg(name="")], options),
        ],
        frozen=True,
    )
    read = tyro.cli(both, args=arguments[1:], prog=f"{prog} {arguments[0]}", description=_kept(text or ""))
    return read.experiment, read.options
