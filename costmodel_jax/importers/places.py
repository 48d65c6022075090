"""Where tools keep their logs on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["folders", "newest"]


def folders(variable: str, *defaults: Path) -> list[Path]:
    """The folders an environment variable names (several are separated by commas), or else the defaults."""
    named = [Path(part.strip()).expanduser() for part in os.environ.get(variable, "").split(",") if part.strip()]
    return named or list(defaults)


def newest(paths: Iterable[Path]) -> list[Path]:
    """Paths that exist, each once, the one changed last first."""
    changed: dict[Path, float] = {}
    for path in paths:
        try:
            changed[path] = path.stat().st_mtime
        except OSError:
            continue
    return sorted(changed, key=lambda path: (-changed[path], str(path)))
