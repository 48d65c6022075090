"""Grouped products against a loop over rows, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remory_jax.actor.grouped import grouped_dot


@pytest.mark.parametrize("implementation", ["ragged", "tiled", None])
@pytest.mark.parametrize(
    ("sizes", "extra"),
    [([3, 0, 5, 1], 0), ([0, 0, 0, 7], 2), ([40, 2, 0, 30], 0), ([1], 0), ([0, 0, 0], 4), ([9] * 20, 1)],
)
def test_against_a_loop(sizes: list[int], extra: int, implementation: str | None) -> None:
    rng = np.random.default_rng(len(sizes) + sum(sizes))
    rows = rng.normal(size=(sum(sizes) + extra, 6)).astype(np.float32)
    matrices = rng.normal(size=(len(sizes), 6, 5)).astype(np.float32)
    out_weights = rng.normal(size=(len(rows), 5)).astype(np.float32)
    out_weights[sum(sizes) :] = 0
    group = np.repeat(np.arange(len(sizes)), sizes)
    wanted = (
        np.stack([row @ matrices[g] for row, g in zip(rows, group, strict=False)]) if len(group) else np.zeros((0, 5))
    )
    wanted_gradient = np.zeros_like(rows)
    for index, g in enumerate(group):
        wanted_gradient[index] = matrices[g] @ out_weights[index]

    def weighted(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = grouped_dot(rows, jnp.asarray(matrices), jnp.asarray(sizes, jnp.int32), implementation)
        return jnp.sum(out * out_weights), out

    (_, out), gradient = jax.jit(jax.value_and_grad(weighted, has_aux=True))(jnp.asarray(rows))
    assert bool(jnp.all(jnp.isfinite(out)))
    np.testing.assert_allclose(out[: len(group)], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient[: len(group)], wanted_gradient[: len(group)], rtol=1e-5, atol=1e-5)


def test_unknown_implementation() -> None:
    with pytest.raises(ValueError, match="ragged, tiled"):
        grouped_dot(jnp.ones((2, 3)), jnp.ones((1, 3, 4)), jnp.asarray([2]), "dense")
