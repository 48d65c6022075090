"""Rotary position embedding: frequencies with their scalings, angles in float32, and the two pairings of dimensions."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from remory_jax.actor.config import Rotary, Scaling

__all__ = ["Rotation", "frequencies", "rotate", "rotation"]

Rotation = tuple[Float[Array, "batch length half"], Float[Array, "batch length half"]]
"""cos and sin of the angles, scaled by YaRN's magnitude; one column per pair of dimensions."""


def frequencies(rotary: Rotary) -> Float[np.ndarray, " half"]:
    """Radians per position of each pair of dimensions, float32."""
    plain = 1.0 / rotary.theta ** (np.arange(0, rotary.dim, 2, dtype=np.float64) / rotary.dim)
    scaling = rotary.scaling
    if scaling is None:
        scaled = plain
    elif scaling.kind == "linear":
        scaled = plain / scaling.factor
    elif scaling.kind == "llama3":
        scaled = _llama3(plain, scaling)
    else:
        scaled = _yarn(plain, rotary.dim, rotary.theta, scaling)
    return scaled.astype(np.float32)


def _yarn(plain: np.ndarray, dim: int, theta: float, scaling: Scaling) -> np.ndarray:
    """Interpolate slow dimensions, keep fast ones, with a ramp between (YaRN, arXiv 2309.00071)."""

    def dimension(turns: float) -> float:
        return dim * math.log(scaling.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.fast), dimension(scaling.slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


def _llama3(plain: np.ndarray, scaling: Scaling) -> np.ndarray:
    """Llama 3.1: slow dimensions are interpolated, fast ones kept, those between blended by wavelength."""
    turns = scaling.original * plain / (2 * math.pi)
    blend = np.clip((turns - scaling.slow) / (scaling.fast - scaling.slow), 0, 1)
    return plain / scaling.factor * (1 - blend) + plain * blend


def rotation(rotary: Rotary, positions: Int[Array, "batch length"]) -> Rotation:
    """cos and sin for ``positions``; float32, since bfloat16 angles lose phase within a few hundred positions."""
    angles = positions.astype(jnp.float32)[..., None] * frequencies(rotary)[None, None, :]  # [B, S, half]
    magnitude = 1.0 if rotary.scaling is None else rotary.scaling.magnitude
    return jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude


def rotate(
    x: Float[Array, "batch length heads d"], angles: Rotation, rotary: Rotary
) -> Float[Array, "batch length heads d"]:
    """Rotate the first ``rotary.dim`` dimensions of each head; the others pass through."""
    cos, sin = (table[:, :, None, :].astype(x.dtype) for table in angles)
    turned, rest = x[..., : rotary.dim], x[..., rotary.dim :]
    if rotary.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = jnp.split(turned, 2, axis=-1)
    parts = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate([*parts, rest] if rest.shape[-1] else parts, axis=-1)
