"""Divergences of a student from a teacher that share one frozen head: the loss, its two sums, and by position."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from remory_jax.actor.sharding import DEFAULT_RULES, Rules
from remory_jax.objective.divergence import Divergence
from remory_jax.objective.reverse_kl.chunked import Plan, best, chunked, compared
from remory_jax.objective.reverse_kl.columns import Columns
from remory_jax.objective.reverse_kl.reference import reference
from remory_jax.objective.reverse_kl.teacher import PerPosition, TopK

__all__ = ["IMPLEMENTATIONS", "divergence_sums", "per_position", "reverse_kl", "top_k_teacher"]

IMPLEMENTATIONS = ("reference", "chunked")
PRODUCTS = ("float32", "bfloat16", "float16")
Products: TypeAlias = Literal["float32", "bfloat16", "float16"]
REVERSE = Divergence(name="reverse")


def reverse_kl(
    student_hidden: Float[Array, "batch length d"],
    teacher_hidden: Float[Array, "batch length d"] | TopK,
    head: Float[Array, "d columns"],
    weights: Float[Array, "batch length"],
    *,
    chunk: int = 256,
    vocabulary: int | None = None,
    products: Products | None = None,
    mesh: Mesh | None = None,
    rules: Rules = DEFAULT_RULES,
    implementation: str = "chunked",
) -> Float[Array, ""]:
    """The objective of REMORY, in nats::

        L = sum_j w_j KL(q_j || p_j) / sum_j w_j

    with q the student's and p the teacher's distribution over the vocabulary; sums are over the global batch.
    Arguments, gradients and errors as in `divergence_sums`.

    Where all weights are 0 the quotient is 0/0: an error if the weights are known; under `jax.jit` they are not, and
    then loss and gradient are 0.

    Raises:
      ValueError: also if no weight differs from 0.
    """
    numerator, denominator = divergence_sums(
        student_hidden,
        teacher_hidden,
        head,
        weights,
        chunk=chunk,
        vocabulary=vocabulary,
        products=products,
        mesh=mesh,
        rules=rules,
        implementation=implementation,
    )
    if not isinstance(denominator, jax.core.Tracer) and float(denominator) == 0.0:
        raise ValueError(
            f"weights {weights.shape} sum to 0, so there is no position to average over; give a positive weight to "
            f"what is judged, or leave the batch out"
        )
    return numerator / jnp.where(denominator == 0.0, 1.0, denominator)


def divergence_sums(
    student_hidden: Float[Array, "batch length d"],
    teacher_hidden: Float[Array, "batch length d"] | TopK,
    head: Float[Array, "d columns"],
    weights: Float[Array, "batch length"],
    *,
    kind: Divergence = REVERSE,
    chunk: int = 256,
    vocabulary: int | None = None,
    products: Products | None = None,
    mesh: Mesh | None = None,
    rules: Rules = DEFAULT_RULES,
    implementation: str = "chunked",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """``sum_j w_j D(q_j, p_j)`` and ``sum_j w_j`` over the global batch, float32.

    Only ``student_hidden`` gets a gradient, once and in reverse mode, in its own dtype; teacher, head, weights and
    share are constants. A position of weight 0 contributes exactly 0 to value and gradient, even where its hidden
    states are not finite, and costs nothing with ``chunked``.

    Args:
      student_hidden: after the final norm.
      teacher_hidden: likewise; or a cached teacher, `TopK`.
      head: of the actor, [D, columns].
      weights: at least 0; 0 for padding.
      kind: the divergence; reverse KL by default.
      chunk: positions whose logits exist at a time, per device; memory is about three times chunk x columns x 4 bytes.
        A chunk reads the head three times, which on accelerators may ask for more positions (not measured).
      vocabulary: number of tokens, where the head is padded: columns from there on have no probability. They must be
        finite.
      products: dtype of the products with the head; that of ``student_hidden`` by default. Sums and all else are
        float32, and float32 products are not rounded to less on accelerators.
      mesh: where the arrays lie: batch and vocabulary by ``rules``. Each device computes its columns for its rows, and
        reduces maxima and sums over the vocabulary's axis; a head that lies in parts over ``fsdp`` is gathered over
        that axis only. A batch that the mesh does not divide is computed whole on every device.
      implementation: ``chunked``; or ``reference``, which holds all logits, and where ``chunk`` and ``mesh`` change
        nothing.

    Raises:
      ValueError: for shapes that do not agree or are empty, a chunk below 1, a vocabulary that the head lacks, columns
        that the mesh does not divide, an unknown implementation, and a top-k teacher without its tail.
    """
    plan = _plan(student_hidden, head, chunk=chunk, vocabulary=vocabulary, products=products, mesh=mesh, rules=rules)
    _check_teacher(student_hidden, teacher_hidden)
    if weights.shape != student_hidden.shape[:2]:
        raise ValueError(f"weights {weights.shape} must have a weight per position, {student_hidden.shape[:2]}")
    weights = jax.lax.stop_gradient(weights.astype(jnp.float32))
    teacher, head = jax.lax.stop_gradient((teacher_hidden, head))
    selected = weights != 0.0
    if implementation == "chunked":
        values = chunked(student_hidden, teacher, head, selected, kind=kind, plan=plan)
    elif implementation == "reference":
        columns = Columns(axis=None, real=plan.real, products=plan.products)
        values = reference(student_hidden, teacher, head, selected, kind=kind, columns=columns)
    else:
        raise ValueError(f"implementation = {implementation!r}; use one of {', '.join(IMPLEMENTATIONS)}")
    return jnp.sum(weights * values), jnp.sum(weights)


def per_position(
    student_hidden: Float[Array, "batch length d"],
    teacher_hidden: Float[Array, "batch length d"],
    head: Float[Array, "d columns"],
    *,
    mask: Bool[Array, "batch length"] | None = None,
    chunk: int = 256,
    vocabulary: int | None = None,
    products: Products | None = None,
    mesh: Mesh | None = None,
    rules: Rules = DEFAULT_RULES,
) -> PerPosition:
    """Reverse KL, forward KL and agreement on the likeliest token at each position, for evaluation; no gradients.

    Args:
      mask: positions that are wanted; the others cost nothing and are 0 and False. All by default.

    The other arguments, and errors, as in `divergence_sums`.
    """
    plan = _plan(student_hidden, head, chunk=chunk, vocabulary=vocabulary, products=products, mesh=mesh, rules=rules)
    _check_teacher(student_hidden, teacher_hidden)
    mask = jnp.ones(student_hidden.shape[:2], bool) if mask is None else mask
    result: PerPosition = compared(plan, *jax.lax.stop_gradient((student_hidden, teacher_hidden, head)), mask)
    return result


def top_k_teacher(
    teacher_hidden: Float[Array, "batch length d"],
    head: Float[Array, "d columns"],
    k: int,
    *,
    mask: Bool[Array, "batch length"] | None = None,
    chunk: int = 256,
    vocabulary: int | None = None,
    products: Products | None = None,
    mesh: Mesh | None = None,
    rules: Rules = DEFAULT_RULES,
) -> TopK:
    """A teacher to be stored: its k likeliest tokens at each position, likeliest first, and its tail.

    Args:
      mask: positions that are wanted; the others are 0 throughout. All by default.

    The other arguments, and errors, as in `divergence_sums`.

    Raises:
      ValueError: also for a k below 1 or above the vocabulary.
    """
    plan = _plan(teacher_hidden, head, chunk=chunk, vocabulary=vocabulary, products=products, mesh=mesh, rules=rules)
    tokens = head.shape[1] if vocabulary is None else vocabulary
    if not 1 <= k <= tokens:
        raise ValueError(f"k = {k}; keep 1 to {tokens} tokens, as many as there are")
    mask = jnp.ones(teacher_hidden.shape[:2], bool) if mask is None else mask
    result: TopK = best(plan, k, *jax.lax.stop_gradient((teacher_hidden, head)), mask)
    return result


def _plan(
    hidden: Array,
    head: Array,
    *,
    chunk: int,
    vocabulary: int | None,
    products: Products | None,
    mesh: Mesh | None,
    rules: Rules,
) -> Plan:
    """The static part of a call, checked."""
    if hidden.ndim != 3 or head.ndim != 2 or hidden.shape[2] != head.shape[0]:
        raise ValueError(f"hidden states {hidden.shape} and head {head.shape} must be [B, T, D] and [D, columns]")
    if 0 in hidden.shape or 0 in head.shape:
        raise ValueError(f"hidden states {hidden.shape} or head {head.shape} are empty; a loss needs a position")
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}; it is a number of positions, so use 1 or more")
    columns = head.shape[1]
    if vocabulary is not None and not 1 <= vocabulary <= columns:
        raise ValueError(f"vocabulary = {vocabulary} and the head has {columns} columns; it must be 1 to {columns}")
    if products is None:
        named = jnp.dtype(hidden.dtype).name
    elif products in PRODUCTS:
        named = products
    else:
        raise ValueError(
            f"products = {products!r}; use one of {', '.join(PRODUCTS)}, or None for the hidden states' own"
        )
    real = None if vocabulary == columns else vocabulary
    if mesh is None:
        return Plan(chunk=chunk, real=real, products=named)
    batch_axes = (rules.batch,) if isinstance(rules.batch, str) else rules.batch or ()
    if hidden.shape[0] % math.prod(mesh.shape[axis] for axis in batch_axes):
        batch_axes = ()  # as the actor does: a single prompt is replicated
    if rules.vocab is not None and columns % mesh.shape[rules.vocab]:
        raise ValueError(
            f"head has {columns} columns, not divided by mesh axis {rules.vocab} = {mesh.shape[rules.vocab]}; pad it "
            f"and give vocabulary={columns if vocabulary is None else vocabulary}, or replicate it with "
            f"Rules(vocab=None)"
        )
    return Plan(chunk=chunk, real=real, products=named, mesh=mesh, batch_axes=batch_axes, vocabulary_axis=rules.vocab)


def _check_teacher(student: Array, teacher: Array | TopK) -> None:
    if not isinstance(teacher, TopK):
        if teacher.shape != student.shape:
            raise ValueError(f"teacher_hidden {teacher.shape} and student_hidden {student.shape} must be alike")
        return
    if teacher.log_tail is None:
        raise ValueError(
            f"TopK.log_tail is None: a divergence truncated to the teacher's {teacher.ids.shape[-1]} likeliest tokens "
            f"is refused. Mass outside them would be free: the truncated reverse KL is least, and negative, for a "
            f"student that keeps 1/e of the teacher's mass on them. Give the log-mass of all other tokens; "
            f"top_k_teacher does"
        )
    for name, shape, wanted in (
        ("ids", teacher.ids.shape[:2], student.shape[:2]),
        ("log_probs", teacher.log_probs.shape, teacher.ids.shape),
        ("log_tail", teacher.log_tail.shape, student.shape[:2]),
    ):
        if shape != wanted:
            raise ValueError(f"TopK.{name} is {shape} by position and must be {wanted}, for student {student.shape}")
