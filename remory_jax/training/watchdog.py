"""A watchdog: when a step stands still, the stacks of all threads are printed, for it is then too late to attach."""

from __future__ import annotations

import faulthandler
import sys
import time
from types import TracebackType
from typing import IO, Any

__all__ = ["Watchdog"]


class Watchdog:
    """Print the stacks of all threads when `beat` has not been called for a while.

    The timer is `faulthandler`'s own thread, which needs no interpreter lock: it speaks even when the hang is inside
    native code, such as a collective that waits for a lost host. One watchdog per process.

    Args:
      seconds: without a beat, after which stacks are printed, and again after each such time. None: off.
      file: where to; a file with a descriptor. Standard error by default.
      end: end the process after printing, so that a cluster restarts it from its checkpoint.

    Raises:
      ValueError: ``seconds`` not positive.

    Example:
      >>> with Watchdog(600) as watchdog:
      ...     for step in range(steps):
      ...         run(step)
      ...         watchdog.beat(step)
    """

    def __init__(self, seconds: float | int | None, *, file: IO[Any] | None = None, end: bool = False) -> None:
        if seconds is not None and not seconds > 0:
            raise ValueError(f"watchdog = {seconds} seconds: give a positive time, or None for no watchdog")
        self._seconds = seconds
        self._file = sys.stderr if file is None else file
        self._end = end
        self._last = time.monotonic()

    def __enter__(self) -> Watchdog:
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seconds is not None:
            faulthandler.cancel_dump_traceback_later()

    def beat(self, step: int) -> None:
        """Say that a step is done. Names it where it took longer than the watchdog waits."""
        if self._seconds is None:
            return
        taken = time.monotonic() - self._last
        if taken > self._seconds:
            self._file.write(f"step {step} took {taken:.1f} s of the watchdog's {self._seconds} s: stacks above\n")
            self._file.flush()
        self._arm()

    def _arm(self) -> None:
        self._last = time.monotonic()
        if self._seconds is not None:
            faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._file, exit=self._end)
