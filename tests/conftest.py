"""Test set-up: eight fake CPU devices, strict promotion, run-time checks of every annotated shape."""

import os
from importlib.metadata import version

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_backend_optimization_level=0"  # programs here are compiled for longer than they run
)
if version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import jaxtyping

jaxtyping.install_import_hook(["costmodel_jax", "remory_jax"], "beartype.beartype")

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("repo", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repo")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of extra recordings beside the checkout; tests that use it are skipped only when it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside this checkout")
    return SHARED


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As a user runs the library: the run-time checks of annotations are a tool of the tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
