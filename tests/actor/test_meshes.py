"""The same numbers on one device and on eight, in several mesh shapes; meshes that do not fit are refused early."""

from __future__ import annotations

import functools
import json
from importlib.resources import files

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_checks import GOLDEN
from jax.sharding import NamedSharding, PartitionSpec

from remory_jax import make_mesh
from remory_jax.actor import Actor, ActorConfig, Rules, abstract_actor, init_actor, load_actor
from remory_jax.actor.attention import api
from remory_jax.actor.attention.splash import splash

# Every shape for the plainest family; for each other kind of layer the one that splits everything.
CASES = (
    *(("llama", shape) for shape in ((1, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2))),
    *((family, (2, 2, 2)) for family in ("qwen3_5_moe", "gpt_oss", "glm4_moe_lite", "glm5_next")),
)


def loss(actor: Actor, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    out = actor(embeddings=x, taps=(0,), use_cache=False)
    return jnp.mean(jnp.sin(actor.logits(out.hidden))), (out.hidden, out.taps)


compute = jax.jit(jax.value_and_grad(loss, argnums=1, has_aux=True))


@pytest.mark.parametrize(
    ("family", "shape"), CASES, ids=lambda case: case if isinstance(case, str) else "x".join(map(str, case))
)
def test_equal_on_every_mesh(family: str, shape: tuple[int, int, int]) -> None:
    alone = load_actor(GOLDEN / family)
    ids = np.random.default_rng(0).integers(1, 96, (8, 24)).astype(np.int32)
    x = alone.embed(ids)
    (wanted_value, (wanted_hidden, wanted_taps)), gradient = compute(alone, x)
    data, fsdp, tensor = shape
    devices = jax.devices()[: data * fsdp * tensor]
    mesh = make_mesh(data=data, fsdp=fsdp, tensor=tensor, devices=devices)
    actor = load_actor(GOLDEN / family, mesh=mesh)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    (value, (hidden, taps)), ours = compute(actor, jax.device_put(x, rows))
    np.testing.assert_allclose(hidden, wanted_hidden, atol=1e-3)
    np.testing.assert_allclose(taps, wanted_taps, atol=1e-3)
    np.testing.assert_allclose(value, wanted_value, atol=1e-5)
    scale = float(jnp.max(jnp.abs(gradient)))
    np.testing.assert_allclose(ours / scale, gradient / scale, atol=1e-3)
    assert hidden.sharding.is_equivalent_to(rows, 3)
    if family == "llama" and shape == (2, 2, 2):
        ids = np.random.default_rng(1).integers(1, 96, (8, 9)).astype(np.int32)
        np.testing.assert_array_equal(
            actor.generate(ids, max_new_tokens=3, stop_ids=()), alone.generate(ids, max_new_tokens=3, stop_ids=())
        )
        one = ids[:1]  # a batch no mesh axis divides is replicated
        np.testing.assert_allclose(actor(tokens=one).hidden, alone(tokens=one).hidden, atol=1e-3)


def test_meshes_that_do_not_fit() -> None:
    """Reported with every dimension, before anything is read or compiled."""
    mesh = make_mesh(data=1, fsdp=1, tensor=8)
    with pytest.raises(ValueError, match=r"heads = 4 .*self_attn\.q_proj.* mesh axis tensor = 8"):
        load_actor(GOLDEN / "llama", mesh=mesh)
    with pytest.raises(ValueError, match="kv_heads"):
        abstract_actor(load_actor(GOLDEN / "llama").config, mesh=make_mesh(data=2, fsdp=1, tensor=4))


def test_rules_are_checked() -> None:
    with pytest.raises(ValueError, match=r"Rules\.heads = 'model'"):
        Rules(heads="model")
    actor = load_actor(GOLDEN / "llama")
    with pytest.raises(ValueError, match="used twice"):
        abstract_actor(actor.config, mesh=make_mesh(data=2, fsdp=2, tensor=2), rules=Rules(embed="tensor"))


def test_few_key_value_heads_can_be_replicated() -> None:
    mesh = make_mesh(data=2, fsdp=1, tensor=4)
    actor = load_actor(GOLDEN / "llama", mesh=mesh, rules=Rules(kv_heads=None))
    alone = load_actor(GOLDEN / "llama")
    ids = np.random.default_rng(2).integers(1, 96, (2, 10)).astype(np.int32)
    np.testing.assert_allclose(actor(tokens=ids).hidden, alone(tokens=ids).hidden, atol=1e-3)


def test_kernels_for_one_device_are_mapped_over_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splash attention, interpreted here, finds the actor's mesh by itself; the caller sets none."""
    interpreted = {**api.IMPLEMENTATIONS, "interpreted": functools.partial(splash, interpret=True)}
    monkeypatch.setattr(api, "IMPLEMENTATIONS", interpreted)
    preset = json.loads((files("costmodel_jax") / "architectures" / "SmolLM2-135M.json").read_text())["config"]
    sizes = {"hidden_size": 256, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2}
    config = ActorConfig.from_hf(preset | sizes | {"num_attention_heads": 4, "num_key_value_heads": 2})
    alone, spread = (init_actor(config, mesh=mesh) for mesh in (None, make_mesh(data=2, fsdp=2, tensor=2)))
    x = jnp.asarray(np.random.default_rng(3).normal(size=(4, 128, 256)), jnp.float32)

    def run(actor: Actor, x: jax.Array, attention: str) -> jax.Array:
        return actor(embeddings=x, attention=attention, use_cache=False).hidden

    assert "shard_map" in str(jax.make_jaxpr(run, static_argnums=2)(spread, x, "interpreted"))
    assert "shard_map" not in str(jax.make_jaxpr(run, static_argnums=2)(spread, x, "blocked"))
    np.testing.assert_allclose(run(spread, x, "interpreted"), run(alone, x, "blocked"), atol=1e-4)
