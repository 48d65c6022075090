"""The accelerator check, in small on a CPU, with no more packages than it says it needs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "accelerator.py"
NEEDED = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")

BARE = """
import runpy, sys

hidden = set(sys.argv[1].split(","))

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in hidden:
            return None
        for finder in sys.meta_path:
            if type(finder).__module__ == "standins":
                found = finder.find_spec(name, path, target)
                if found is not None:
                    return found
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Bare())
sys.argv = sys.argv[2:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def others() -> set[str]:
    """Importable names of all packages here but the needed ones and those that these need."""
    wanted, needed = [normal(name) for name in NEEDED], set[str]()
    while wanted:
        name = wanted.pop()
        if name in needed:
            continue
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        needed.add(name)
        parsed = [Requirement(text) for text in required]
        wanted += [normal(r.name) for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    names = importlib.metadata.packages_distributions()
    found = {name for name, by in names.items() if not {normal(each) for each in by} & needed}
    return found - {"costmodel_jax", "remory_jax", "launch"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "flags"),
    [(("step",), ""), (("actor", "kl", "ledger"), None)],  # the step is compiled as for use, the rest as tests are
    ids=["step", "rest"],
)
def test_on_a_bare_machine(parts: tuple[str, ...], flags: str | None, tmp_path: Path) -> None:
    hidden = others()
    assert {"jaxtyping", "msgspec", "grain", "pyarrow", "safetensors", "tyro"} <= hidden
    command = [sys.executable, "-c", BARE, ",".join(sorted(hidden)), str(SCRIPT), "--tiny", "--parts", *parts]
    environment = os.environ if flags is None else os.environ | {"XLA_FLAGS": flags}
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "out.json"), "--seconds", "900"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    judged = {name: each["good"] for name, each in found.items() if isinstance(each, dict) and "good" in each}
    assert all(judged.values())
    if parts == ("step",):
        assert found["step, seconds"]["seconds"] > 0
        assert found["step, model FLOPs utilisation"]["flops"] > 0
    else:
        assert len(judged) == 10
        assert found["ledger, full context"]["closed"] == 1.0
