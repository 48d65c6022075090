"""The watchdog speaks when a step stands still, and only then."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from remory_jax.training.watchdog import Watchdog

ROOT = Path(__file__).parents[2]


def stand_still(seconds: float) -> None:
    time.sleep(seconds)


def test_the_stacks_of_a_step_that_stands_still(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log, Watchdog(0.1, file=log) as watchdog:
        watchdog.beat(1)
        stand_still(0.4)
        watchdog.beat(2)
        log.seek(0)
        text = log.read()
    assert "Timeout" in text
    assert "in stand_still" in text
    assert "Thread" in text
    assert "step 2 took 0." in text


def test_silent_while_steps_go_on_and_when_off(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        with Watchdog(0.5, file=log) as watchdog:
            for step in range(10):
                time.sleep(0.1)
                watchdog.beat(step)
        with Watchdog(None, file=log) as off:
            off.beat(1)
        time.sleep(0.6)  # a watchdog that was left does not speak
        log.seek(0)
        assert log.read() == ""
    with pytest.raises(ValueError, match="watchdog = 0 seconds"):
        Watchdog(0)


def test_it_may_end_the_process() -> None:
    code = (
        "import time\nfrom remory_jax.training.watchdog import Watchdog\n"
        "with Watchdog(0.2, end=True):\n    time.sleep(30)\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=25)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert time.monotonic() - start < 20
