"""The account of a step against costmodel_jax's own pricing of the same calls, and against counting by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from costmodel_jax.architecture import Architecture
from costmodel_jax.pricing import cost
from remory_jax.actor.config import ActorConfig, DeltaNet
from remory_jax.data.batch import Batch
from remory_jax.data.template import Template
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import EncodingConfig
from remory_jax.training.flops import architecture_of, peak_flops, step_cost, step_flops

QWEN = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}
MEMORY = MemoryConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    target_layer_ids=(0, 2),
    block_tokens=64,
    compression_ratio=16,
    memory_budget=4096,
)
TEMPLATE = Template(s_open=(1, 2), s_close=(3,), m_open=(4,), m_close=(5, 6))


def an_experiment(**encoding):
    """What the account reads of an experiment."""
    return SimpleNamespace(memory=MEMORY, template=TEMPLATE, encoding=EncodingConfig(**encoding))


@pytest.fixture(autouse=True)
def _loose(without_shape_checks: None) -> None:
    """The stand-in for an experiment is not an Experiment."""


def a_batch(prefix, histories, summaries, response, judged) -> Batch:
    def ids(lengths):
        return np.zeros((len(lengths), max(lengths, default=0)), np.int32)

    def length(lengths):
        return np.asarray(lengths, np.int32)

    weights = np.zeros((len(response), max(response)), np.float32)
    for row, count in enumerate(judged):
        weights[row, response[row] - count : response[row]] = 1
    return Batch(
        prefix=ids(prefix),
        prefix_length=length(prefix),
        histories=tuple(ids(lengths) for lengths in histories),
        history_lengths=tuple(length(lengths) for lengths in histories),
        summaries=tuple(ids(lengths) for lengths in summaries),
        summary_lengths=tuple(length(lengths) for lengths in summaries),
        response=ids(response),
        response_length=length(response),
        weights=weights,
        index=np.arange(len(response), dtype=np.int32),
    )


def priced(prices, calls: list[tuple[int, int]]) -> float:
    """costmodel_jax's price of prompts given as (reused, whole length); nothing is generated."""
    reused, prompt = (np.asarray(values, np.int64) for values in zip(*calls, strict=True))
    counts = SimpleNamespace(
        prompt=prompt,
        reused=reused,
        generated=np.zeros_like(prompt),
        processed=prompt - reused,
        pairs=(prompt * (prompt + 1) - reused * (reused + 1)) // 2,
        extra=np.zeros(len(calls)),
        ok=np.asarray(True),
    )
    return float(cost(counts, prices))


@pytest.mark.parametrize("window", [None, 24])
def test_the_actors_passes_cost_what_costmodel_says(window: int | None) -> None:
    """Two examples: P, H, S, y = 10, 70, 5, 20 and 3, 130, 9, 11; 8 and 12 memory rows; also with a sliding layer."""
    config = dict(QWEN)
    if window is not None:
        config |= {
            "use_sliding_window": True,
            "sliding_window": window,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        }
    actor = ActorConfig.from_hf(config)
    prices = Architecture.from_hf(config).prices(windowed=True, state=True)
    batch = a_batch([10, 3], [[70, 130]], [[5, 9]], [20, 11], [15, 11])
    found = step_cost(an_experiment(), actor, batch)
    assert found.positions == {
        "prefix": 13,
        "teacher": 90 + 141,
        "summary": 8 + 12,
        "student": (3 + 8 + 20) + (3 + 12 + 11),
    }
    assert found.flops["prefix"] == priced(prices, [(0, 10), (0, 3)])
    assert found.flops["teacher"] == priced(prices, [(10, 100), (3, 144)])
    assert found.flops["summary"] == priced(prices, [(10, 18), (3, 15)])
    assert found.flops["student"] == priced(prices, [(18, 49), (15, 41)])
    # Backward: from the first memory row on; all pairs once, and those among themselves once more.
    again = priced(prices, [(19, 49), (16, 41)])
    own = priced(replace(prices, linear=0.0, state=0.0), [(0, 30), (0, 25)])
    assert found.flops["student_backward"] == again + own
    assert found.flops["head"] == 3 * 2 * 32 * 100 * (15 + 11)
    assert found.total == sum(found.flops.values()) == step_flops(an_experiment(), actor, batch)


def test_the_network_by_hand() -> None:
    """One example, 70 tokens: blocks of 64 and 6, each with 4 slots; a summary of 5; d 32, 4 heads of 8, 2 for keys."""
    batch = a_batch([0], [[70]], [[5]], [1], [1])
    found = step_cost(an_experiment(), ActorConfig.from_hf(QWEN), batch).flops
    fuse = 2 * 70 * (2 * 32) * 32
    local = 8 * (2 * 32 * 32) + 70 * 2 * (2 * 32 * 16) + 8 * 2 * (2 * 32 * 16) + 8 * (2 * 32 * 32)  # q; kv; kv; o
    pairs = 4 * (64 + 4) + 4 * (6 + 4)
    local += pairs * 2 * 2 * 32
    cross = 2 * 8 * (2 * 32 * 32) + 8 * 5 * 2 * 2 * 32 + 5 * 2 * (2 * 32 * 16)
    last = 2 * 8 * (2 * 32 * 32) + 8 * 2 * (2 * 32 * 16) + (16 + 16) * 2 * 2 * 32
    mlp = 8 * 3 * (2 * 32 * 48)
    forward = 2 * (local + cross) + last + 3 * mlp
    assert found["encoder"] == fuse + forward
    assert found["encoder_backward"] == fuse + 2 * forward


def test_short_blocks_without_a_summary_and_without_a_history() -> None:
    actor = ActorConfig.from_hf(QWEN)
    batch = a_batch([4, 4], [[70, 0]], [[0, 0]], [8, 8], [8, 0])
    natural = step_cost(an_experiment(short_blocks="natural"), actor, batch)
    full = step_cost(an_experiment(), actor, batch)
    assert natural.positions["student"] == (3 + 5 + 8) + (3 + 0 + 8)
    assert full.positions["student"] == (3 + 8 + 8) + (3 + 0 + 8)
    assert "summary" not in full.positions


def test_several_boundaries_restore_what_came_before() -> None:
    """The second source is summary, memory and new history with their markers; only the last encoding is trained."""
    batch = a_batch([10], [[70], [30]], [[5], [6]], [20], [20])
    found = step_cost(an_experiment(), ActorConfig.from_hf(QWEN), batch)
    second = (5 + 3) + (8 + 3) + 30
    assert found.positions == {
        "prefix": 10,
        "teacher": 120,
        "features": 70 + second,
        "summary": 8 + 9,
        "student": 3 + 4 + 20,
    }
    one = step_cost(an_experiment(), ActorConfig.from_hf(QWEN), a_batch([10], [[70]], [[5]], [20], [20]))
    assert found.flops["encoder"] > one.flops["encoder"]
    through = step_cost(an_experiment(through_memory=True), ActorConfig.from_hf(QWEN), batch)
    assert through.flops["encoder_backward"] > found.flops["encoder_backward"]


def test_a_budget_costs_merges() -> None:
    """20 blocks of 4 rows are 80, over a budget of 24: merges take 60 rows away each, so one leaves 20."""
    experiment = an_experiment()
    experiment.memory = replace(MEMORY, memory_budget=24)
    batch = a_batch([2], [[20 * 64]], [[0]], [5], [5])
    found = step_cost(experiment, ActorConfig.from_hf(QWEN), batch)
    assert found.positions["merge"] == 64  # the rows of 16 blocks
    assert found.positions["student"] == 3 + 20 + 5


def test_actors_without_a_config() -> None:
    read = ActorConfig.from_hf(QWEN)
    made = replace(read, source="")
    assert architecture_of(made) is not None
    batch = a_batch([10], [[70]], [[5]], [20], [20])
    assert step_flops(an_experiment(), made, batch) == step_flops(an_experiment(), read, batch)
    delta = DeltaNet(key_heads=2, value_heads=2, key_dim=8, value_dim=8, kernel=4, stored="flat")
    unknown = replace(made, layers=(replace(made.layers[0], mixer=delta),))
    assert step_flops(an_experiment(), unknown, batch) == 0
    with pytest.raises(ValueError, match="cannot be priced"):
        step_cost(an_experiment(), unknown, batch)


def test_peaks() -> None:
    assert peak_flops() is None  # a CPU
    kinds = {"TPU v5 lite": 197e12, "TPU v5p": 459e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12}
    assert {kind: peak_flops(kind) for kind in kinds} == kinds
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA GeForce RTX 3060") is None
