"""Actors of a few thousand parameters, as folders and in memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from remory_jax.actor import Actor, ActorConfig, init_actor, load_actor


def config(**changes: Any) -> dict[str, Any]:
    """A Qwen3 of four layers, 32 wide."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "max_position_embeddings": 4096,
        "torch_dtype": "float32",
    } | changes


def actor(seed: int = 0) -> Actor:
    return init_actor(ActorConfig.from_hf(config()), seed=seed)


def from_tensors(file: Path, folder: Path, **changes: Any) -> Actor:
    """The actor of a bare safetensors file."""
    folder.mkdir(exist_ok=True)
    shutil.copy(file, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(**changes)))
    return load_actor(folder)
