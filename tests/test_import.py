"""Importing the library is cheap and leaves the process as it was."""

import json
import subprocess
import sys

PROBE = """
import json, sys, time
import jax
before = jax.config.jax_enable_x64
start = time.perf_counter()
import costmodel_jax
seconds = time.perf_counter() - start
heavy = ("flax", "transformers", "pandas", "matplotlib", "pyarrow", "rich", "tyro", "tokenizers", "tensorflow_datasets")
print(json.dumps({
    "loaded": [name for name in heavy if name in sys.modules],
    "x64": [before, jax.config.jax_enable_x64],
    "backends": len(jax._src.xla_bridge._backends),
    "seconds": seconds,
}))
"""


def probe(**environment: str) -> dict:
    finished = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, env={**environment, "PATH": ""}
    )
    return json.loads(finished.stdout)


def test_import_pulls_in_nothing_heavy_and_leaves_x64_alone() -> None:
    seen = probe()
    assert seen["loaded"] == []
    assert seen["x64"] == [False, False]


def test_import_leaves_x64_on_where_it_was_on() -> None:
    assert probe(JAX_ENABLE_X64="1")["x64"] == [True, True]


def test_import_makes_no_jax_call() -> None:
    assert probe()["backends"] == 0


def test_every_public_name_exists_and_is_documented() -> None:
    import costmodel_jax

    for name in costmodel_jax.__all__:
        value = getattr(costmodel_jax, name)
        assert value.__doc__ or not callable(value), name
