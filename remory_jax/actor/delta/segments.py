"""Where a packed row starts a new segment, padding left out of account."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

__all__ = ["segment_runs"]


def segment_runs(
    segment_ids: Int[Array, "batch seq"], owner: Int[Array, " batch"]
) -> tuple[Bool[Array, "batch seq"], Int[Array, "batch seq"]]:
    """Number the runs of equal segment ids in each row.

    A real token (id not 0) starts a run if its id differs from that of the previous real token of its row, which
    before the first one is ``owner`` (0: none). Padding starts nothing and stays in the run it stands in.

    Returns:
      starts: real tokens that start a run.
      runs: starts up to and including each position; 0 is the run of the owner.
    """
    ids = jnp.concatenate([owner.astype(segment_ids.dtype)[:, None], segment_ids], axis=1)  # [B, 1 + S]
    real_or_first = jnp.where(ids != 0, jnp.arange(ids.shape[1], dtype=jnp.int32)[None, :], 0)
    latest = lax.cummax(real_or_first, axis=1)
    previous = jnp.take_along_axis(ids, latest[:, :-1], axis=1)
    starts = (segment_ids != 0) & (segment_ids != previous)
    return starts, jnp.cumsum(starts, axis=1, dtype=jnp.int32)
