"""Input-dependent short convolutions around a sublayer (DFlash-2): a slot may take from the slot before it.

For a sublayer's normalised input x, with kernel K and groups of g channels that share a coefficient::

    D = x W, read as [2, K, d / g]
    y_t = sum_{o < K} (base[0, o] + expand(D[t, 0, o])) x_{t - o}
    u = sublayer(y)
    v_t = sum_{o < K} (base[1, o] + expand(D[t, 1, o])) u_{t - o}

Before a block's first slot there are zeros. The identity is ``base[:, 0] = 1`` and everything else 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["around"]

Slots = Float[Array, "batch slots d"]


def around(
    weights: Mapping[str, Array] | None, sublayer: Callable[[Slots], Slots], x: Slots, real: Bool[Array, "batch slots"]
) -> Slots:
    """``v`` for the sublayer's input ``x``; without weights, ``sublayer(x)``.

    Args:
      weights: ``base`` [2, K, d] and ``proj`` [d, 2, K, d / g].
      real: padding slots, on the left, are the zeros before the block.
    """
    if weights is None:
        return sublayer(x)
    base, proj = weights["base"], weights["proj"]
    kernel, width = base.shape[1], base.shape[2]
    coefficients = jnp.einsum("bnd,dikg->ibnkg", x, proj)  # [2, B, N, K, d / g]
    expanded = jnp.repeat(coefficients, width // proj.shape[3], axis=4)
    taps = base[:, None, None] + expanded  # [2, B, N, K, d]
    y = _convolve(taps[0], x, real, kernel)
    return _convolve(taps[1], sublayer(y), real, kernel)


def _convolve(
    taps: Float[Array, "batch slots kernel d"], x: Slots, real: Bool[Array, "batch slots"], kernel: int
) -> Slots:
    x = jnp.where(real[..., None], x, 0)
    out = taps[:, :, 0] * x
    for offset in range(1, kernel):
        earlier = jnp.pad(x, ((0, 0), (offset, 0), (0, 0)))[:, : x.shape[1]]
        out = out + taps[:, :, offset] * earlier
    return out
