"""Published geometries of memory networks.

The first two are those of the released checkpoints' ``config.json``; the third is the network of the paper (REMORY,
arXiv 2610.11287), which was not released. Their parameter counts are exact and tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from remory_jax.memory.config import MemoryConfig

__all__ = ["PRESETS"]

_QWEN = MemoryConfig(
    hidden_size=5120,
    intermediate_size=17408,
    num_hidden_layers=5,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    target_layer_ids=(1, 16, 31, 46, 61),
)

_GLM = MemoryConfig(
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=6,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    target_layer_ids=(0, 11, 22, 33, 44),
    summary_attention=False,
)

PRESETS: Mapping[str, MemoryConfig] = {
    "qwen3.8-27b": _QWEN,
    "glm-5.3-flash": _GLM,
    "glm-5.3-flash-paper": replace(_GLM, summary_attention=True, dynamic_conv=True),
}
