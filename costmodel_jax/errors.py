"""Errors a person can act on: which file, which line, which field, which value, which rule, and what to do."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CostModelError", "InfeasibleError", "InputError"]


class CostModelError(ValueError):
    """Base of every error this library raises on purpose."""


class InputError(CostModelError):
    """Input that cannot be read or contradicts itself.

    Args:
      message: what is wrong and what to do about it. Never contains text of a log.
      path: the file, when there is one.
      line: 1-based line in that file, when the file is line-based.
    """

    def __init__(self, message: str, *, path: str | Path | None = None, line: int | None = None) -> None:
        self.message = message
        self.path = None if path is None else str(path)
        self.line = line
        super().__init__(f"{self.location}{message}")

    @property
    def location(self) -> str:
        """``file:line: `` as compilers print it, or an empty string."""
        if self.path is None:
            return ""
        return f"{self.path}: " if self.line is None else f"{self.path}:{self.line}: "


class InfeasibleError(CostModelError):
    """A policy's fixed floor does not fit the window it is given, so it would edit the context for ever."""
