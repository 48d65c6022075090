"""Decays between the tokens of a chunk, and the products of queries and keys weighted by them.

Every exponent is a sum of the log decays it stands for, never a difference of two running sums: nothing overflows, and
a strong decay early in a chunk costs no digits later in it.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

__all__ = ["decayed_products", "decays_from_start", "decays_to_end"]

_einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)


def decays_from_start(log_decay: Float[Array, "batch heads chunk d"]) -> Float[Array, "batch heads chunk d"]:
    """exp of the sum over tokens 0..i: what is left, at token i, of the state before the chunk."""
    size = log_decay.shape[-2]
    return jnp.exp(_einsum("ij,bhjd->bhid", np.tri(size, dtype=np.float32), log_decay))


def decays_to_end(log_decay: Float[Array, "batch heads chunk d"]) -> Float[Array, "batch heads chunk d"]:
    """exp of the sum over tokens after i: what is left, at the end of the chunk, of what token i wrote."""
    size = log_decay.shape[-2]
    return jnp.exp(_einsum("ji,bhjd->bhid", np.tri(size, k=-1, dtype=np.float32), log_decay))


def decayed_products(
    q: Float[Array, "batch heads chunk dk"],
    k: Float[Array, "batch heads chunk dk"],
    log_decay: Float[Array, "batch heads chunk 1"] | Float[Array, "batch heads chunk dk"],
) -> tuple[Float[Array, "batch heads chunk chunk"], Float[Array, "batch heads chunk chunk"]]:
    """Sums over channels of ``q_i D_ij k_j`` and of ``k_i D_ij k_j``, ``D_ij`` the decay from token j to token i.

    Meaningful for j <= i (queries) and j < i (keys); other entries are finite and left for the caller to mask.
    """
    if log_decay.shape[-1] == 1:
        return _per_head(q, k, log_decay)
    return _per_channel(q, k, log_decay)


def _per_head(
    q: Float[Array, "batch heads chunk dk"],
    k: Float[Array, "batch heads chunk dk"],
    log_decay: Float[Array, "batch heads chunk 1"],
) -> tuple[Float[Array, "batch heads chunk chunk"], Float[Array, "batch heads chunk chunk"]]:
    size = k.shape[-2]
    # Entry (i, j) sums tokens j+1..i: keep tokens after j, then add them up to i.
    after = log_decay * np.tri(size, k=-1, dtype=np.float32)[None, None]  # [B, H, token, j]
    decay = jnp.exp(_einsum("it,bhtj->bhij", np.tri(size, dtype=np.float32), after))
    return _einsum("bhid,bhjd->bhij", q, k) * decay, _einsum("bhid,bhjd->bhij", k, k) * decay


def _per_channel(
    q: Float[Array, "batch heads chunk dk"],
    k: Float[Array, "batch heads chunk dk"],
    log_decay: Float[Array, "batch heads chunk dk"],
) -> tuple[Float[Array, "batch heads chunk chunk"], Float[Array, "batch heads chunk chunk"]]:
    # A decay per channel stands inside the contraction, so it has to split into a factor of i and one of j. It does at
    # any token m between them: sum over j+1..i = sum over j+1..m + sum over m+1..i. Take for m the last token of the
    # first half of the smallest aligned block of 2, 4, 8... tokens that holds both: log2(chunk) products, each masked
    # to the pairs whose block it is, and both factors at most 1.
    size = k.shape[-2]
    token = np.arange(size)
    queries = jnp.eye(size, dtype=jnp.float32)[None, None] * jnp.sum(q * k, axis=-1)[..., None]
    keys = jnp.zeros_like(queries)
    half = 1
    while half < size:
        same_half = token[:, None] // half == token[None, :] // half
        second = (token // half % 2 == 1)[:, None]
        up_to, after = token[None, :] <= token[:, None], token[None, :] > token[:, None]
        summed = (same_half & np.where(second, up_to, after)).astype(np.float32)
        decay = jnp.exp(_einsum("it,bhtd->bhid", summed, log_decay))
        same_block = token[:, None] // (2 * half) == token[None, :] // (2 * half)
        pairs = (same_block & second & ~second.T)[None, None]
        decayed = k * decay
        queries = queries + jnp.where(pairs, _einsum("bhid,bhjd->bhij", q * decay, decayed), 0)
        keys = keys + jnp.where(pairs, _einsum("bhid,bhjd->bhij", decayed, decayed), 0)
        half *= 2
    return queries, keys
