"""Write the fixtures beside this file: a tiny released folder, and its rows by the float64 program of the tests.

Usage: ``python tests/golden/memory/make.py``. What was there is replaced.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from remory_jax.data.template import Template
from remory_jax.memory import Fingerprint, Released, memory_from_tensors, save_memory

HERE = Path(__file__).parent


def main() -> None:
    """Write both."""
    sys.path.insert(0, str(HERE.parents[1] / "memory"))
    from test_network import SLOTS, TINY, batch, drawn, expected

    about = Released(config=TINY, template=Template(s_open=(1, 2), s_close=(3,), m_close=(4,)), placeholder=9)
    actor = Fingerprint(tensors="a" * 64, tokenizer="b" * 64, template="c" * 64)
    shutil.rmtree(HERE / "tiny", ignore_errors=True)
    save_memory(HERE / "tiny", memory_from_tensors(TINY, drawn(TINY)), released=about, actor=actor)
    given = batch(TINY, seed=3)
    rows = np.zeros((len(given["features"]), SLOTS, TINY.hidden_size), np.float32)
    mask = np.zeros(rows.shape[:2], bool)
    for row, length in enumerate(given["slot_lengths"]):
        if count := -(-int(length) // TINY.compression_ratio):
            rows[row, -count:], mask[row, -count:] = expected(TINY, given, row), True
    inputs = {f"in.{name}": value for name, value in given.items()}
    save_file(inputs | {"rows": rows, "mask": mask}, HERE / "rows.safetensors")
    (HERE / "rows.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
