"""The scripts' virtual environment: made once, installed again only when what it is made from changes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="the scripts are for bash")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with an environment whose Python notes what pip is asked for and installs nothing."""
    (tmp_path / "launch").mkdir()
    shutil.copy(ROOT / "launch" / "environment.sh", tmp_path / "launch")
    (tmp_path / "setup.cfg").write_text("[metadata]\n")
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("")
    program(
        tmp_path / ".venv" / "bin" / "python",
        f'if [ "$1 $2" = "-m pip" ]; then echo "$*" >> "{tmp_path}/asked"; [ ! -e "{tmp_path}/offline" ]\n'
        f'else exec "{sys.executable}" "$@"; fi',
    )
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def ensure(tree: Path, extra: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    assert BASH is not None
    commands = f"source launch/environment.sh; ensure_environment {extra}; command -v python"
    return subprocess.run(
        [BASH, "-euo", "pipefail", "-c", commands],
        cwd=tree,
        env={"PATH": os.environ["PATH"], "HOME": str(tree), **environment},
        capture_output=True,
        text=True,
    )


def asked(tree: Path) -> list[str]:
    """The last word of everything pip was asked to do."""
    file = tree / "asked"
    return [line.rsplit(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []


def test_it_installs_once_and_again_when_the_set_up_changes(tree: Path) -> None:
    done = ensure(tree)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tree / ".venv/bin/python")
    assert ensure(tree).returncode == 0
    assert asked(tree) == [str(tree)]
    (tree / "setup.cfg").write_text("[metadata]\nname = changed\n")
    assert ensure(tree).returncode == 0
    assert asked(tree) == [str(tree)] * 2


def test_an_extra_is_installed_on_top_and_serves_for_less(tree: Path) -> None:
    assert ensure(tree, "test").returncode == ensure(tree, "test").returncode == ensure(tree).returncode == 0
    assert asked(tree) == [f"{tree}[test]"]
    (tree / ".venv" / ".installed-test").unlink()
    assert ensure(tree).returncode == ensure(tree, "test").returncode == 0
    assert asked(tree) == [f"{tree}[test]", str(tree), f"{tree}[test]"]


def test_a_failed_installation_is_said_and_tried_again(tree: Path) -> None:
    (tree / "offline").touch()
    failed = ensure(tree)
    assert failed.returncode == 1 and "the installation failed" in failed.stderr
    (tree / "offline").unlink()
    assert ensure(tree).returncode == 0
    assert len(asked(tree)) == 2


def test_an_unsuitable_python_is_refused(tree: Path) -> None:
    shutil.rmtree(tree / ".venv")
    program(tree / "python3", "exit 1")
    refused = ensure(tree, PYTHON=str(tree / "python3"))
    assert refused.returncode == 1 and "is not Python 3.11, 3.12 or 3.13" in refused.stderr
    for name in ("python3.13", "python3.12", "python3.11", "python"):
        program(tree / name, "exit 1")
    for name in ("dirname", "cat"):
        found = shutil.which(name)
        assert found is not None
        (tree / name).symlink_to(found)
    nothing = ensure(tree, PATH=str(tree))
    assert nothing.returncode == 1 and "No suitable Python found" in nothing.stderr
    assert not (tree / ".venv").exists()


def test_something_else_in_its_place_is_left_alone(tree: Path) -> None:
    shutil.rmtree(tree / ".venv")
    (tree / ".venv").mkdir()
    (tree / ".venv" / "precious").write_text("")
    refused = ensure(tree)
    assert refused.returncode == 1 and "no virtual environment" in refused.stderr
    assert (tree / ".venv" / "precious").exists()


def test_it_makes_the_environment_with_the_python_it_is_given(tree: Path) -> None:
    shutil.rmtree(tree / ".venv")
    program(
        tree / "maker",
        f'if [ "$1 $2" = "-m venv" ]; then echo made "$4" > "{tree}/made"; exit 1\n'
        f'else exec "{sys.executable}" "$@"; fi',
    )
    assert ensure(tree, PYTHON=str(tree / "maker")).returncode == 1
    assert (tree / "made").read_text().strip() == f"made {tree}/.venv"
