"""Where people look at a run: a terminal, and TensorBoard."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Display", "EventFile"]


class Display:
    """Progress of a run on standard error.

    Args:
      how: "bar", or "lines" of text, or "off"; "auto" is the bar on a terminal and lines elsewhere.
      total: steps of the run.
      step: steps that are done.
    """

    def __init__(self, how: Literal["auto", "bar", "lines", "off"], total: int, step: int) -> None:
        if how == "auto":
            how = "bar" if sys.stderr.isatty() else "lines"
        self._lines = how == "lines"
        self._total = total
        self._progress: Progress | None = None
        if how == "bar":
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._task = self._progress.add_task("", total=total, completed=step)
            self._progress.start()

    def advance(self, step: int) -> None:
        """A step was dispatched."""
        if self._progress is not None:
            self._progress.update(self._task, completed=step)

    def show(self, step: int, values: Mapping[str, float], rates: Mapping[str, Any]) -> None:
        """A line of metrics was written."""
        parts = [f"{name} {value:.4g}" for name, value in sorted(values.items())]
        if "tokens_per_second" in rates:
            parts.append(f"{rates['tokens_per_second']:,.0f} tokens/s")
        if "model_flops_utilisation" in rates:
            parts.append(f"MFU {rates['model_flops_utilisation']:.1%}")
        text = "  ".join(parts)
        if self._progress is not None:
            self._progress.update(self._task, description=text)
        elif self._lines:
            print(f"step {step}/{self._total}  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it is."""
        if self._progress is not None:
            self._progress.stop()


class EventFile:
    """Scalars for TensorBoard, written at once by the calling thread.

    Args:
      folder: the log folder; each process's start makes a file of its own.
      after: TensorBoard is told to forget what earlier files say of later steps.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # imports half of plotting
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}.{time.monotonic_ns()}")
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.write_event(self._event(wall_time=time.time(), step=after + 1, session_log=start))
        self.flush()

    def scalar(self, step: int, name: str, value: float) -> None:
        """One value."""
        summary = self._summary(value=[self._summary.Value(tag=name, simple_value=value)])
        self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Hand everything to the file system."""
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        self._writer.close()
