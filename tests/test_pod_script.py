"""launch/tpu/pod.sh, with a gcloud that only writes down what it was asked."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "launch" / "tpu" / "pod.sh"
GCLOUD = """#!/usr/bin/env bash
printf '%s\\n' "$@" >> "$RECORD"
for word in "$@"; do if [[ "$word" == *.tar.gz && -f "$word" ]]; then cp "$word" "$RECORD.tar.gz"; fi; done
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    stub = tmp_path / "gcloud"
    stub.write_text(GCLOUD)
    stub.chmod(0o755)
    return tmp_path / "record"


def pod(record: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{record.parent}:{os.environ['PATH']}", "RECORD": str(record), "HOME": str(record.parent)}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=environment | variables, capture_output=True, text=True, timeout=60
    )


def test_a_command_reaches_all_workers_as_it_was_written(record: Path) -> None:
    done = pod(record, "run", "python", "-m", "launch.train", "a b.py", "--note", "it's", TPU="pod", ZONE="zone")
    assert done.returncode == 0, done.stderr
    words = record.read_text().splitlines()
    assert words[:4] == ["compute", "tpus", "tpu-vm", "ssh"]
    assert words[words.index("--worker") + 1] == "all"
    command = words[words.index("--command") + 1]
    said = subprocess.run(
        ["bash", "-c", command.split("activate && ")[1].replace("python", "printf '%s|'", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "-m|launch.train|a b.py|--note|it's|"


def test_what_is_copied_is_the_checkout(record: Path) -> None:
    done = pod(record, "copy", TPU="pod", ZONE="zone")
    assert done.returncode == 0, done.stderr
    with tarfile.open(f"{record}.tar.gz") as archive:
        names = archive.getnames()
    assert "setup.cfg" in names and "launch/tpu/pod.sh" in names
    assert not [name for name in names if name.startswith((".git/", ".venv/", "out/"))]


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (("create",), {"TPU": "pod", "ZONE": "zone"}, "TYPE is not set"),
        (("run", "true"), {"TPU": "pod"}, "ZONE is not set"),
        (("run",), {"TPU": "pod", "ZONE": "zone"}, "launch/tpu/pod.sh create"),
        (("make",), {}, "make is none of create, copy, run, delete, help"),
    ],
)
def test_refusals(record: Path, arguments: tuple[str, ...], variables: dict[str, str], said: str) -> None:
    done = pod(record, *arguments, **variables)
    assert done.returncode == 1
    assert said in done.stderr
    assert not record.exists()
