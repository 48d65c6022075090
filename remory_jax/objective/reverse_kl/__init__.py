"""Reverse KL of two branches with one frozen head, as an op: `reverse_kl`, its sums, and the same by position."""

from remory_jax.objective.reverse_kl.api import (
    IMPLEMENTATIONS,
    divergence_sums,
    per_position,
    reverse_kl,
    top_k_teacher,
)
from remory_jax.objective.reverse_kl.teacher import PerPosition, TopK

__all__ = [
    "IMPLEMENTATIONS",
    "PerPosition",
    "TopK",
    "divergence_sums",
    "per_position",
    "reverse_kl",
    "top_k_teacher",
]
