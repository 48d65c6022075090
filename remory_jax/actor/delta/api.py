"""The gated delta rule over packed, padded rows with a carried state."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from remory_jax.actor.delta.chunked import chunked
from remory_jax.actor.delta.recurrent import recurrent
from remory_jax.actor.delta.segments import segment_runs

__all__ = ["IMPLEMENTATIONS", "gated_delta_rule"]

IMPLEMENTATIONS = ("recurrent", "chunked")

# From about here one chunk beats a scan over its tokens (measured on CPU, 16 heads of 128).
_CHUNKED_FROM = 8


def gated_delta_rule(
    q: Float[Array, "batch seq heads dk"],
    k: Float[Array, "batch seq heads dk"],
    v: Float[Array, "batch seq heads dv"],
    log_decay: Float[Array, "batch seq heads"] | Float[Array, "batch seq heads dk"],
    beta: Float[Array, "batch seq heads"],
    *,
    segment_ids: Int[Array, "batch seq"],
    state: Float[Array, "batch heads dk dv"] | None = None,
    state_segment_ids: Int[Array, " batch"] | None = None,
    implementation: str | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, "batch seq heads dv"], Float[Array, "batch heads dk dv"]]:
    """Gated DeltaNet (a decay per head) or KDA (a decay per key channel).

    Per real token, with S of shape [dk, dv]::

        S <- e^log_decay S;  S <- S + k (beta (v - S^T k))^T;  out = S^T q

    Rows may hold several segments and padding (id 0) at the left, at the right or in between. A padding token changes
    nothing, whatever its values, and its output is 0. A real token whose id differs from that of the previous real
    token of its row starts from S = 0.

    Args:
      q, k: normalised, scaled and repeated to the value heads.
      v: values.
      log_decay: at most 0; natural logarithm. -inf forgets everything.
      beta: write strength; 0 to 1, or to 2 where the model allows negative eigenvalues.
      segment_ids: 0 is padding.
      state: S before the first token. It is used only by tokens that continue segment ``state_segment_ids``.
      state_segment_ids: owner of ``state``; 0, or None for all rows, says that it has none and the rows start from 0.
        After the call the owner is the segment of the row's last real token.
      implementation: one of ``IMPLEMENTATIONS``; None takes ``recurrent`` for a few tokens and ``chunked`` for more.
      chunk: tokens per chunk, a power of two; None takes 64 for a decay per head and 16 for one per channel.

    Returns:
      out in the dtype of ``v``, and S after the last real token of each row (the incoming one where there is none) in
      float32. Everything inside is float32 at the highest matmul precision.

    Raises:
      ValueError: for an unknown implementation, a chunk that is not a power of two, or shapes that do not agree.

    Source: Yang et al., *Gated Delta Networks* (arXiv 2412.06464), section 3; Kimi Team, *Kimi Linear* (arXiv
    2510.26692) for the decay per channel.
    """
    batch, seq, heads, dk = k.shape
    _check(q, k, v, log_decay, beta, implementation, chunk)
    owner = jnp.zeros(batch, segment_ids.dtype) if state_segment_ids is None else state_segment_ids
    before = jnp.zeros((batch, heads, dk, v.shape[-1]), jnp.float32) if state is None else state.astype(jnp.float32)

    starts, runs = segment_runs(segment_ids, owner)
    real = segment_ids != 0
    # Selected, not multiplied: padding and states without an owner may hold anything, NaN included.
    used = jnp.where((real & (runs == 0)).any(axis=1)[:, None, None, None], before, 0)
    q, k, v, log_decay, beta = (
        jnp.where(real.reshape(batch, seq, *[1] * (x.ndim - 2)), x, 0) for x in (q, k, v, log_decay, beta)
    )
    if implementation is None:
        implementation = "recurrent" if seq < _CHUNKED_FROM else "chunked"
    if implementation == "recurrent":
        out, after = recurrent(q, k, v, log_decay, beta, starts, used)
    else:
        size = chunk or (64 if log_decay.ndim == 3 else 16)
        size = min(size, 1 << (seq - 1).bit_length())  # a short call is one short chunk
        out, after = chunked(q, k, v, log_decay, beta, runs, used, chunk=size)
    return out, jnp.where(real.any(axis=1)[:, None, None, None], after, before)


def _check(q: Array, k: Array, v: Array, log_decay: Array, beta: Array, name: str | None, chunk: int | None) -> None:
    if name is not None and name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation = {name!r} is unknown; use one of {', '.join(IMPLEMENTATIONS)}, or None")
    if chunk is not None and (chunk < 1 or chunk & (chunk - 1)):
        raise ValueError(f"chunk = {chunk} is not a power of two; use one, such as 64")
    if q.shape != k.shape or k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"q {q.shape}, k {k.shape} and v {v.shape} must agree in [batch, seq, heads], and q and k in all; "
            f"repeat q and k to the value heads"
        )
    if log_decay.shape not in (k.shape[:3], k.shape) or beta.shape != k.shape[:3]:
        raise ValueError(
            f"log_decay {log_decay.shape} must be {k.shape[:3]} (a decay per head) or {k.shape} (one per key channel), "
            f"and beta {beta.shape} must be {k.shape[:3]}"
        )
