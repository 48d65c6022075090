"""Vocabulary over mesh axis ``tensor``, batch over ``data`` and ``fsdp``: the same numbers, and no gathered logits."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_divergence import close, close_gradient, dense
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from remory_jax import make_mesh
from remory_jax.actor.sharding import Rules
from remory_jax.objective import Divergence, divergence_sums, per_position, reverse_kl, top_k_teacher

B, T, D, V = 4, 5, 6, 32
REAL = 21  # of 4 devices, the third has some padded columns and the fourth nothing else


def mesh_of(data: int, fsdp: int, tensor: int) -> Mesh:
    return make_mesh(data=data, fsdp=fsdp, tensor=tensor, devices=jax.devices()[: data * fsdp * tensor])


def place(mesh: Mesh, batch: int = B) -> tuple[list[np.ndarray], list[jax.Array]]:
    """Student, teacher, head and weights, on one host and as they lie in training."""
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, batch, T, D)).astype(np.float32)
    head = rng.normal(size=(D, V)).astype(np.float32)
    lengths = np.array([5, 0, 3, 1])[:batch]  # so that devices have different numbers of chunks, one of them none
    weights = (np.arange(T)[None] < lengths[:, None]) * rng.uniform(0.5, 1.0, (batch, T))
    student[weights == 0] = np.nan
    arrays = [student, teacher, head, weights.astype(np.float32)]
    rows = PartitionSpec(("data", "fsdp")) if batch == B else PartitionSpec()
    specs = (rows, rows, PartitionSpec("fsdp", "tensor"), rows)
    return arrays, [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)]


@pytest.mark.parametrize(
    ("shape", "batch", "name"),
    [
        ((2, 2, 1), 4, "reverse"),
        ((1, 1, 2), 4, "reverse"),
        ((2, 1, 4), 4, "reverse"),
        ((2, 2, 2), 4, "mixture"),
        ((1, 2, 4), 4, "jsd"),
        ((2, 1, 2), 3, "reverse"),  # a batch that the mesh does not divide
    ],
)
def test_equal_to_dense(shape: tuple[int, int, int], batch: int, name: str) -> None:
    mesh = mesh_of(*shape)
    (student, teacher, head, weights), placed = place(mesh, batch)

    @jax.jit
    def compute(student: jax.Array, *rest: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(student: jax.Array) -> jax.Array:
            kind = Divergence(name=name, reverse_share=0.25 if name == "mixture" else None)  # type: ignore[arg-type]
            numerator, total = divergence_sums(student, *rest, kind=kind, chunk=2, vocabulary=REAL, mesh=mesh)
            return numerator / total

        return jax.value_and_grad(loss)(student)

    value, gradient = compute(*placed)
    values, gradients = dense(np.nan_to_num(student), teacher, head, name=name, share=0.25, vocabulary=REAL)
    w = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    close(value, float((w * values).sum()))
    close_gradient(gradient, w[..., None] * gradients)
    assert gradient.sharding.is_equivalent_to(placed[0].sharding, 3)


def test_eager_and_under_set_mesh() -> None:
    mesh = mesh_of(1, 2, 2)
    (student, teacher, head, weights), placed = place(mesh)
    values, _ = dense(np.nan_to_num(student), teacher, head)
    wanted = float((weights * values).sum() / weights.sum(dtype=np.float64))
    close(reverse_kl(*placed, mesh=mesh), wanted)
    with jax.set_mesh(mesh):
        close(reverse_kl(*placed, mesh=mesh), wanted)
    whole = [placed[0], placed[1], jax.device_put(head, NamedSharding(mesh, PartitionSpec())), placed[3]]
    close(reverse_kl(*whole, mesh=mesh, rules=Rules(vocab=None)), wanted)


def test_evaluation_and_cached_teacher() -> None:
    """Agreement, choice of the top k and the coarse loss, over columns of four devices."""
    mesh = mesh_of(1, 2, 4)
    (student, teacher, head, weights), placed = place(mesh)
    mask, student = weights > 0, np.nan_to_num(student)
    got = per_position(*placed[:3], mask=placed[3] > 0, chunk=2, vocabulary=REAL, mesh=mesh)
    for name in ("reverse", "forward"):
        values, _ = dense(student, teacher, head, name=name, vocabulary=REAL)
        np.testing.assert_allclose(getattr(got, name), np.where(mask, values, 0.0), rtol=1e-5, atol=1e-5)
    logits = (teacher @ head)[..., :REAL]
    agree = (student @ head)[..., :REAL].argmax(-1) == logits.argmax(-1)
    np.testing.assert_array_equal(got.agree, agree & mask)

    # 9 of the 8 columns of a device
    cached = top_k_teacher(placed[1], placed[2], 9, chunk=2, vocabulary=REAL, mesh=mesh)
    np.testing.assert_array_equal(cached.ids, np.argsort(-logits, axis=-1)[..., :9])
    value, gradient = jax.jit(
        jax.value_and_grad(lambda x: reverse_kl(x, cached, *placed[2:], chunk=2, vocabulary=REAL, mesh=mesh))
    )(placed[0])
    values, gradients = dense(student, teacher, head, vocabulary=REAL, ids=np.asarray(cached.ids))
    w = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    close(value, float((w * values).sum()))
    close_gradient(gradient, w[..., None] * gradients)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 2, 2)])
def test_what_is_communicated(shape: tuple[int, int, int]) -> None:
    """Nothing gathers the vocabulary: a head in parts over ``fsdp`` is put together along its width, and no more."""
    mesh = mesh_of(*shape)
    _, placed = place(mesh)
    text = jax.jit(jax.value_and_grad(lambda *x: reverse_kl(*x, chunk=2, mesh=mesh))).lower(*placed).compile().as_text()
    gathered = re.findall(r"= (\S+) all-gather(?:-start)?\(", text)
    columns = V // shape[2]
    assert [re.sub(r"\{.*", "", kind) for kind in gathered] == [f"f32[{D},{columns}]"] * (shape[1] > 1)
    assert "all-to-all" not in text
    assert "collective-permute" not in text
    reduced = re.findall(r"= (.+?) all-reduce(?:-start)?\(", text)
    assert reduced  # maxima, sums and gradients, of a chunk of 2 positions
    assert not [kind for kind in reduced if re.search(rf"\b({columns}|{V})\b", kind)]
    assert not re.search(rf"\[(\d+,)*{V}\]", text)


def test_columns_that_the_mesh_does_not_divide() -> None:
    mesh = mesh_of(1, 1, 4)
    x = jnp.zeros((B, T, D))
    with pytest.raises(ValueError, match="30 columns, not divided by mesh axis tensor = 4; pad it"):
        reverse_kl(x, x, jnp.zeros((D, 30)), jnp.ones((B, T)), mesh=mesh)
