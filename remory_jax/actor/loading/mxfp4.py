"""MXFP4, as gpt-oss stores its experts: 4-bit floats in blocks of 32 that share an exponent.

``name_blocks`` uint8 [E, out, in / 32, 16] holds two values per byte, the even one in the low bits; ``name_scales``
uint8 [E, out, in / 32] holds the exponents with bias 127 (OCP Microscaling Formats, v1.0). Every value is exact in
bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from remory_jax.actor.parameters import Stored

__all__ = ["BLOCK", "MXFP4View", "decode", "stored_shapes"]

BLOCK = 32  # values that share an exponent

Bytes = np.ndarray  # uint8

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def stored_shapes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of blocks and scales, from the decoded shape (experts, in, out)."""
    experts, rows, columns = shape
    scales = (experts, columns, rows // BLOCK)
    return (*scales, BLOCK // 2), scales


class MXFP4View:
    """Bytes and exponents in the dimensions of the parameter [experts, in, out], without decoding.

    Args:
      stored: the layout of the decoded tensor.
      blocks, scales: give the stored tensors, mapped into memory.
      shape: the parameter's.
    """

    order: tuple[int, ...] = (0, 2, 1)

    def __init__(
        self, stored: Stored, blocks: Callable[[], Bytes], scales: Callable[[], Bytes], shape: tuple[int, ...]
    ) -> None:
        self._stored, self._blocks, self._scales, self._shape = stored, blocks, scales, shape

    def take(self, index: tuple[slice, ...]) -> tuple[Bytes, ...]:
        """Bytes and the exponent of each, uint8 [experts, out, in / 2], of a part of the parameter.

        Its range of inputs starts and ends at even places.
        """
        experts, rows, columns = index
        pairs = slice(rows.start // 2, rows.stop // 2)
        exponents, bits = self._scales(), self._blocks()
        codes = _view(self._stored, bits.reshape(*exponents.shape[:2], -1), self._shape)[experts, pairs, columns]
        scales = _view(self._stored, exponents, self._shape)[experts, :, columns].swapaxes(1, 2)
        groups = np.arange(pairs.start, pairs.stop) // (BLOCK // 2)
        return np.array(codes.swapaxes(1, 2), order="C"), np.take(scales, groups, axis=2)


def _view(stored: Stored, tensor: Bytes, shape: tuple[int, ...]) -> Bytes:
    """``tensor`` [E, out, n] in the parameter's dimensions, where ``n`` takes the place of its inputs."""
    experts, columns, n = tensor.shape
    split = (stored.split[0], n, *stored.split[2:]) if stored.split else ()
    part = replace(stored, shape=(experts, n, columns), split=split)
    return np.asarray(part.read(tensor.swapaxes(1, 2), (shape[0], n, shape[2])))


def decode(
    codes: UInt8[Array, "experts out pairs"], scales: UInt8[Array, "experts out pairs"]
) -> Float[Array, "experts in out"]:
    """The values, float32, from two of them per byte and the exponent of each byte."""
    table = jnp.asarray((*_VALUES, *(-value for value in _VALUES)), jnp.float32)
    nibbles = jnp.stack([codes & jnp.uint8(15), codes >> jnp.uint8(4)], axis=-1)  # [E, F, D/2, 2]
    exponent = scales.astype(jnp.int32) - 127
    half = exponent >> 1  # a power of two in two steps: neither leaves the normal numbers
    values = table[nibbles.astype(jnp.int32)] * _power(half)[..., None] * _power(exponent - half)[..., None]
    return values.reshape(*codes.shape[:2], 2 * codes.shape[2]).swapaxes(1, 2)


def _power(exponent: Array) -> Array:
    """2 ** exponent exactly, for -126 to 127."""
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
