"""What a teacher may be besides hidden states, and what evaluation gets."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.pytree import pytree

__all__ = ["PerPosition", "TopK"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class TopK:
    """A cached teacher: its k likeliest tokens at each position, and the mass of all the others as one bucket.

    The divergence is then that of the coarse-grained distributions, over k tokens and the bucket, for teacher and
    student alike. It is a lower bound of the full one (data processing), and 0 only where all k probabilities agree:
    the student's mass outside the k tokens is held to the teacher's.

    Attributes:
      ids: distinct token ids; -1 is an unused entry.
      log_probs: natural logarithms of the teacher's probabilities, over the whole vocabulary, of the tokens of ``ids``.
      log_tail: logarithm of the mass of all tokens that are not in ``ids``. Compute it in the log domain, as
        `top_k_teacher` does: ``log(1 - sum p)`` is -inf for a confident teacher, and then the loss is infinite.
    """

    ids: Int[Array, "batch length k"]
    log_probs: Float[Array, "batch length k"]
    log_tail: Float[Array, "batch length"] | None


@pytree()
@dataclass(frozen=True, kw_only=True)
class PerPosition:
    """Student against teacher at each position; 0 and False where ``mask`` was False.

    Attributes:
      reverse: KL(student || teacher), nats.
      forward: KL(teacher || student), nats.
      agree: whether both have the same likeliest token (the first, where several are equal).
    """

    reverse: Float[Array, "batch length"]
    forward: Float[Array, "batch length"]
    agree: Bool[Array, "batch length"]
