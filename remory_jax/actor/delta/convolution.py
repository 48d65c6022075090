"""The short causal convolution before a delta-rule layer, over packed, padded rows with a carried history."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from remory_jax.actor.delta.segments import segment_runs

__all__ = ["short_convolution"]


def short_convolution(
    x: Float[Array, "batch seq channels"],
    weight: Float[Array, "channels taps"],
    *,
    segment_ids: Int[Array, "batch seq"],
    history: Float[Array, "batch taps-1 channels"] | None = None,
    history_segment_ids: Int[Array, "batch taps-1"] | None = None,
) -> tuple[Float[Array, "batch seq channels"], Float[Array, "batch taps-1 channels"], Int[Array, "batch taps-1"]]:
    """Depthwise causal convolution, ``y_t = sum_j weight[:, taps-1-j] * x_{t-j}``, without bias or activation.

    A tap never reaches into another segment, a previous run of the same id, or padding. Padding (id 0) may stand at
    the left or at the right of a row, whether or not a history comes before it, or between two segments, and changes
    nothing. It must not stand inside a segment: taps do not reach across it there.

    Args:
      x: inputs; whatever padding holds is ignored.
      weight: the last tap is that of the current token.
      segment_ids: 0 is padding.
      history: the last taps - 1 real inputs of each row before this call, oldest first.
      history_segment_ids: their segments; 0, or None for all, says that there is nothing.

    Returns:
      y in the dtype of ``x`` (sums in float32; 0 at padding), and the history after this call with its segment ids.
      With two taps or more ``history_segment_ids[:, -1]`` is the segment of the row's last real token, the owner of
      the delta rule's state.
    """
    batch, seq, channels = x.shape
    past = weight.shape[1] - 1
    if history is None or history_segment_ids is None:
        history = jnp.zeros((batch, past, channels), x.dtype)
        history_segment_ids = jnp.zeros((batch, past), segment_ids.dtype)
        left = jnp.zeros((batch,), jnp.int32)
    else:
        history, history_segment_ids = history.astype(x.dtype), history_segment_ids.astype(segment_ids.dtype)
        left = jnp.argmax(segment_ids != 0, axis=1).astype(jnp.int32)

    # The history goes right before the first real token, over the padding at the left.
    x = jnp.concatenate([jnp.zeros_like(history), x], axis=1)  # [B, past + S, C]
    ids = jnp.concatenate([jnp.zeros_like(history_segment_ids), segment_ids], axis=1)
    position = jnp.arange(past + seq, dtype=jnp.int32)[None, :]
    for i in range(past):
        here = position == left[:, None] + i
        x = jnp.where(here[..., None], history[:, i, None, :], x)
        ids = jnp.where(here, history_segment_ids[:, i, None], ids)

    _, runs = segment_runs(ids, jnp.zeros_like(ids[:, 0]))
    real = ids != 0
    y = jnp.zeros((batch, seq, channels), jnp.float32)
    for tap in range(past + 1):
        source = slice(tap, tap + seq)
        reached = real[:, source] & (segment_ids != 0) & (runs[:, source] == runs[:, past:])
        taken = jnp.where(reached[..., None], x[:, source], 0).astype(jnp.float32)
        y = y + taken * weight[:, tap].astype(jnp.float32)[None, None, :]

    # 1 + position of the last real inputs, oldest first; 0 where there are fewer.
    last = lax.top_k(jnp.where(real, position + 1, 0), past)[0][:, ::-1]
    found, at = last > 0, jnp.maximum(last - 1, 0)
    history = jnp.where(found[..., None], jnp.take_along_axis(x, at[..., None], axis=1), 0)
    history_segment_ids = jnp.where(found, jnp.take_along_axis(ids, at, axis=1), 0)
    return y.astype(x.dtype), history, history_segment_ids
