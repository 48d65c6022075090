"""Model folders read and written by a few plain lines, for tests of the code that does it properly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

DTYPES = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "U8": np.uint8}


def stored(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder in the dtype of the file."""
    found: dict[str, np.ndarray] = {}
    for file in folder.glob("*.safetensors"):
        raw = file.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, stop = (8 + size + offset for offset in entry["data_offsets"])
            found[name] = np.frombuffer(raw[start:stop], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return found


def write(file: Path, tensors: Mapping[str, np.ndarray], **changed: Any) -> None:
    """One safetensors file; ``changed`` replaces header entries, right or wrong."""
    header: dict[str, Any] = {}
    end = 0
    for name, values in tensors.items():
        kind = next(key for key, dtype in DTYPES.items() if values.dtype == dtype)
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header | changed).encode()
    data = b"".join(values.tobytes() for values in tensors.values())
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def copy(source: Path, target: Path) -> Path:
    """A folder to spoil: config.json and weights, writable, in one file."""
    target.mkdir()
    shutil.copy(source / "config.json", target)
    write(target / "model.safetensors", stored(source))
    return target


def edit_config(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))


def same(left: Any, right: Any) -> bool:
    """Whether two trees of arrays have the same dtypes and the same bits."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)
