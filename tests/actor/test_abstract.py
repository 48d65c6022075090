"""What can be seen without computing: dtypes of a bfloat16 model, and that depth costs no compilation."""

from __future__ import annotations

import json
from importlib.resources import files

import jax
import jax.numpy as jnp
import pytest
from actor_checks import FAMILIES, GOLDEN

from remory_jax.actor import Actor, ActorConfig, Output, abstract_actor


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_everywhere_but_in_states(family: str) -> None:
    """Prefill, one step and the gradient trace under strict promotion; recurrent states stay float32."""
    actor = abstract_actor(ActorConfig.from_hf(GOLDEN / family), dtype="bfloat16")
    ids = jax.ShapeDtypeStruct((2, 20), jnp.int32)

    def run(actor: Actor, ids: jax.Array) -> tuple[Output, Output, jax.Array]:
        prefill = actor(tokens=ids, taps=(0,), capacity=32)
        step = actor(tokens=ids[:, :1], cache=prefill.cache)
        x = actor.embed(ids)
        gradient = jax.grad(lambda x: jnp.sum(actor.logits(actor(embeddings=x, remat=True).hidden)))(x)
        return prefill, step, gradient

    prefill, step, gradient = jax.eval_shape(run, actor, ids)
    for out in (prefill, step):
        assert out.hidden.dtype == out.taps.dtype == jnp.bfloat16
    assert gradient.dtype == jnp.bfloat16
    for path, buffer in jax.tree_util.tree_leaves_with_path(step.cache.memory):
        assert buffer.dtype == (jnp.float32 if path[-1].key == "state" else jnp.bfloat16), path[-1].key
    same = jax.tree.map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, prefill.cache, step.cache)
    assert all(jax.tree.leaves(same)), "a step changes the form of its cache, so it would compile anew each time"


def lowered_size(layers: int, name: str) -> int:
    preset = json.loads((files("costmodel_jax") / "architectures" / f"{name}.json").read_text())["config"]
    config = {key: value for key, value in preset.items() if key != "layer_types"} | {"num_hidden_layers": layers}
    actor = abstract_actor(ActorConfig.from_hf(config))
    ids = jax.ShapeDtypeStruct((1, 64), jnp.int32)
    return len(jax.jit(lambda actor, ids: actor(tokens=ids).hidden).lower(actor, ids).as_text())


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Qwen3.6-27B"])
def test_a_deep_model_is_no_larger_a_program(name: str) -> None:
    shallow, deep = lowered_size(8, name), lowered_size(64, name)
    assert deep < 1.02 * shallow
