"""``python -m launch.train`` killed with SIGKILL at random moments; and run by two processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "tests/training/tiny.py"


def command(folder: Path, cache: Path, *extra: str) -> tuple[list[str], dict[str, str]]:
    """What a person would type, with a cache of compiled programs."""
    flags = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=8", "")  # one device each
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return [
        sys.executable,
        "-m",
        "launch.train",
        CONFIG,
        "--folder",
        str(folder),
        "--display",
        "lines",
        *extra,
    ], environment


def finish(folder: Path, cache: Path, *extra: str) -> str:
    """Run to the end."""
    given, environment = command(folder, cache, *extra)
    done = subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def weights(folder: Path) -> dict[str, np.ndarray]:
    (file,) = (folder / "tiny" / "memory").glob("*/model.safetensors")
    return load_file(file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that nothing disturbed, and the programs it compiled."""
    folder, cache = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("programs")
    finish(folder, cache)
    return folder, cache


@pytest.mark.slow
def test_ten_kills_lose_nothing(tmp_path: Path, whole: tuple[Path, Path]) -> None:
    undisturbed, cache = whole
    wanted = (undisturbed / "tiny" / "metrics.jsonl").read_bytes()
    given, environment = command(tmp_path / "killed", cache)
    chance = random.Random(0)
    kills = in_a_save = 0
    checkpoints = tmp_path / "killed" / "tiny" / "checkpoints"
    while kills < 10:
        process = subprocess.Popen(given, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        seen = len(list(checkpoints.glob("*"))) if checkpoints.is_dir() else 0
        deadline = time.monotonic() + 300
        # from the moment it is under way: when a folder of a checkpoint appears, finished or not
        while process.poll() is None and time.monotonic() < deadline:
            if checkpoints.is_dir() and len(list(checkpoints.glob("*"))) != seen:
                break
            time.sleep(0.002)
        time.sleep(chance.choice((0.0, 0.0, 0.02, 0.1)))
        ended = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        in_a_save += bool(list(checkpoints.glob("*.orbax-checkpoint-tmp")))
        kills += 1
        if ended:
            break
    finish(tmp_path / "killed", cache)
    assert (tmp_path / "killed" / "tiny" / "metrics.jsonl").read_bytes() == wanted
    found, expected = weights(tmp_path / "killed"), weights(undisturbed)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    assert in_a_save, "no kill fell into a save; kill sooner"


@pytest.mark.slow
def test_two_processes_train_and_save_together(tmp_path: Path, whole: tuple[Path, Path]) -> None:
    undisturbed, cache = whole
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    processes = []
    for number in range(2):
        cluster = ("--cluster.coordinator", f"localhost:{port}", "--cluster.processes", "2", "--cluster.process")
        given, environment = command(tmp_path / "two", cache, *cluster, str(number), "--cluster.timeout", "60")
        processes.append(
            subprocess.Popen(
                given, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
    try:
        said = [process.communicate(timeout=400)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    found_weights, expected = weights(tmp_path / "two"), weights(undisturbed)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found_weights[name], wanted, atol=2e-4)
