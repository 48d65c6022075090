"""The divergences as they are defined: all logits of both branches, and JAX's own derivative."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from remory_jax.objective.divergence import Divergence
from remory_jax.objective.reverse_kl.columns import HIDDEN, Columns
from remory_jax.objective.reverse_kl.teacher import TopK

__all__ = ["reference"]


def reference(
    student: Float[Array, "batch length d"],
    teacher: Float[Array, "batch length d"] | TopK,
    head: Float[Array, "d columns"],
    selected: Bool[Array, "batch length"],
    *,
    kind: Divergence,
    columns: Columns,
) -> Float[Array, "batch length"]:
    """Divergence at each selected position, float32, 0 at the others: [B, T, V] arrays in memory.

    On a mesh it is partitioned by the compiler, from where its arguments lie.
    """
    log_q = _log_softmax(student, head, selected, columns)
    if isinstance(teacher, TopK):
        assert teacher.log_tail is not None
        log_q = _merge(log_q, teacher.ids)
        log_p = jnp.concatenate([teacher.log_probs, teacher.log_tail[..., None]], axis=-1).astype(jnp.float32)
        log_p = jnp.where(jnp.pad(teacher.ids, ((0, 0), (0, 0), (0, 1))) < 0, HIDDEN, log_p)
    else:
        log_p = _log_softmax(teacher, head, selected, columns)
    log_p = jax.lax.stop_gradient(log_p)
    q, p = jnp.exp(log_q), jnp.exp(log_p)
    if kind.name == "jsd":
        log_m = jnp.logaddexp(log_q, log_p) - math.log(2.0)
        terms = (q * (log_q - log_m) + p * (log_p - log_m)) / 2.0
    elif kind.name == "reverse":
        terms = q * (log_q - log_p)
    elif kind.name == "forward":
        terms = p * (log_p - log_q)
    else:
        assert kind.reverse_share is not None
        share = jax.lax.stop_gradient(jnp.asarray(kind.reverse_share, jnp.float32))
        terms = share * (q * (log_q - log_p)) + (1.0 - share) * (p * (log_p - log_q))
    return jnp.where(selected, jnp.sum(terms, axis=-1), 0.0)


def _log_softmax(hidden: Array, head: Array, selected: Array, columns: Columns) -> Array:
    clean = jnp.where(selected[..., None], hidden, 0)  # padding may hold anything, and 0 times NaN is NaN
    logits = columns.logits(clean.reshape(-1, hidden.shape[-1]), head)
    return jax.nn.log_softmax(logits).reshape(*selected.shape, head.shape[1])


def _merge(log_q: Array, ids: Array) -> Array:
    """Log-masses of the tokens of ``ids`` and of all others together, [B, T, k + 1]."""
    taken = jnp.any(ids[..., None] == jnp.arange(log_q.shape[-1])[None, None, None], axis=-2)
    tail = jax.nn.logsumexp(jnp.where(taken, HIDDEN, log_q), axis=-1, keepdims=True)
    mine = jnp.take_along_axis(log_q, jnp.maximum(ids, 0), axis=-1)
    return jnp.concatenate([jnp.where(ids >= 0, mine, HIDDEN), tail], axis=-1)
