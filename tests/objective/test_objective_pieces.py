"""Weights of positions, the schedule, and what a divergence may be called."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remory_jax.objective import Divergence, position_weights, reverse_share


def test_position_weights() -> None:
    lengths = np.array([4, 0, 2], np.int32)
    weights = position_weights(lengths, 4, floor=0.25, tau=2)
    assert isinstance(weights, np.ndarray)
    assert weights.dtype == np.float32
    for row, length in zip(weights, lengths, strict=True):
        wanted = [0.25 + 0.75 * np.exp(-j / 2) if j < length else 0.0 for j in range(4)]
        np.testing.assert_allclose(row, wanted, rtol=1e-6)
    traced = jax.jit(lambda x: position_weights(x, 4, floor=0.25, tau=2))(jnp.asarray(lengths))
    np.testing.assert_array_equal(traced, weights)
    default = position_weights(np.array([1000]), 1000)
    np.testing.assert_allclose(default[0, [0, 256, 999]], [1.0, 0.5 + 0.5 / np.e, 0.5 + 0.5 * np.exp(-999 / 256)])
    np.testing.assert_array_equal(position_weights(lengths, 4, floor=1.0), np.arange(4)[None] < lengths[:, None])


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([5], {}, "lengths go from 5 to 5 and the width is 4"),
        ([-1], {}, "lengths go from -1"),
        ([1], {"floor": 1.5}, "floor = 1.5"),
        ([1], {"tau": 0}, "tau = 0"),
    ],
)
def test_wrong_weights(lengths: list[int], options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        position_weights(np.array(lengths), 4, **options)


def test_schedule() -> None:
    shares = jax.jit(jax.vmap(lambda step: reverse_share(step, begin=10, end=30, initial=0.2, final=0.8)))(
        jnp.array([0, 10, 15, 20, 30, 10**6])
    )
    np.testing.assert_allclose(shares, [0.2, 0.2, 0.35, 0.5, 0.8, 0.8], rtol=1e-6)
    jump = [float(reverse_share(step, begin=3, end=3)) for step in (2, 3, 4)]
    assert jump == [0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="begin = 3, end = 2"):
        reverse_share(0, begin=3, end=2)
    with pytest.raises(ValueError, match="final = 2"):
        reverse_share(0, begin=0, end=1, final=2)


def test_divergences_are_checked() -> None:
    for arguments, message in (
        ({"name": "mixture"}, "reverse_share = None with name = 'mixture'"),
        ({"name": "reverse", "reverse_share": 0.5}, "with 'mixture' only"),
        ({"name": "mixture", "reverse_share": 1.5}, "reverse_share = 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            Divergence(**arguments)  # type: ignore[arg-type]
    # one program for all shares, and a schedule inside it
    leaves, _ = jax.tree.flatten(Divergence(name="mixture", reverse_share=0.5))
    assert leaves == [0.5]
    traced = jax.jit(lambda step: Divergence(name="mixture", reverse_share=reverse_share(step, begin=0, end=4)))(1)
    assert float(traced.reverse_share) == 0.25


@pytest.mark.usefixtures("without_shape_checks")
def test_unknown_divergence() -> None:
    with pytest.raises(ValueError, match="name = 'kl'; use one of reverse, forward, jsd, mixture"):
        Divergence(name="kl")  # type: ignore[arg-type]
