"""Products of rows with the matrix of the group each row belongs to, for matrices that are never trained."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from remory_jax.mesh import platform

__all__ = ["grouped_dot"]


def grouped_dot(
    rows: Float[Array, "rows inputs"],
    matrices: Float[Array, "groups inputs outputs"],
    sizes: Int[Array, " groups"],
    implementation: str | None = None,
) -> Float[Array, "rows outputs"]:
    """``out[i] = rows[i] @ matrices[g]`` for the group g of row i; rows are sorted by group.

    Differentiable with respect to ``rows`` alone.

    Args:
      sizes: rows of each group. Rows beyond their sum belong to none; what comes out for them is finite and no more.
      implementation: "ragged", `jax.lax.ragged_dot`; "tiled", which on CPU does not, as ragged_dot there does, multiply
        every row with every matrix. None chooses by platform.

    Raises:
      ValueError: an unknown implementation.
    """
    if implementation is None:
        implementation = "tiled" if platform() == "cpu" else "ragged"
    if implementation == "ragged":
        return jax.lax.ragged_dot(rows, jax.lax.stop_gradient(matrices), sizes)
    if implementation == "tiled":
        return _tiled(rows, matrices, sizes)
    raise ValueError(f"grouped_dot has no implementation {implementation!r}; use ragged, tiled, or None")


@jax.custom_vjp
def _tiled(rows: Array, matrices: Array, sizes: Array) -> Array:
    return _by_tiles(rows, matrices, sizes, transposed=False)


def _by_tiles(rows: Array, matrices: Array, sizes: Array, *, transposed: bool) -> Array:
    """Pad each group to whole tiles and multiply tile by tile, each with one matrix, or with its transpose."""
    count, groups = len(rows), len(matrices)
    tile = min(128, max(8, 1 << (count // groups).bit_length()))
    tiles = -(-count // tile) + min(count, groups)  # a group wastes less than one tile
    ends = jnp.cumsum(-(-sizes // tile))  # tiles up to and with each group
    first_row = jnp.cumsum(sizes) - sizes
    first_slot = (ends - (-(-sizes // tile))) * tile
    row = jnp.arange(count, dtype=jnp.int32)
    group = jnp.minimum(jnp.searchsorted(jnp.cumsum(sizes), row, side="right"), groups - 1).astype(jnp.int32)
    slot = jnp.minimum(first_slot[group] + row - first_row[group], tiles * tile - 1)
    # Rows of no group pile up in slots behind the last tile's; where two share one, one of them wins, which is finite.
    padded = jnp.zeros((tiles * tile, rows.shape[1]), rows.dtype).at[slot].set(rows)
    owner = jnp.minimum(jnp.searchsorted(ends, jnp.arange(tiles), side="right"), groups - 1)

    def multiply(item: tuple[Array, Array]) -> Array:
        x, index = item
        matrix = jax.lax.dynamic_index_in_dim(matrices, index, keepdims=False)
        return x @ (matrix.T if transposed else matrix)

    out = jax.lax.map(multiply, (padded.reshape(tiles, tile, -1), owner))
    return out.reshape(tiles * tile, -1)[slot]


def _tiled_forward(rows: Array, matrices: Array, sizes: Array) -> tuple[Array, tuple[Array, Array]]:
    return _tiled(rows, matrices, sizes), (matrices, sizes)


def _tiled_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    matrices, sizes = saved
    return _by_tiles(gradient, matrices, sizes, transposed=True), None, None


_tiled.defvjp(_tiled_forward, _tiled_backward)
