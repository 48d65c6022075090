"""A cache that is read and not kept: the same numbers, without room for the new columns in every layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_checks import GOLDEN

from remory_jax.actor import Actor, ActorConfig, Cache, init_actor, load_actor

# One family per kind of memory, as in test_interface.
FAMILIES = ("gpt_oss", "qwen3_5", "glm_moe_dsa", "glm5_next")


def some_ids(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 96, (rows, length)).astype(np.int32)


@pytest.mark.parametrize("family", FAMILIES)
def test_as_if_it_were_kept(family: str) -> None:
    """Hidden states, taps and the gradient, after a padded prefix whose cache has unused slots."""
    actor = load_actor(GOLDEN / family)
    prefix = (np.arange(20)[None, :] < np.asarray([[20], [13]])).astype(np.int32)
    more = (np.arange(21)[None, :] < np.asarray([[15], [21]])).astype(np.int32)
    cache = actor(tokens=some_ids(2, 20), segment_ids=prefix, capacity=27).cache
    assert cache is not None
    rows = actor.embed(some_ids(2, 21, seed=1))

    def run(rows: Any, **options: Any) -> tuple[Any, Any]:
        out = actor(embeddings=rows, segment_ids=more, cache=cache, taps=(2, 0), **options)
        assert out.hidden is not None
        hidden = jnp.where(more[..., None] > 0, out.hidden, 0)
        taps = jnp.where(more.reshape(1, 2, 21, *(1,) * (out.taps.ndim - 3)) > 0, out.taps, 0)
        return jnp.sum(jnp.sin(hidden)), (hidden, taps)

    both = []
    for options in ({"use_cache": True, "capacity": 48}, {"use_cache": False, "remat": True}):
        (_, found), gradient = jax.jit(jax.value_and_grad(lambda x, o=options: run(x, **o), has_aux=True))(rows)
        both.append([*found, gradient])
    for kept, read in zip(*both, strict=True):
        np.testing.assert_allclose(read, kept, rtol=0, atol=3e-4 * float(np.max(np.abs(kept))))


def tiny(layers: int) -> Actor:
    config = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 64,
    }
    return init_actor(ActorConfig.from_hf(config), seed=1)


def test_an_early_stop_reads_it_too() -> None:
    actor = tiny(3)
    cache = actor(tokens=some_ids(1, 9)).cache
    more = some_ids(1, 5, seed=1)
    whole = actor(tokens=more, cache=cache, taps=(1,), use_cache=False)
    early = actor(tokens=more, cache=cache, taps=(1,), stop_after_layer=1)
    assert whole.cache is None and early.hidden is None
    np.testing.assert_allclose(early.taps, whole.taps, atol=1e-6)


def test_its_memory_does_not_grow_with_the_layers_squared() -> None:
    """Recomputing layers must not save all layers' slots for each of them, nor copy the cache to make room."""
    length, slots = 8, 4096

    def temporary(layers: int) -> tuple[int, int]:
        actor = tiny(layers)
        cache = jax.eval_shape(lambda ids: actor(tokens=ids).cache, jax.ShapeDtypeStruct((1, slots), jnp.int32))

        def loss(rows: Any, cache: Cache) -> Any:
            return jnp.sum(actor(embeddings=rows, cache=cache, use_cache=False, remat=True).hidden)

        rows = jax.ShapeDtypeStruct((1, length, 16), jnp.float32)
        compiled: Any = jax.jit(jax.grad(loss)).lower(rows, cache).compile()
        held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache.memory))
        return compiled.memory_analysis().temp_size_in_bytes, held

    few, _ = temporary(4)
    many, held = temporary(16)
    assert many < held  # not even one copy of it
    assert many < 2 * few
