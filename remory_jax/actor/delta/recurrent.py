"""The gated delta rule token by token: the definition, and what decoding uses."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

__all__ = ["recurrent"]

_einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)


def recurrent(
    q: Float[Array, "batch seq heads dk"],
    k: Float[Array, "batch seq heads dk"],
    v: Float[Array, "batch seq heads dv"],
    log_decay: Float[Array, "batch seq heads"] | Float[Array, "batch seq heads dk"],
    beta: Float[Array, "batch seq heads"],
    starts: Bool[Array, "batch seq"],
    state: Float[Array, "batch heads dk dv"],
) -> tuple[Float[Array, "batch seq heads dv"], Float[Array, "batch heads dk dv"]]:
    """Scan over tokens: ``S <- e^g S``, ``d = beta (v - S^T k)``, ``S <- S + k d^T``, ``o = S^T q``.

    Args:
      q, k, v, beta: zero at padding; ``log_decay`` likewise, so that padding leaves the state as it is.
      starts: tokens before which the state is set to zero.
      state: float32, before the first token.

    Returns:
      Outputs in the dtype of ``v``, and the state after the last token in float32.
    """
    if log_decay.ndim < k.ndim:
        log_decay = log_decay[..., None]  # [B, S, H, 1 or dk]

    # The gradient keeps one state per token and computes the rest again: a third of the memory.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def token(
        state: Float[Array, "batch heads dk dv"], inputs: tuple[Array, ...]
    ) -> tuple[Float[Array, "batch heads dk dv"], Float[Array, "batch heads dv"]]:
        q, k, v, log_decay, beta, start = inputs
        q, k, v32, log_decay, beta = (x.astype(jnp.float32) for x in (q, k, v, log_decay, beta))
        state = jnp.where(start[:, None, None, None], 0, state * jnp.exp(log_decay)[..., None])
        change = beta[..., None] * (v32 - _einsum("bhkv,bhk->bhv", state, k))
        state = state + k[..., :, None] * change[..., None, :]
        return state, _einsum("bhkv,bhk->bhv", state, q).astype(v.dtype)

    tokens = tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, log_decay, beta, starts))
    state, out = lax.scan(token, state, tokens)
    return jnp.moveaxis(out, 0, 1), state
