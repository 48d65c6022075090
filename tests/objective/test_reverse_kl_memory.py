"""Memory of the compiled loss and its gradient at the size of a real model; nothing is run."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from remory_jax.objective import reverse_kl

POSITIONS, VOCABULARY, WIDTH = 4096, 151_936, 2048


def temporary_bytes(implementation: str) -> int:
    hidden = jax.ShapeDtypeStruct((4, POSITIONS // 4, WIDTH), jnp.float32)
    head = jax.ShapeDtypeStruct((WIDTH, VOCABULARY), jnp.float32)
    weights = jax.ShapeDtypeStruct((4, POSITIONS // 4), jnp.float32)
    loss = jax.jit(jax.value_and_grad(lambda *x: reverse_kl(*x, implementation=implementation)))
    analysis = loss.lower(hidden, hidden, head, weights).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes)


def test_temporary_memory() -> None:
    """Under a quarter of the dense form's, and of the two arrays of logits that any dense form holds."""
    ours = temporary_bytes("chunked")
    both_logits = 2 * 4 * POSITIONS * VOCABULARY
    assert temporary_bytes("reference") > both_logits
    assert ours < both_logits / 4
