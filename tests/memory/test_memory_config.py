"""Published geometries and their exact sizes; configs that contradict themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_network import TINY

from remory_jax.memory import MemoryConfig


def test_presets_count_exactly() -> None:
    counts = {"qwen3.8-27b": 1_940_016_388, "glm-5.3-flash": 1_241_576_960, "glm-5.3-flash-paper": 1_501_895_429}
    assert {name: MemoryConfig.preset(name).parameter_count for name in counts} == counts
    assert MemoryConfig.preset("qwen3.8-27b").tensor_count == 97
    assert MemoryConfig.preset("glm-5.3-flash").tensor_count == 11 * 6 + 5
    assert MemoryConfig.preset("qwen3.8-27b", local_window=256).local_window == 256
    with pytest.raises(ValueError, match=r"there is no preset 'qwen'; there are qwen3\.8-27b"):
        MemoryConfig.preset("qwen")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"target_layer_ids": ()}, "target_layer_ids = ()"),
        ({"target_layer_ids": (1, 1)}, "each once"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads = 3"),
        ({"head_dim": 5}, "head_dim = 5"),
        ({"block_tokens": 30}, "block_tokens = 30"),
        ({"memory_budget": 4}, "memory_budget = 4 is less than one block's 8"),
        ({"local_window": 3}, "local_window = 3"),
        ({"dynamic_conv": True, "conv_group": 5}, "conv_group = 5"),
        ({"copier_tap": 2}, "copier_tap = 2"),
        ({"output_rms": 0.0}, "output_rms = 0.0"),
        ({"gate_init": float("nan")}, "gate_init = nan"),
    ],
)
def test_refused_configs(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("()", r"\(\)")):
        replace(TINY, **changes)
