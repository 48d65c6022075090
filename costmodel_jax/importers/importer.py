"""What every log format declares about itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Run

__all__ = ["Importer"]


def _nowhere() -> list[Path]:
    return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Importer:
    """One log format.

    Attributes:
      name: the name ``--format`` takes, and ``Run.format``.
      title: what a person calls it.
      convention: how its usage counts: inclusive or exclusive of cached tokens, cumulative or per call.
      key: what makes two records the same call.
      reuse: whether R is observed (``measured`` or ``unknown``).
      reasoning: whether reasoning lengths are ``observed``, ``billed`` or ``unknown``.
      detect: true if a file is surely of this format; never raises.
      read: all files of this format at once (repeats across files count once) to runs. Raises InputError.
      logs: the files the tool keeps on this machine, newest first; empty where there is no fixed place.
    """

    name: str
    title: str
    convention: str
    key: str
    reuse: str
    reasoning: str
    detect: Callable[[Source], bool]
    read: Callable[[Sequence[Source], Options], list[Run]]
    logs: Callable[[], list[Path]] = _nowhere
