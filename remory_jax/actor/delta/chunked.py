"""The gated delta rule in chunks (the WY form): matrix products within a chunk, a scan over chunks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from remory_jax.actor.delta.decays import decayed_products, decays_from_start, decays_to_end
from remory_jax.actor.delta.triangular import unit_lower_inverse

__all__ = ["chunked"]

_einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)

_NOTHING_LEFT = -1e4  # exp is exactly 0 well above; keeps infinities out of the sums


def chunked(
    q: Float[Array, "batch seq heads dk"],
    k: Float[Array, "batch seq heads dk"],
    v: Float[Array, "batch seq heads dv"],
    log_decay: Float[Array, "batch seq heads"] | Float[Array, "batch seq heads dk"],
    beta: Float[Array, "batch seq heads"],
    runs: Int[Array, "batch seq"],
    state: Float[Array, "batch heads dk dv"],
    *,
    chunk: int,
) -> tuple[Float[Array, "batch seq heads dv"], Float[Array, "batch heads dk dv"]]:
    """What ``recurrent`` computes, ``chunk`` tokens at a time.

    Args:
      q, k, v, beta, log_decay: zero at padding.
      runs: number of segment starts so far; ``state`` belongs to run 0.
      state: float32, before the first token.
      chunk: tokens per chunk, a power of two. ``seq`` is padded to a multiple of it.

    Returns:
      Outputs in the dtype of ``v``, and the state after the last token in float32. The gradient keeps the inputs and
      one state per chunk, and computes the rest again, so its memory is linear in ``seq``.
    """
    batch, seq, heads, dv = v.shape
    if log_decay.ndim < k.ndim:
        log_decay = log_decay[..., None]  # [B, S, H, 1 or dk]
    count = -(-seq // chunk)

    def split(x: Array, mode: str = "constant") -> Array:
        widths = [(0, 0), (0, count * chunk - seq)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, mode=mode)
        return jnp.moveaxis(x.reshape(batch, count, chunk, *x.shape[2:]), 1, 0)

    tokens = [jnp.moveaxis(split(x), 3, 2) for x in (q, k, v, log_decay, beta)]  # [N, B, H, C, ...]
    runs = split(runs, mode="edge")  # [N, B, C]; padding stays in the last run
    entering = jnp.concatenate([jnp.zeros_like(runs[:1, :, -1]), runs[:-1, :, -1]])  # [N, B]
    step = jax.checkpoint(_chunk, prevent_cse=False)
    state, out = lax.scan(step, state, (*tokens, runs, entering))  # out [N, B, H, C, dv]
    out = jnp.moveaxis(out, (0, 3), (1, 2)).reshape(batch, count * chunk, heads, dv)
    return out[:, :seq], state


def _chunk(
    state: Float[Array, "batch heads dk dv"], inputs: tuple[Array, ...]
) -> tuple[Float[Array, "batch heads dk dv"], Float[Array, "batch heads chunk dv"]]:
    """One chunk. ``runs`` [B, C] of its tokens; ``entering`` [B], the run that ``state`` belongs to."""
    q, k, v, log_decay, beta, runs, entering = inputs
    q, k, v32, log_decay, beta = (x.astype(jnp.float32) for x in (q, k, v, log_decay, beta))
    log_decay, beta = jnp.maximum(log_decay, _NOTHING_LEFT), beta[..., None]  # [B, H, C, 1 or dk], [B, H, C, 1]
    leaving = runs[:, -1]
    same_run = (runs[:, :, None] == runs[:, None, :])[:, None]  # [B, 1, C, C]
    from_before = (runs == entering[:, None])[:, None, :, None]  # [B, 1, C, 1]
    to_after = (runs == leaving[:, None])[:, None, :, None]
    before_to_after = (entering == leaving)[:, None, None, None]

    size = q.shape[-2]
    queries, keys = decayed_products(q, k, log_decay)  # [B, H, C, C]
    queries = jnp.where(same_run & np.tri(size, dtype=bool)[None, None], queries, 0)
    keys = jnp.where(same_run & np.tri(size, k=-1, dtype=bool)[None, None], keys, 0)
    start = jnp.where(from_before, decays_from_start(log_decay), 0)
    end = jnp.where(to_after, decays_to_end(log_decay), 0)
    kept = jnp.where(before_to_after, decays_from_start(log_decay)[..., -1:, :], 0)  # [B, H, 1, 1 or dk]

    # Each token writes beta (v - what its key reads), and reads what earlier tokens of the chunk write: a unit lower
    # triangular system for the writes.
    unread = beta * (v32 - _einsum("bhik,bhkv->bhiv", k * start, state))
    writes = _einsum("bhij,bhjv->bhiv", unit_lower_inverse(beta * keys), unread)
    out = _einsum("bhik,bhkv->bhiv", q * start, state) + _einsum("bhij,bhjv->bhiv", queries, writes)
    state = kept[..., 0, :, None] * state + _einsum("bhik,bhiv->bhkv", k * end, writes)
    return state, out.astype(v.dtype)
