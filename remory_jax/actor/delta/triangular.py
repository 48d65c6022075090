"""The inverse of I + A for strictly lower triangular A, by matrix products alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = ["unit_lower_inverse"]

_BLOCK = 16  # below it, masked products of whole blocks beat ever smaller slices, and compile sooner


def _matmul(a: Float[Array, "*n i j"], b: Float[Array, "*n j k"]) -> Float[Array, "*n i k"]:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


@jax.custom_jvp
def unit_lower_inverse(a: Float[Array, "*n size size"]) -> Float[Array, "*n size size"]:
    """(I + A)^-1 for strictly lower triangular A; ``size`` is a power of two.

    Inverses T, U of neighbouring diagonal blocks are merged in pairs, ``[[T, 0], [-U B T, U]]`` for the block B below
    the diagonal, until one is left. Nothing larger than the inverse itself appears on the way. The product
    (I - A)(I + A^2)(I + A^4)..., equal on paper, passes through powers of A whose entries grow like binomial
    coefficients when keys repeat, and loses every digit at size 64; a triangular solve is as accurate as this, but
    ten times slower on a CPU and serial on accelerators.
    """
    size = a.shape[-1]
    width = min(_BLOCK, size)
    inverse = _small_inverse(jnp.stack([a[..., i : i + width, i : i + width] for i in range(0, size, width)], axis=-3))
    while width < size:
        corners = range(0, size, 2 * width)
        below = jnp.stack([a[..., i + width : i + 2 * width, i : i + width] for i in corners], axis=-3)
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]  # [..., pairs, width, width]
        top = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        bottom = jnp.concatenate([-_matmul(_matmul(second, below), first), second], axis=-1)
        inverse = jnp.concatenate([top, bottom], axis=-2)
        width *= 2
    return inverse[..., 0, :, :]


def _small_inverse(a: Float[Array, "*n size size"]) -> Float[Array, "*n size size"]:
    """The same merges for all pairs at once: T <- T - T B T, with B the blocks of A that the pairs have below them."""
    size = a.shape[-1]
    token = np.arange(size)
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=a.dtype), a.shape)
    width = 1
    while width < size:
        second = token // width % 2 == 1
        same_pair = token[:, None] // (2 * width) == token[None, :] // (2 * width)
        inside = np.broadcast_to(same_pair & second[:, None] & ~second[None, :], a.shape)
        below = jnp.where(inside, a, 0)
        inverse = inverse - (below if width == 1 else _matmul(_matmul(inverse, below), inverse))
        width *= 2
    return inverse


@unit_lower_inverse.defjvp
def _unit_lower_inverse_jvp(
    primals: tuple[Float[Array, "*n size size"]], tangents: tuple[Float[Array, "*n size size"]]
) -> tuple[Float[Array, "*n size size"], Float[Array, "*n size size"]]:
    # Two products instead of the derivative of every merge; the tangent of A is strictly lower triangular, as A is.
    inverse = unit_lower_inverse(primals[0])
    return inverse, -_matmul(_matmul(inverse, tangents[0]), inverse)
