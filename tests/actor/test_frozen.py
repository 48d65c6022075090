"""Frozen means frozen: no weight gets a gradient, and none is computed on the way to the embeddings."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_checks import GOLDEN

from remory_jax.actor import Actor, load_actor

BATCH, LENGTH = 3, 37  # a product over all 111 tokens can only be a weight's gradient


@pytest.fixture(scope="module", params=["llama", "qwen3_5", "gpt_oss", "glm4_moe_lite", "glm5_next"])
def actor(request: pytest.FixtureRequest) -> Actor:
    return load_actor(GOLDEN / request.param)


def loss(actor: Actor, embeddings: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sin(actor.logits(actor(embeddings=embeddings, use_cache=False).hidden)))


def embeddings_of(actor: Actor) -> jax.Array:
    return actor.embed(np.random.default_rng(0).integers(1, 96, (BATCH, LENGTH)).astype(np.int32))


def contracted_sizes(text: str) -> list[int]:
    """Sizes that the matrix products of a compiled program sum over."""
    shapes = {
        name: [int(size) for size in dims.split(",") if size]
        for name, dims in re.findall(r"%?([\w.\-]+) = \w+\[([\d,]*)\]", text)
    }
    sizes = []
    for operand, dims in re.findall(
        r" dot\((?:\w+\[[\d,]*\]\S* )?%?([\w.\-]+),.*?lhs_contracting_dims=\{([\d,]*)\}", text
    ):
        sizes.append(int(np.prod([shapes[operand][int(dim)] for dim in dims.split(",") if dim])))
    return sizes


def test_no_leaf_gets_a_gradient(actor: Actor) -> None:
    gradient = jax.jit(jax.grad(loss))(actor, embeddings_of(actor))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert not np.any(np.asarray(leaf)), f"{jax.tree_util.keystr(path)} has a gradient"


def test_the_backward_pass_holds_no_weight_gradient(actor: Actor) -> None:
    compiled = jax.jit(jax.value_and_grad(loss, argnums=1)).lower(actor, embeddings_of(actor)).compile()
    sizes = contracted_sizes(compiled.as_text())
    assert len(sizes) > 10, "the compiled text no longer shows its products"
    assert BATCH * LENGTH not in sizes


def test_a_weight_gradient_would_be_found() -> None:
    x = jnp.ones((BATCH, LENGTH, 8))
    compiled = jax.jit(jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))).lower(jnp.ones((8, 4))).compile()
    assert BATCH * LENGTH in contracted_sizes(compiled.as_text())
