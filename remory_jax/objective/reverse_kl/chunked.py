"""Divergences chunk by chunk over positions: logits of one chunk are all that exists of the vocabulary.

The gradient with respect to the student's hidden states needs the logits, and the cotangent of a position's divergence
only scales it. So where a gradient is wanted the forward pass computes it, [B, T, D] beside the values, and the
backward pass multiplies by a number per position: two products with the head for the logits and one for the gradient,
as many as in the dense form, and no logits computed twice.

Positions that do not count are sorted behind the others and never computed: the loop ends where they begin. On a mesh
each device loops over its own rows of the batch and its own columns of the head; the loop is as long as the longest, so
that all devices meet in every collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float

from remory_jax.objective.divergence import Divergence, Name
from remory_jax.objective.reverse_kl import rows
from remory_jax.objective.reverse_kl.columns import Columns
from remory_jax.objective.reverse_kl.teacher import PerPosition, TopK

__all__ = ["Plan", "best", "chunked", "compared"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The static part of a call.

    Attributes:
      chunk: positions in a chunk, at most.
      real: columns of the head that are tokens; None: all.
      products: dtype of the matrix products.
      mesh: None for one device.
      batch_axes: mesh axes that divide the batch; none where it is replicated.
      vocabulary_axis: mesh axis that divides the head's columns; None where it is replicated.
    """

    chunk: int
    real: int | None
    products: str
    mesh: Mesh | None = None
    batch_axes: tuple[str, ...] = ()
    vocabulary_axis: str | None = None

    @property
    def columns(self) -> Columns:
        """What one device sees of the vocabulary."""
        return Columns(axis=self.vocabulary_axis, real=self.real, products=self.products)


def chunked(
    student: Float[Array, "batch length d"],
    teacher: Float[Array, "batch length d"] | TopK,
    head: Float[Array, "d columns"],
    selected: Bool[Array, "batch length"],
    *,
    kind: Divergence,
    plan: Plan,
) -> Float[Array, "batch length"]:
    """Divergence at each selected position, float32, 0 at the others whatever lies there.

    Reverse-mode differentiable once, with respect to ``student`` only.
    """
    share = None if kind.reverse_share is None else jnp.asarray(kind.reverse_share, jnp.float32)
    values: Array = _divergences(plan, kind.name, student, teacher, head, selected, share)
    return values


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _divergences(
    plan: Plan, name: Name, student: Array, teacher: Any, head: Array, selected: Array, share: Array | None
) -> Array:
    values, _ = _run(plan, name, False, student, teacher, head, selected, share)
    assert isinstance(values, jax.Array)
    return values


def _divergences_forward(
    plan: Plan, name: Name, student: Array, teacher: Any, head: Array, selected: Array, share: Array | None
) -> tuple[Array, Array]:
    values, gradient = _run(plan, name, True, student, teacher, head, selected, share)
    assert gradient is not None
    return values, gradient


def _divergences_backward(plan: Plan, name: Name, gradient: Array, cotangent: Array) -> tuple[Array | None, ...]:
    scaled = cotangent[..., None] * gradient.astype(jnp.float32)
    return scaled.astype(gradient.dtype), None, None, None, None


_divergences.defvjp(_divergences_forward, _divergences_backward)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(
    plan: Plan, name: Name, gradient: bool, student: Array, teacher: Any, head: Array, selected: Array, share: Any
) -> tuple[Array, Array | None]:
    """Values [B, T], and unscaled gradients [B, T, D] in the dtype of ``student``."""

    def chunk(columns: Columns, at: tuple[Array, Any], head: Array, share: Array | None) -> tuple[Array, Array | None]:
        compute = rows.coarse if isinstance(at[1], TopK) else rows.full
        values, back = compute(columns, name, gradient=gradient, student=at[0], teacher=at[1], head=head, share=share)
        return values, None if back is None else back.astype(student.dtype)

    out: tuple[Array, Array | None] = over_chunks(plan, chunk, (student, teacher), head, selected, share)
    return out


@partial(jax.jit, static_argnums=0)
def compared(plan: Plan, student: Array, teacher: Array, head: Array, selected: Array) -> PerPosition:
    """`PerPosition` of hidden states [B, T, D]."""

    def chunk(columns: Columns, at: tuple[Array, Array], head: Array, none: None) -> tuple[Array, Array, Array]:
        return rows.compare(columns, *at, head)

    reverse, forward, agree = over_chunks(plan, chunk, (student, teacher), head, selected, None)
    return PerPosition(reverse=reverse, forward=forward, agree=agree)


@partial(jax.jit, static_argnums=(0, 1))
def best(plan: Plan, k: int, teacher: Array, head: Array, selected: Array) -> TopK:
    """`TopK` of hidden states [B, T, D]."""

    def chunk(columns: Columns, at: Array, head: Array, none: None) -> tuple[Array, Array, Array]:
        return rows.best(columns, k, at, head)

    ids, log_probs, log_tail = over_chunks(plan, chunk, teacher, head, selected, None)
    return TopK(ids=ids, log_probs=log_probs, log_tail=log_tail)


def over_chunks(plan: Plan, function: Callable[..., Any], given: Any, head: Array, selected: Array, extra: Any) -> Any:
    """``function(columns, chunk of given, head, extra)`` over the selected positions, zeros at the others.

    Args:
      function: takes and gives pytrees of arrays [C, ...]; the same on all devices of the vocabulary's axis.
      given: pytree of arrays [B, T, ...].
      extra: pytree of whole arrays.
    """
    local = partial(_over_chunks_here, plan, function)
    if plan.mesh is None:
        return local(given, head, selected, extra)
    batch = PartitionSpec(plan.batch_axes or None)
    return jax.shard_map(
        local,
        mesh=plan.mesh,
        in_specs=(batch, PartitionSpec(None, plan.vocabulary_axis), batch, PartitionSpec()),
        out_specs=batch,
    )(given, head, selected, extra)


def _over_chunks_here(
    plan: Plan, function: Callable[..., Any], given: Any, head: Array, selected: Array, extra: Any
) -> Any:
    """`over_chunks` on one device of the mesh, or on the only one."""
    total = selected.size
    size = min(plan.chunk, total)
    given = jax.tree.map(lambda x: x.reshape(total, *x.shape[2:]), given)
    head = head.astype(plan.products)  # once, not in every chunk
    # stable, so that selected positions keep their order and the gathers and scatters below are sorted
    order = jnp.argsort(~selected.reshape(total), stable=True)
    count = jnp.sum(selected)
    order = jnp.where(jnp.arange(total) < count, order, total)  # past the end: read as zeros, never written
    order = jnp.pad(order, (0, -total % size), constant_values=total)
    chunks = (count + size - 1) // size
    if plan.batch_axes:
        chunks = jax.lax.pmax(chunks, plan.batch_axes)

    def compute(index: Array) -> tuple[Array, Any]:
        at = jax.lax.dynamic_slice_in_dim(order, index * size, size)
        take = partial(jnp.take, indices=at, axis=0, mode="fill", fill_value=0, indices_are_sorted=True)
        return at, function(plan.columns, jax.tree.map(take, given), head, extra)

    def body(index: Array, out: Any) -> Any:
        at, new = compute(index)
        return jax.tree.map(lambda x, rows: x.at[at].set(rows, mode="drop", indices_are_sorted=True), out, new)

    shapes = jax.eval_shape(compute, jnp.int32(0))[1]
    out = jax.tree.map(lambda x: jnp.zeros((total, *x.shape[1:]), x.dtype), shapes)
    if plan.batch_axes:
        out = jax.lax.pcast(out, plan.batch_axes, to="varying")
    out = jax.lax.fori_loop(0, chunks, body, out)
    return jax.tree.map(lambda x: x.reshape(*selected.shape, *x.shape[1:]), out)
