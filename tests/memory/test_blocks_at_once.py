"""Blocks of an example encoded together: the rows and gradients that they have one by one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from remory_jax.memory import MemoryConfig, MemoryNetwork
from remory_jax.memory.encoding import Rows, Source, Summary, encode

CONFIG = MemoryConfig(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    target_layer_ids=(0, 1),
    compression_ratio=4,
    block_tokens=8,
    memory_budget=64,
    gate_init=0.5,
)


def encoded(at_once: int, *, restored: bool) -> tuple[Rows, Any]:
    """Rows of two histories of up to six blocks, the second with holes, and the gradient of their sum."""
    random = np.random.default_rng(3)
    mask = np.stack([np.ones(46, bool), random.random(46) < 0.6])
    depth = jnp.asarray(random.integers(0, 3, (2, 46)), jnp.int32) if restored else None
    features = jnp.asarray(random.standard_normal((2, 46, 2, 16)), jnp.float32)
    source = Source(features=features, mask=jnp.asarray(mask), depth=depth)
    states = jnp.asarray(random.standard_normal((2, 5, 16)), jnp.float32)
    summary = Summary(states=states, mask=jnp.asarray([[True] * 5, [True] * 2 + [False] * 3]))
    graph, params, rest = nnx.split(MemoryNetwork(CONFIG, rngs=nnx.Rngs(0)), nnx.Param, ...)

    def run(params: Any) -> tuple[Any, Rows]:
        def nothing(rows: Any, mask: Any) -> Any:
            raise AssertionError("there is nothing to merge")

        rows = encode(
            nnx.merge(graph, params, rest),
            source,
            summary,
            features_of=nothing,
            short_blocks="natural",
            at_once=at_once,
        )
        return jnp.sum(jnp.sin(rows.rows)), rows

    (_, rows), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(params)
    return rows, gradient


@pytest.mark.parametrize("restored", [False, True], ids=["tokens", "with soft rows"])
@pytest.mark.parametrize("at_once", [3, 4, 100])
def test_together_as_one_by_one(at_once: int, restored: bool) -> None:
    wanted, found = encoded(1, restored=restored), encoded(at_once, restored=restored)
    np.testing.assert_array_equal(found[0].mask, wanted[0].mask)
    np.testing.assert_array_equal(found[0].depth, wanted[0].depth)
    np.testing.assert_allclose(found[0].rows, wanted[0].rows, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(found[1]), jax.tree.leaves(wanted[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
