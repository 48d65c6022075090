"""The recorded cases of the official network: configs, weights, inputs and what was computed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from remory_jax.memory import MemoryConfig

FLOAT32, HIDDEN, GRADIENT, BFLOAT16 = 2e-5, 1e-4, 1e-4, 0.06
"""Tolerances of the recordings: absolute, and for gradients relative to each tensor's largest."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recorded call."""

    name: str
    config: MemoryConfig
    weights: dict[str, np.ndarray]
    arrays: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray] | None
    depth: int
    dtype: str

    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of the network."""
        found: dict[str, Any] = {
            "features": self.arrays["source_features"],
            "features_mask": self.arrays["source_mask"],
            "depth": self.depth,
        }
        for ours, theirs in (
            ("source_lengths", "source_token_lengths"),
            ("slot_lengths", "slot_token_lengths"),
            ("summary", "summary_features"),
            ("summary_mask", "summary_mask"),
        ):
            if theirs in self.arrays:
                found[ours] = self.arrays[theirs]
        return found


@lru_cache(maxsize=8)
def tensors(file: Path) -> dict[str, np.ndarray]:
    return load_file(file)


@lru_cache(maxsize=2)
def index(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "cases.json").read_text())
    return found


def config_of(folder: Path, name: str, **changes: Any) -> MemoryConfig:
    recorded = index(folder)["configs"][name]
    fields = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "target_layer_ids",
    )
    return MemoryConfig(
        **{field: recorded[field] for field in fields} | {"target_layer_ids": tuple(recorded["target_layer_ids"])},
        max_depth=recorded.get("max_depth", 8),
        summary_attention=recorded["kind"] == "summary",
        **changes,
    )


def case(folder: Path, name: str) -> Case:
    recorded = next(entry for entry in index(folder)["cases"] if entry["case"] == name)
    with np.load(folder / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    rounded = "cast_buffers" in name
    return Case(
        name=name,
        config=config_of(
            folder,
            recorded["config"],
            local_window=recorded["local_window"],
            compression_ratio=recorded["compression_ratio"],
            rope_table_dtype="bfloat16" if rounded else "float32",
        ),
        weights=tensors(folder / recorded["weights"]),
        arrays=arrays,
        gradients=tensors(folder / recorded["grads"]) if recorded["grads"] else None,
        depth=recorded["input_depth"] or 0,
        dtype=recorded["dtype"],
    )
