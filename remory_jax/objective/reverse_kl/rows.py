"""One chunk of positions: divergences and their gradients from the logits, all in float32.

With a teacher of hidden states, a = u - max u and b = v - max v are the shifted logits of student and teacher, and Z
the sums of their exponentials. Then::

    KL(q || p) = sum e^a (a - b) / Z_q - log Z_q + log Z_p

takes one pass and one reduction over the mesh after the maxima; an a far below 0 counts for nothing, so the sum keeps
its precision at any size of the logits. Gradients with respect to the student's logits u::

    reverse   q (log q - log p - KL(q || p))
    forward   q - p
    jsd       q (log q - log m - KL(q || m)) / 2
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from remory_jax.objective.divergence import Name
from remory_jax.objective.reverse_kl.columns import HIDDEN, Columns
from remory_jax.objective.reverse_kl.teacher import TopK

__all__ = ["Pair", "best", "buckets", "coarse", "compare", "full"]


class Pair(NamedTuple):
    """Student and teacher over the columns here."""

    q: Array  # [C, V]
    p: Array  # [C, V]
    ratio: Array  # log q - log p, [C, V]
    reverse: Array | None  # [C, 1]
    forward: Array | None  # [C, 1]


def pair(columns: Columns, u: Array, v: Array, *, reverse: bool, forward: bool) -> Pair:
    """Both distributions, and the divergences asked for."""
    a, b = u - columns.max(u), v - columns.max(v)
    heights = jnp.exp(a), jnp.exp(b)
    crosses = ([heights[0] * (a - b)] if reverse else []) + ([heights[1] * (b - a)] if forward else [])
    z_q, z_p, *crossed = columns.sums(*heights, *crosses)
    shift = jnp.log(z_q) - jnp.log(z_p)
    return Pair(
        q=heights[0] / z_q,
        p=heights[1] / z_p,
        ratio=a - b - shift,
        reverse=crossed[0] / z_q - shift if reverse else None,
        forward=crossed[-1] / z_p + shift if forward else None,
    )


def full(
    columns: Columns, name: Name, *, gradient: bool, student: Array, teacher: Array, head: Array, share: Array | None
) -> tuple[Array, Array | None]:
    """Divergences [C] from a teacher's hidden states [C, D], and their gradients with respect to the student's."""
    both = pair(
        columns,
        columns.logits(student, head),
        columns.logits(teacher, head),
        reverse=name in ("reverse", "mixture"),
        forward=name in ("forward", "mixture"),
    )
    q, p, ratio, reverse, forward = both
    if reverse is not None and forward is not None:
        assert share is not None
        value = share * reverse + (1.0 - share) * forward
        dlogits = share * (q * (ratio - reverse)) + (1.0 - share) * (q - p)
    elif reverse is not None:
        value, dlogits = reverse, q * (ratio - reverse)
    elif forward is not None:
        value, dlogits = forward, q - p
    else:
        to_middle = -_log_mean_exp(-ratio)  # log q - log m; the other, below, is log p - log m
        student_part, teacher_part = columns.sums(q * to_middle, -p * _log_mean_exp(ratio))
        value, dlogits = (student_part + teacher_part) / 2.0, q * (to_middle - student_part) / 2.0
    return value[:, 0], columns.back(dlogits, head) if gradient else None


def _log_mean_exp(x: Array) -> Array:
    """log((1 + e^x) / 2), for any x."""
    return jax.nn.softplus(x) - math.log(2.0)


def buckets(name: Name, log_q: Array, log_p: Array, share: Array | None) -> tuple[Array, Array]:
    """The divergence of two small distributions [C, k], term by term, and q times its derivative with respect to q."""
    q, p = jnp.exp(log_q), jnp.exp(log_p)
    # 0 log 0 = 0, also where a logarithm is -inf
    reverse = jnp.where(q > 0.0, q * (log_q - log_p), 0.0)
    forward = jnp.where(p > 0.0, p * (log_p - log_q), 0.0)
    if name == "reverse":
        return reverse, reverse
    if name == "forward":
        return forward, -p
    if name == "mixture":
        assert share is not None
        return share * reverse + (1.0 - share) * forward, share * reverse - (1.0 - share) * p
    log_m = jnp.logaddexp(log_q, log_p) - math.log(2.0)
    student_part = jnp.where(q > 0.0, q * (log_q - log_m), 0.0) / 2.0
    return student_part + jnp.where(p > 0.0, p * (log_p - log_m), 0.0) / 2.0, student_part


def coarse(
    columns: Columns, name: Name, *, gradient: bool, student: Array, teacher: TopK, head: Array, share: Array | None
) -> tuple[Array, Array | None]:
    """As `full`, for a teacher of k tokens [C, k] and a tail: all other columns are one bucket.

    For column j of bucket b with mass Q_b, and t_b = Q_b dL/dQ_b, the gradient is ``q_j (t_b / Q_b - sum t)``; in the
    tail ``q_j / Q_b`` is formed as a softmax over the tail, which is finite where the student leaves it no mass.
    """
    assert teacher.log_tail is not None
    u = columns.logits(student, head)
    width = u.shape[1]
    line, at = jnp.arange(u.shape[0])[:, None], columns.here(teacher.ids, width)
    rest = u.at[line, at].set(HIDDEN, mode="drop")  # the tail's logits
    top, top_rest = columns.max(u), columns.max(rest)
    a = u - top
    mine = jnp.where(at < width, jnp.take_along_axis(a, jnp.minimum(at, width - 1), axis=1), 0.0)
    z, z_rest = columns.sums(jnp.exp(a), jnp.exp(rest - top_rest))
    if columns.axis is not None:
        mine = jax.lax.psum(mine, columns.axis)  # each token is one device's
    used = teacher.ids >= 0
    tail = jnp.log(z_rest) + (top_rest - top) - jnp.log(z)  # [C, 1]
    log_q = jnp.concatenate([jnp.where(used, mine - jnp.log(z), HIDDEN), tail], axis=1)
    log_p = jnp.concatenate(
        [jnp.where(used, teacher.log_probs.astype(jnp.float32), HIDDEN), teacher.log_tail.astype(jnp.float32)[:, None]],
        axis=1,
    )
    terms, t = buckets(name, log_q, log_p, share)
    value = jnp.sum(terms, axis=1)
    if not gradient:
        return value, None
    total = jnp.sum(t, axis=1, keepdims=True)
    in_tail = jnp.exp(rest - top_rest) / z_rest * t[:, -1:] - jnp.exp(a) / z * total
    dlogits = in_tail.at[line, at].set(t[:, :-1] - jnp.exp(log_q[:, :-1]) * total, mode="drop")
    return value, columns.back(dlogits, head)


def compare(columns: Columns, student: Array, teacher: Array, head: Array) -> tuple[Array, Array, Array]:
    """Reverse and forward KL and whether both prefer the same token, [C] each."""
    u, v = columns.logits(student, head), columns.logits(teacher, head)
    both = pair(columns, u, v, reverse=True, forward=True)
    assert both.reverse is not None and both.forward is not None
    agree = columns.argmax(u, columns.max(u)) == columns.argmax(v, columns.max(v))
    return both.reverse[:, 0], both.forward[:, 0], agree


def best(columns: Columns, k: int, teacher: Array, head: Array) -> tuple[Array, Array, Array]:
    """The k likeliest tokens of the teacher, their log-probabilities [C, k], and the log-mass of the others [C]."""
    v = columns.logits(teacher, head)
    width = v.shape[1]
    values, ids = jax.lax.top_k(v, min(k, width))
    if columns.axis is not None:
        ids = ids + jax.lax.axis_index(columns.axis) * width
        # every device has the same candidates and chooses alike; the maximum says so to the type system
        both = jax.lax.all_gather((values, ids), columns.axis, axis=1, tiled=True)
        values, ids = jax.lax.pmax(both, columns.axis)
        values, chosen = jax.lax.top_k(values, k)
        ids = jnp.take_along_axis(ids, chosen, axis=1)
    rest = v.at[jnp.arange(v.shape[0])[:, None], columns.here(ids, width)].set(HIDDEN, mode="drop")
    top, top_rest = columns.max(v), columns.max(rest)
    z, z_rest = columns.sums(jnp.exp(v - top), jnp.exp(rest - top_rest))
    tail = jnp.log(z_rest) + (top_rest - top) - jnp.log(z)
    return ids, values - top - jnp.log(z), tail[:, 0]
