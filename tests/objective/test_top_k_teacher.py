"""A cached teacher: k tokens and a tail."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_divergence import close, close_gradient, dense, log_softmax

from remory_jax.objective import Divergence, TopK, divergence_sums, reverse_kl, top_k_teacher
from remory_jax.objective.reverse_kl import IMPLEMENTATIONS

B, T, D, V = 2, 5, 6, 24
REAL, K = 19, 4


def example() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    student, teacher = rng.normal(size=(2, B, T, D)).astype(np.float32)
    weights = rng.uniform(0.5, 1.0, (B, T)).astype(np.float32)
    weights[1, 3:] = 0.0
    return student, teacher, rng.normal(size=(D, V)).astype(np.float32), weights


def test_what_is_cached() -> None:
    _, teacher, head, _ = example()
    cached = top_k_teacher(jnp.asarray(teacher), jnp.asarray(head), K, chunk=3, vocabulary=REAL)
    log_p = log_softmax(teacher.astype(np.float64) @ head[:, :REAL].astype(np.float64))
    order = np.argsort(-log_p, axis=-1)
    np.testing.assert_array_equal(cached.ids, order[..., :K])
    np.testing.assert_allclose(cached.log_probs, np.take_along_axis(log_p, order, -1)[..., :K], rtol=1e-5, atol=1e-5)
    tail = np.log(np.exp(np.take_along_axis(log_p, order, -1)[..., K:]).sum(-1))
    assert cached.log_tail is not None
    np.testing.assert_allclose(cached.log_tail, tail, rtol=1e-5, atol=1e-5)
    # a teacher so sure that 1 - sum p is 0 in float32 still has a tail
    sure = top_k_teacher(jnp.asarray(teacher * 100), jnp.asarray(head), K, chunk=3, vocabulary=REAL)
    assert sure.log_tail is not None
    assert float(sure.log_tail.min()) < -50.0
    assert np.isfinite(np.asarray(sure.log_tail)).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["reverse", "forward", "jsd", "mixture"])
def test_coarse_grained(name: str, implementation: str) -> None:
    """Equal to the dense divergence of the merged distributions; unused entries and padding count for nothing."""
    student, teacher, head, weights = example()
    cached = top_k_teacher(jnp.asarray(teacher), jnp.asarray(head), K, chunk=3, vocabulary=REAL)
    unused = ((0, 0), (0, 0), (1, 1))
    cached = TopK(
        ids=jnp.pad(cached.ids, unused, constant_values=-1),
        log_probs=jnp.pad(cached.log_probs, unused, constant_values=jnp.nan),
        log_tail=cached.log_tail,
    )
    student[weights == 0] = np.nan
    kind = Divergence(name=name, reverse_share=0.3 if name == "mixture" else None)  # type: ignore[arg-type]

    def loss(student: jax.Array) -> jax.Array:
        numerator, total = divergence_sums(
            student,
            cached,
            jnp.asarray(head),
            jnp.asarray(weights),
            kind=kind,
            chunk=3,
            vocabulary=REAL,
            implementation=implementation,
        )
        return numerator / total

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(student))
    ids = np.asarray(cached.ids)[..., 1:-1]
    values, gradients = dense(np.nan_to_num(student), teacher, head, name=name, share=0.3, vocabulary=REAL, ids=ids)
    w = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    close(value, float((w * values).sum()))
    close_gradient(gradient, w[..., None] * gradients)


def test_between_nothing_and_everything() -> None:
    """All tokens give the full divergence, with an empty tail; fewer give less (data processing)."""
    student, teacher, head, weights = (jnp.asarray(x) for x in example())
    everything = top_k_teacher(teacher, head, V)
    assert everything.log_tail is not None
    assert float(everything.log_tail.max()) < -1e29
    one = TopK(
        ids=everything.ids[..., :1],
        log_probs=everything.log_probs[..., :1],
        log_tail=jnp.log(-jnp.expm1(everything.log_probs[..., 0])),
    )
    full, lossless, least = (
        float(reverse_kl(student, cached, head, weights, chunk=3)) for cached in (teacher, everything, one)
    )
    close(lossless, full)
    assert 0.0 < least < 0.9 * full


@pytest.mark.parametrize(
    ("name", "wanted", "pull"),
    [
        # nothing to gain by a small step: the student has all its mass in one bucket
        ("reverse", [np.log(4), np.log(2)], np.zeros((2, 4))),
        # q - p, the tail's share going where the student's tail is: to its likeliest token, to two equal ones
        (
            "forward",
            [0.75 * 2e4 - 1.5 * np.log(2), 0.5 * 2e4 - 1.75 * np.log(2)],
            [[-0.5, -0.25, 0.75, 0.0], [0.5, -0.25, -0.125, -0.125]],
        ),
    ],
)
def test_far_students(name: str, wanted: list[float], pull: list[list[float]]) -> None:
    """Logits of 1e4: a student with all its mass in the tail, and one with less there than float32 can hold."""
    head = jnp.asarray(1000.0 * np.eye(4), jnp.float32)
    student = jnp.asarray([[[-10, -10, 10, 0], [10, -10, -10, -10]]], jnp.float32)
    cached = TopK(
        ids=jnp.asarray([[[0, 1]] * 2]),
        log_probs=jnp.log(jnp.asarray([[[0.5, 0.25]] * 2])),
        log_tail=jnp.log(jnp.full((1, 2), 0.25)),
    )

    @jax.jit
    @jax.value_and_grad
    def compute(student: jax.Array, weights: jax.Array) -> jax.Array:
        kind = Divergence(name=name)  # type: ignore[arg-type]
        return divergence_sums(student, cached, head, weights, kind=kind)[0]

    for position in range(2):
        value, gradient = compute(student, jnp.zeros((1, 2)).at[0, position].set(1.0))
        close(value, wanted[position])
        np.testing.assert_allclose(gradient[0, position] / 1000.0, pull[position], atol=1e-6)


def test_no_tail_is_refused() -> None:
    student, teacher, head, weights = (jnp.asarray(x) for x in example())
    cut = dataclasses.replace(top_k_teacher(teacher, head, K), log_tail=None)
    with pytest.raises(
        ValueError, match=r"log_tail is None.* 4 likeliest tokens is refused.* 1/e of the teacher's mass"
    ):
        reverse_kl(student, cut, head, weights)
    with pytest.raises(ValueError, match="k = 25; keep 1 to 24"):
        top_k_teacher(teacher, head, 25)
