"""What a batch is read into equals what serving does one example at a time: blocks, merges, several boundaries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples import TEMPLATE, random_batch, setting_for, tiny_actor, tiny_network

from remory_jax.data.batch import Batch
from remory_jax.memory import MemoryNetwork
from remory_jax.memory.encoder import ActorEncoder
from remory_jax.memory.recursion import Contract, Memory, plan_compaction, run
from remory_jax.training.experiment import EncodingConfig
from remory_jax.training.reading import read
from remory_jax.training.step import gradients


def served(network: MemoryNetwork, actor: Any, batch: Batch, row: int) -> np.ndarray:
    """The memory rows of one example after its last boundary, by the serving engine."""
    contract = Contract.of(network.config, TEMPLATE, placeholder=0)
    encode = ActorEncoder(actor, network)
    memory: Memory | None = None
    for history, length, summary, words in zip(
        batch.histories, batch.history_lengths, batch.summaries, batch.summary_lengths, strict=True
    ):
        plan = plan_compaction(
            contract,
            prefix=batch.prefix[row, : batch.prefix_length[row]].tolist(),
            history=history[row, : length[row]].tolist(),
            summary=summary[row, : words[row]].tolist(),
            previous=memory,
        )
        memory = run(plan, encode)
    assert memory is not None
    return np.asarray(memory.rows)


@pytest.mark.parametrize(
    ("histories", "changes"),
    [((40,), {}), ((18, 9), {}), ((36,), {"memory_budget": 4, "compression_ratio": 2, "block_tokens": 4})],
    ids=["blocks", "boundaries", "merges"],
)
def test_rows_equal_the_serving_engine(histories: tuple[int, ...], changes: dict[str, int]) -> None:
    actor, network = tiny_actor(), tiny_network(**changes)
    batch = random_batch(2, histories=histories, summaries=(4,) * len(histories))
    if changes:  # merging is planned for a bucket, so its examples fill its blocks
        batch = jax.tree.map(lambda values: values[:1], batch)
    reading = jax.jit(lambda batch: read(network, actor, batch, TEMPLATE, EncodingConfig()))(batch)
    for row in range(len(batch.index)):
        found = np.asarray(reading.memory.rows[row])[np.asarray(reading.memory.mask[row])]
        np.testing.assert_allclose(found, served(network, actor, batch, row), atol=2e-4)


def test_a_gradient_reaches_earlier_memory_only_where_it_is_asked_to() -> None:
    actor, network = tiny_actor(), tiny_network(block_tokens=32, compression_ratio=8)
    batch = random_batch(2, histories=(12, 9), summaries=(4, 4))
    found = {}
    for through in (False, True):
        setting, params, buffers = setting_for(network, EncodingConfig(through_memory=through))
        found[through], metrics = jax.jit(gradients, static_argnums=0)(
            setting, params, buffers, actor, batch, jnp.ones(())
        )
    assert float(metrics["loss"][0]) > 0
    # The depth row of raw blocks (0) is used at the first boundary alone; the second's only block has depth 1.
    table = {through: np.asarray(jax.tree.leaves(tree["depth"])[0]) for through, tree in found.items()}
    assert np.all(table[False][0] == 0)
    assert np.any(table[True][0] != 0)
    assert np.any(table[False][1] != 0)
