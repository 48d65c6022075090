"""What the memory network is trained on: divergences of the student from the full-context teacher.

``reverse_kl(student_hidden, teacher_hidden, head, weights)`` is the loss; `divergence_sums` gives its numerator and
denominator, for other divergences and other teachers too; `per_position` is for evaluation.
"""

from remory_jax.objective.divergence import Divergence
from remory_jax.objective.reverse_kl import (
    PerPosition,
    TopK,
    divergence_sums,
    per_position,
    reverse_kl,
    top_k_teacher,
)
from remory_jax.objective.schedule import reverse_share
from remory_jax.objective.weights import position_weights

__all__ = [
    "Divergence",
    "PerPosition",
    "TopK",
    "divergence_sums",
    "per_position",
    "position_weights",
    "reverse_kl",
    "reverse_share",
    "top_k_teacher",
]
