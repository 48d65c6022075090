"""Weights of the positions of a response in the loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

__all__ = ["position_weights"]


def position_weights(
    lengths: Int[Array, " batch"] | Int[np.ndarray, " batch"],
    width: int,
    *,
    floor: int | float = 0.5,
    tau: int | float = 256,
) -> Float[Array, "batch width"] | Float[np.ndarray, "batch width"]:
    """Weights that slightly favour the first tokens of a response::

        w_j = floor + (1 - floor) exp(-j / tau)   for j < length, 0 for padding

    The paper says that early positions count slightly more and gives no formula; this one is ours.

    Args:
      lengths: tokens of each response, 0 to ``width``; an array of NumPy gives one of NumPy, without JAX.
      width: of the padded responses.
      floor: weight far into a response, 0 to 1; the first token weighs 1.
      tau: positions over which the rest decays.

    Returns:
      float32 [B, width].

    Raises:
      ValueError: for a floor outside [0, 1], a tau that is not positive, or NumPy lengths outside [0, width].

    >>> position_weights(np.array([2, 0]), 3, tau=1).round(3)
    array([[1.   , 0.684, 0.   ],
           [0.   , 0.   , 0.   ]], dtype=float32)
    """
    if not 0.0 <= floor <= 1.0:
        raise ValueError(f"floor = {floor}; it is the weight of late positions beside 1 for the first, so use 0 to 1")
    if not tau > 0:
        raise ValueError(f"tau = {tau}; it is a number of positions, so use a positive one")
    decay = (floor + (1.0 - floor) * np.exp(-np.arange(width) / tau)).astype(np.float32)[None]
    if isinstance(lengths, jax.Array):
        return jnp.where(jnp.arange(width)[None] < lengths[:, None], decay, jnp.float32(0.0))
    if lengths.size and (lengths.min() < 0 or lengths.max() > width):
        raise ValueError(f"lengths go from {lengths.min()} to {lengths.max()} and the width is {width}; cut or pad")
    return np.where(np.arange(width)[None] < lengths[:, None], decay, np.float32(0.0))
