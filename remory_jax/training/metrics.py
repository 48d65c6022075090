"""Metrics of a run: JSON Lines and TensorBoard from process 0, without stopping the devices to look.

``metrics.jsonl`` holds what training computed, and nothing of when: after a kill and a resume it is byte for byte that
of a run that was never killed. Times and rates go to ``timing.jsonl``.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from remory_jax.training.display import Display, EventFile

__all__ = ["MetricsWriter", "read_metrics"]

Pair = tuple[Any, Any]
"""(sum, count): float32 scalars on the devices or the host."""


class MetricsWriter:
    """Collect each step's sums and counts, and write their quotients every so many steps.

    On pods every process makes one and calls `add` and `flush` alike; files are written by process 0. Lines of steps
    after ``step`` are removed from ``metrics.jsonl``, since they will be written again.

    Args:
      folder: of the run.
      total_steps: of the run, for ``progress`` from 0 to 1 beside each step.
      every: steps to a line; the last line may have fewer.
      step: the step that was restored; 0 for a new run.
      partial: what `flush` returned when that step was saved.
      peak_flops: FLOP/s of all devices together, for model FLOPs utilisation; None where unknown.
      tensorboard: write event files, to ``folder/tensorboard``.
      display: on standard error, a progress bar, or a line of text for each line written; by default the bar where it
        is a terminal.

    Raises:
      ValueError: ``every`` below 1.
      OSError: a file cannot be written, also later, from `add` and `flush`.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        total_steps: int,
        every: int = 50,
        step: int = 0,
        partial: Mapping[str, Any] | None = None,
        peak_flops: float | int | None = None,
        tensorboard: bool = True,
        display: Literal["auto", "bar", "lines", "off"] = "auto",
    ) -> None:
        if every < 1:
            raise ValueError(f"every = {every}: write a line every 1 or more steps")
        self._every, self._total, self._peak = every, total_steps, peak_flops
        self._sums: dict[str, Pair] = {
            name: (np.float32(total), np.float32(count)) for name, (total, count) in (partial or {}).items()
        }
        self._step = step
        self._pending: list[tuple[int, dict[str, Pair], _Interval]] = []
        self._clock = _Clock()
        self._files: dict[str, Any] = {}
        self._events: EventFile | None = None
        self._display: Display | None = None
        if jax.process_index() == 0:
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            _truncate(path / "metrics.jsonl", step)
            _truncate(path / "timing.jsonl", None)
            for name in ("metrics", "timing"):
                self._files[name] = (path / f"{name}.jsonl").open("ab", buffering=0)
            if tensorboard:
                self._events = EventFile(path / "tensorboard", after=step)
            self._display = Display(display, total_steps, step)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, step: int, metrics: Mapping[str, Pair], *, tokens: int = 0, flops: float | int = 0) -> None:
        """Add the metrics of a step that was just dispatched; may be called again for the same step with others.

        Values stay on the devices. A line is written when its values are there, at the latest when the next one is due.

        Args:
          step: the step just dispatched, counted from 1.
          metrics: (sum, count) by name, float32 scalars; lines hold the sums' quotient over their steps.
          tokens, flops: of this step, for rates.

        Raises:
          ValueError: a step before the last one.
        """
        self._forward(step)
        if step > self._step:
            self._close_line()
        self._step = step
        self._clock.count(step, tokens, flops)
        known = {name: self._sums[name] for name in metrics if name in self._sums}
        if known:
            known = _added(known, {name: metrics[name] for name in known})
        self._sums |= {name: known.get(name, pair) for name, pair in metrics.items()}
        if self._display is not None:
            self._display.advance(step)
        while self._pending and _ready(self._pending[0][1]):
            self._write(*self._pending[0])
            self._pending.pop(0)

    def scalars(self, step: int, values: Mapping[str, float | int], *, kind: str = "evaluation") -> None:
        """Write a line of values that are already on the host, such as an evaluation's, after those of steps before.

        Raises:
          ValueError: a step before the last one.
        """
        self._forward(step)
        self.flush()
        self._line(step, kind, {name: float(value) for name, value in values.items()})

    @contextlib.contextmanager
    def outside(self, what: str) -> Iterator[None]:
        """Time that is not training, such as ``save`` or ``evaluate``: left out of rates, and named in the timing.

        It begins when the steps dispatched so far are done.
        """
        jax.block_until_ready(self._sums)
        self.flush()
        with self._clock.outside(what):
            yield

    def flush(self) -> dict[str, list[float]]:
        """Wait for all values, and write the lines that are due, safely to disk. Call it before saving a checkpoint.

        Returns:
          the sums and counts of a line not yet due, to be stored in the checkpoint and given to a resumed writer.
        """
        self._close_line()
        for line in self._pending:
            self._write(*line)
        self._pending = []
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: [float(total), float(count)] for name, (total, count) in jax.device_get(self._sums).items()}

    def close(self) -> None:
        """Write what is due, and close the files."""
        try:
            self.flush()
        finally:
            for closing in (*self._files.values(), self._events, self._display):
                if closing is not None:
                    closing.close()

    def _forward(self, step: int) -> None:
        if step < self._step:
            raise ValueError(f"step = {step} after step {self._step}: steps go forward; restart the writer to go back")

    def _close_line(self) -> None:
        """Put the sums aside where a line is due, after writing the one before. The last step ends one too."""
        if not self._sums or (self._step % self._every and self._step != self._total):
            return
        for line in self._pending:
            self._write(*line)
        self._pending = [(self._step, self._sums, self._clock.interval())]
        self._sums = {}

    def _write(self, step: int, sums: Mapping[str, Pair], interval: _Interval) -> None:
        values = {name: _quotient(*pair) for name, pair in jax.device_get(dict(sums)).items()}
        shown = self._line(step, "train", values)
        rates = self._clock.rates(interval, self._peak)
        if self._files:
            self._put("timing", {"step": step, **rates})
        for name, value in rates.items():
            if self._events is not None and isinstance(value, float):
                self._events.scalar(step, f"timing/{name}", value)
        if self._display is not None:
            self._display.show(step, shown, rates)

    def _line(self, step: int, kind: str, values: Mapping[str, float | None]) -> dict[str, float]:
        """Write one line; not-finite values are null in it, and named."""
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        nonfinite = sorted(name for name, value in values.items() if value is not None and name not in finite)
        if self._files:
            progress = step / self._total if self._total else 1.0
            line: dict[str, Any] = {"step": step, "progress": progress, "kind": kind}
            line |= {name: finite.get(name) for name in sorted(values)}
            self._put("metrics", line | ({"nonfinite": nonfinite} if nonfinite else {}))
        if self._events is not None:
            for name, value in values.items():
                if value is not None:
                    self._events.scalar(step, f"{kind}/{name}", value)
            self._events.flush()
        return finite

    def _put(self, name: str, line: Mapping[str, Any]) -> None:
        file = self._files[name]
        data = memoryview(msgspec.json.encode(line) + b"\n")
        start = file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[file.write(data) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(start)  # no half of a line, to which another might be added
            mend = "free space there, then run the same command to go on from the last checkpoint"
            raise OSError(error.errno, f"{error.strerror}; {mend}", file.name) from error


class _Interval(msgspec.Struct, frozen=True):
    steps: int
    tokens: int
    flops: float
    outside: dict[str, float]


class _Clock:
    """Where the time went. The first step of a process compiles, so that it counts as no step."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last: float | None = None  # when the line before was done
        self._first = 0
        self._step = 0
        self._productive = 0.0
        self._reset()

    def _reset(self) -> None:
        self._steps, self._tokens, self._flops = 0, 0, 0.0
        self._outside: dict[str, float] = defaultdict(float)

    def count(self, step: int, tokens: int, flops: float | int) -> None:
        if self._last is None:
            self._last, self._first, self._step = time.monotonic(), step, step
            self._outside.clear()
        if step == self._first:
            return
        self._steps += step != self._step
        self._step = step
        self._tokens += tokens
        self._flops += flops

    @contextlib.contextmanager
    def outside(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._outside[what] += time.monotonic() - start

    def interval(self) -> _Interval:
        """What was counted since the interval before."""
        found = _Interval(self._steps, self._tokens, self._flops, dict(self._outside))
        self._reset()
        return found

    def rates(self, interval: _Interval, peak: float | int | None) -> dict[str, Any]:
        """Rates of an interval whose last value has just come."""
        now = time.monotonic()
        seconds = max(now - (self._last or now) - sum(interval.outside.values()), 1e-9)
        self._last = now
        self._productive += seconds if interval.steps else 0.0
        rates: dict[str, Any] = {"seconds": seconds, "goodput": min(1.0, self._productive / (now - self._start))}
        if interval.steps:
            rates["seconds_per_step"] = seconds / interval.steps
            rates["tokens_per_second"] = interval.tokens / seconds
            rates["flops_per_second"] = interval.flops / seconds
            if peak:
                rates["model_flops_utilisation"] = interval.flops / seconds / peak
        return rates | {"outside": {name: round(spent, 6) for name, spent in interval.outside.items()}}


@jax.jit
def _added(sums: dict[str, Pair], more: dict[str, Pair]) -> dict[str, Pair]:
    total: dict[str, Pair] = jax.tree.map(jnp.add, sums, more)
    return total


def _ready(sums: Mapping[str, Pair]) -> bool:
    return all(getattr(leaf, "is_ready", lambda: True)() for leaf in jax.tree.leaves(sums))


def _quotient(total: Any, count: Any) -> float | None:
    """In float64 on the host; None where nothing was counted."""
    return float(total) / float(count) if float(count) else None


def _truncate(path: Path, step: int | None) -> None:
    """Drop lines of later steps (None: keep all), and a last line that a kill cut short."""
    if not path.is_file():
        return
    data = path.read_bytes()
    kept = b"".join(line for line in data.splitlines(keepends=True) if _keeps(line, step))
    if kept != data:
        partial = path.with_suffix(".partial")
        partial.write_bytes(kept)
        partial.replace(path)


class _Step(msgspec.Struct):
    step: int


def _keeps(line: bytes, step: int | None) -> bool:
    if not line.endswith(b"\n"):
        return False
    return step is None or msgspec.json.decode(line, type=_Step).step <= step


def read_metrics(folder: str | PathLike[str], *, kind: str | None = "train") -> list[dict[str, Any]]:
    """Lines of a run's ``metrics.jsonl``, oldest first; of one kind, or of all."""
    lines = [msgspec.json.decode(line) for line in (Path(folder) / "metrics.jsonl").read_bytes().splitlines()]
    return [line for line in lines if kind is None or line["kind"] == kind]
