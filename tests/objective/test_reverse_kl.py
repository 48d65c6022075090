"""Reverse KL and its relatives against the dense float64 oracle, on one device."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_divergence import close, close_gradient, dense

from remory_jax.objective import Divergence, TopK, divergence_sums, per_position, reverse_kl
from remory_jax.objective.reverse_kl import IMPLEMENTATIONS

B, T, D, V = 3, 7, 6, 24
REAL = 19  # tokens, where the head is padded

compute = jax.jit(jax.value_and_grad(reverse_kl), static_argnames=("chunk", "vocabulary", "products", "implementation"))


def example(seed: int = 0, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Student, teacher, head and weights with padding on the right."""
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(size=(2, B, T, D)).astype(np.float32) * np.float32(scale)
    head = rng.normal(size=(D, V)).astype(np.float32)
    weights = rng.uniform(0.5, 1.0, (B, T)).astype(np.float32) * (np.arange(T)[None] < np.array([7, 4, 5])[:, None])
    return student, teacher, head, weights.astype(np.float32)


def expected(weights: np.ndarray, values: np.ndarray, gradients: np.ndarray) -> tuple[float, np.ndarray]:
    w = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    return float((w * values).sum()), w[..., None] * gradients


# 21 positions, 16 of them weighed: chunks of one, that divide neither, that are larger than all
@pytest.mark.parametrize(
    ("implementation", "chunk", "vocabulary"),
    [
        ("reference", 1, None),
        ("reference", 1, REAL),
        ("chunked", 1, REAL),
        ("chunked", 5, None),
        ("chunked", 8, REAL),
        ("chunked", 16, None),
        ("chunked", 256, REAL),
    ],
)
def test_equal_to_dense(implementation: str, chunk: int, vocabulary: int | None) -> None:
    student, teacher, head, weights = example()
    value, gradient = compute(
        student, teacher, head, weights, chunk=chunk, vocabulary=vocabulary, implementation=implementation
    )
    wanted, wanted_gradient = expected(weights, *dense(student, teacher, head, vocabulary=vocabulary))
    close(value, wanted)
    close_gradient(gradient, wanted_gradient)
    assert gradient.dtype == jnp.float32
    if chunk == 5:  # the forward pass alone, which makes no gradient
        close(reverse_kl(*map(jnp.asarray, (student, teacher, head, weights)), chunk=chunk), wanted)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["forward", "jsd", "mixture"])
def test_other_divergences(name: str, implementation: str) -> None:
    student, teacher, head, weights = example(1)
    arrays = [jnp.asarray(x) for x in (student, teacher, head, weights)]

    @jax.jit
    def sums(student: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
        kind = Divergence(name=name, reverse_share=share if name == "mixture" else None)  # type: ignore[arg-type]
        return divergence_sums(student, *arrays[1:], kind=kind, chunk=6, vocabulary=REAL, implementation=implementation)

    share = 0.3
    (value, total), back = jax.vjp(lambda x: sums(x, jnp.float32(share)), arrays[0])
    values, gradients = dense(student, teacher, head, name=name, share=share, vocabulary=REAL)
    close(total, float(weights.sum(dtype=np.float64)))
    close(value, float((weights * values).sum()))
    close_gradient(back((jnp.float32(2.0), jnp.float32(9.0)))[0], 2.0 * weights[..., None] * gradients)
    if name == "mixture":  # the share is a value, and the same program goes from one end to the other
        for end, pure in ((0.0, "forward"), (1.0, "reverse")):
            values, _ = dense(student, teacher, head, name=pure, vocabulary=REAL)
            close(sums(arrays[0], jnp.float32(end))[0], float((weights * values).sum()))


def test_bounds() -> None:
    """What a divergence is: nothing between equals, JSD at most log 2, KL without a bound."""
    student, teacher, head, weights = (jnp.asarray(x) for x in example(2, scale=30.0))
    assert float(reverse_kl(student, student, head, weights)) == 0.0
    jsd, total = divergence_sums(student, teacher, head, weights, kind=Divergence(name="jsd"))
    assert 0.6 * math.log(2) < float(jsd / total) <= math.log(2) * (1 + 1e-6)
    assert float(reverse_kl(student, teacher, head, weights)) > 10.0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["reverse", "forward", "jsd"])
def test_extreme_logits(name: str, implementation: str) -> None:
    """Logits of 1e4 either way, exact in float32; a student torn between two tokens, a teacher sure of one of them."""
    head = np.full((3, 8), -1000.0, np.float32)
    head[:, :3] = 1000.0 * np.eye(3)
    student = np.array([[[10, 10, 0], [10, -10, -10], [-10, -10, 10], [0, 0, 0]]], np.float32)
    teacher = np.array([[[10, -10, -10], [10, -10, -10], [10, 10, 10], [10, 0, 0]]], np.float32)
    weights = np.ones((1, 4), np.float32)

    def loss(student: jax.Array) -> jax.Array:
        kind = Divergence(name=name)  # type: ignore[arg-type]
        numerator, denominator = divergence_sums(
            student, *map(jnp.asarray, (teacher, head, weights)), kind=kind, chunk=3, implementation=implementation
        )
        return numerator / denominator

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(student))
    wanted, wanted_gradient = expected(weights, *dense(student, teacher, head, name=name))
    close(value, wanted)
    close_gradient(gradient, wanted_gradient)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_weight_zero_means_nothing(implementation: str) -> None:
    """Whatever lies in padding: value and gradient are the same bits, and 0 there."""
    student, teacher, head, weights = example(3)
    run = functools.partial(compute, chunk=5, implementation=implementation)
    value, gradient = run(student, teacher, head, weights)
    padding = weights == 0
    for garbage in (np.nan, np.inf, 1e30):
        dirty = [np.where(padding[..., None], np.float32(garbage), x) for x in (student, teacher)]
        same, same_gradient = run(*dirty, head, weights)
        assert float(same) == float(value)
        np.testing.assert_array_equal(same_gradient, gradient)
    np.testing.assert_array_equal(np.asarray(gradient)[padding], 0.0)
    # a NaN that does count is not swept under the rug
    assert np.isnan(run(np.full_like(student, np.nan), teacher, head, weights)[0])
    # nothing to average over: 0 where the weights cannot be looked at, an error where they can
    nothing, no_gradient = run(student, teacher, head, np.zeros_like(weights))
    assert float(nothing) == 0.0
    np.testing.assert_array_equal(no_gradient, 0.0)
    with pytest.raises(ValueError, match=r"weights \(3, 7\) sum to 0"):
        reverse_kl(*map(jnp.asarray, (student, teacher, head, np.zeros_like(weights))), chunk=5)


def test_only_the_student_learns() -> None:
    arrays = [jnp.asarray(x) for x in example(4)]
    gradients = jax.jit(jax.grad(lambda *x: reverse_kl(*x, chunk=5), argnums=(0, 1, 2, 3)))(*arrays)
    assert float(jnp.abs(gradients[0]).max()) > 0
    for gradient, array in zip(gradients[1:], arrays[1:], strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(array.shape))


def test_products_in_bfloat16() -> None:
    """Products of rounded inputs, summed in float32: the loss is exactly theirs; the gradient's product is rounded."""
    student, teacher, head, weights = example(5)
    arrays = [jnp.asarray(x) for x in (student, teacher, head, weights)]
    rounded = [np.asarray(x.astype(jnp.bfloat16).astype(jnp.float32)) for x in arrays[:3]]
    wanted, wanted_gradient = expected(weights, *dense(rounded[0], rounded[1], rounded[2]))
    value, gradient = compute(*arrays, chunk=5, products="bfloat16")
    close(value, wanted)
    close_gradient(gradient, wanted_gradient, 1e-2)
    half = [x.astype(jnp.bfloat16) for x in arrays[:3]]
    value, gradient = compute(*half, arrays[3], chunk=5)
    close(value, wanted)
    close_gradient(gradient.astype(jnp.float32), wanted_gradient, 1e-2)
    assert gradient.dtype == jnp.bfloat16


def test_per_position() -> None:
    student, teacher, head, weights = example(6)
    teacher[:, ::2] = student[:, ::2] + 0.01  # some agree
    mask = weights > 0
    dirty = np.where(mask[..., None], student, np.nan)
    got = per_position(*map(jnp.asarray, (dirty, teacher, head)), mask=jnp.asarray(mask), chunk=5, vocabulary=REAL)
    for name in ("reverse", "forward"):
        values, _ = dense(student, teacher, head, name=name, vocabulary=REAL)
        np.testing.assert_allclose(getattr(got, name), np.where(mask, values, 0.0), rtol=1e-5, atol=1e-5)
    best = [(x @ head)[..., :REAL].argmax(-1) for x in (student, teacher)]
    agree = best[0] == best[1]
    assert 0 < agree[mask].sum() < mask.sum()
    np.testing.assert_array_equal(got.agree, agree & mask)


def test_arguments_are_checked() -> None:
    student, teacher, head, weights = (jnp.asarray(x) for x in example())
    for arguments, options, message in (
        ((student, teacher, head, weights), {"chunk": 0}, "chunk = 0"),
        ((student, teacher, head, weights), {"vocabulary": V + 1}, "vocabulary = 25 and the head has 24"),
        ((student, teacher, head, weights), {"implementation": "dense"}, "implementation = 'dense'; use one of"),
        ((student[:, :0], teacher[:, :0], head, weights[:, :0]), {}, "empty"),
    ):
        with pytest.raises(ValueError, match=message):
            reverse_kl(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_shape_checks")
def test_shapes_are_checked() -> None:
    """As a user meets them, without the checks of annotations."""
    student, teacher, head, weights = (jnp.asarray(x) for x in example())
    for arguments, message in (
        ((student, teacher[:, 1:], head, weights), "teacher_hidden .* must be alike"),
        ((student, teacher, head.T, weights), r"\[B, T, D\] and \[D, columns\]"),
        ((student, teacher, head, weights[:, 1:]), "a weight per position"),
    ):
        with pytest.raises(ValueError, match=message):
            reverse_kl(*arguments)
    with pytest.raises(ValueError, match="products = 'int8'"):
        reverse_kl(student, teacher, head, weights, products="int8")  # type: ignore[arg-type]
    ids = jnp.zeros((B, T, 2), jnp.int32)
    bad = TopK(ids=ids, log_probs=jnp.zeros((B, T, 3)), log_tail=jnp.zeros((B, T)))
    with pytest.raises(ValueError, match=r"TopK\.log_probs"):
        reverse_kl(student, bad, head, weights)
