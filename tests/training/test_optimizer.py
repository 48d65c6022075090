"""The optimizer against AdamW written out in NumPy, its decay mask on the real network, and steps it must not take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from remory_jax.memory import MemoryConfig, MemoryNetwork
from remory_jax.mesh import make_mesh
from remory_jax.training.experiment import OptimizerConfig
from remory_jax.training.optimizer import (
    decay_mask,
    guard_state,
    learning_rate,
    make_optimizer,
    opt_state_shardings,
    skip_nonfinite,
)

STEPS = 40


def a_config(**changes) -> OptimizerConfig:
    return OptimizerConfig(**{"peak_lr": 1e-2, "clip": 1.0, "warmup": 0.1, "final": 0.1, **changes})


def some_params() -> dict:
    rng = np.random.default_rng(0)
    return {
        "mlp": {"gate_proj": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)},
        "norm": {"weight": jnp.asarray(rng.normal(size=4), jnp.float32)},
    }


def some_grads(step: int) -> dict:
    rng = np.random.default_rng(100 + step)
    scale = 5.0 if step % 3 == 0 else 0.1  # some are clipped
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * scale, jnp.float32), some_params())


def run(tx, params, grads):
    """Parameters after each step."""
    state, seen = tx.init(params), []
    step = jax.jit(tx.update)
    for grad in grads:
        updates, state = step(grad, state, params)
        params = optax.apply_updates(params, updates)
        seen.append(params)
    return seen, state


def test_it_is_adamw_with_clipping_and_a_schedule() -> None:
    """Every step equals AdamW in float64: clip, moments, bias correction, decoupled decay of what decays, schedule."""
    config = a_config()
    grads = [some_grads(step) for step in range(STEPS)]
    seen, _ = run(make_optimizer(config, STEPS), some_params(), grads)
    params = {
        name: np.asarray(leaf, np.float64)
        for name, leaf in (("w", some_params()["mlp"]["gate_proj"]), ("n", some_params()["norm"]["weight"]))
    }
    m = {name: np.zeros_like(leaf) for name, leaf in params.items()}
    v = {name: np.zeros_like(leaf) for name, leaf in params.items()}
    warmup = 4  # 10% of 40
    for step, grad in enumerate(grads):
        g = {"w": np.asarray(grad["mlp"]["gate_proj"], np.float64), "n": np.asarray(grad["norm"]["weight"], np.float64)}
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        if step < warmup:
            lr = config.peak_lr * step / warmup
        else:
            phase = (step - warmup) / (STEPS - warmup)
            lr = config.peak_lr * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * phase)))
        for name in params:
            x = g[name] / max(1.0, norm)
            m[name] = 0.9 * m[name] + 0.1 * x
            v[name] = 0.95 * v[name] + 0.05 * x**2
            direction = (m[name] / (1 - 0.9 ** (step + 1))) / (np.sqrt(v[name] / (1 - 0.95 ** (step + 1))) + 1e-8)
            decay = 0.1 * params[name] if name == "w" else 0.0
            params[name] = params[name] - lr * (direction + decay)
        np.testing.assert_allclose(seen[step]["mlp"]["gate_proj"], params["w"], rtol=0, atol=3e-6)
        np.testing.assert_allclose(seen[step]["norm"]["weight"], params["n"], rtol=0, atol=3e-6)


def test_the_schedule_ends() -> None:
    rate = learning_rate(a_config(), STEPS, scale=0.2)
    peak = 0.2 * 1e-2
    np.testing.assert_allclose([rate(0), rate(2), rate(4)], [0, peak / 2, peak], rtol=1e-6)
    np.testing.assert_allclose([rate(STEPS), rate(10 * STEPS)], [peak / 10] * 2, rtol=1e-5)
    assert float(learning_rate(a_config(warmup=0.0), STEPS)(0)) == pytest.approx(1e-2)
    assert float(learning_rate(a_config(), 1)(0)) == 0.0  # at least one step of warm-up
    learning_rate(a_config(), 0)(0)  # a run of no steps
    with pytest.raises(ValueError, match=r"optimizer.warmup = 1.5"):
        learning_rate(a_config(warmup=1.5), STEPS)
    with pytest.raises(ValueError, match="steps = -1"):
        learning_rate(a_config(), -1)
    with pytest.raises(ValueError, match=r"optimizer.clip = 0"):
        make_optimizer(a_config(clip=0.0), STEPS)


def a_network(**changes):
    config = MemoryConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        target_layer_ids=(0, 1),
        **changes,
    )
    return nnx.split(MemoryNetwork(config, rngs=nnx.Rngs(0)), nnx.Param, ...)[1]


def test_what_decays_in_the_memory_network() -> None:
    params = a_network(dynamic_conv=True, query_init="pooled")
    masked = jax.tree.leaves_with_path(decay_mask(params))
    decays = {jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value"): on for path, on in masked}
    assert {name for name, on in decays.items() if not on} == {
        "depth",
        "hidden_norm",
        "last.attention.k_norm",
        "last.attention.q_norm",
        "last.attention_conv.base",
        "last.input_norm",
        "last.mlp_conv.base",
        "last.post_norm",
        "local.attention.k_norm",
        "local.attention.q_norm",
        "local.attention_conv.base",
        "local.input_norm",
        "local.mlp_conv.base",
        "local.post_norm",
        "local.summary.gate",
        "local.summary.k_norm",
        "local.summary.q_norm",
        "local.summary.query_norm",
        "local.summary.summary_norm",
        "norm",
        "query",
    }
    assert {"fc", "pool", "local.mlp.gate", "local.summary.q", "last.attention_conv.proj"} <= decays.keys()


def test_what_decays_by_released_names() -> None:
    names = {
        "layers.0.mlp.gate_proj.weight": True,
        "layers.0.self_attn.q_proj.weight": True,
        "fc.weight": True,
        "summary_attention.0.gate": False,
        "layers.0.self_attn.q_norm.weight": False,
        "layers.0.input_layernorm.weight": False,
        "mask_embedding": False,
        "depth_embedding.weight": False,
        "norm.weight": False,
    }
    assert decay_mask(dict.fromkeys(names, 0)) == names


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_step_that_is_not_finite_leaves_no_trace_but_its_count(bad: float) -> None:
    """Steps 3 to 5 have one bad value each: the run equals the run without them, and they are counted."""
    tx = make_optimizer(a_config(), STEPS)
    good = [some_grads(step) for step in range(8)]
    poisoned = jax.tree.map(lambda leaf: leaf, good[3])
    poisoned["norm"]["weight"] = poisoned["norm"]["weight"].at[2].set(bad)
    expected, expected_state = run(tx, some_params(), good)
    seen, state = run(tx, some_params(), [*good[:3], poisoned, poisoned, poisoned, *good[3:]])
    jax.tree.map(np.testing.assert_array_equal, seen[5], seen[2])
    jax.tree.map(np.testing.assert_array_equal, seen[-1], expected[-1])
    jax.tree.map(np.testing.assert_array_equal, state.inner, expected_state.inner)
    assert (int(guard_state(state).skipped), int(guard_state(state).consecutive)) == (3, 0)
    _, halfway = run(tx, some_params(), [good[0], poisoned, good[1], poisoned, poisoned])
    assert (int(halfway.skipped), int(halfway.consecutive)) == (3, 2)
    with pytest.raises(ValueError, match="no GuardedState"):
        guard_state(state.inner)


def test_gradients_whose_norm_overflows_are_not_taken() -> None:
    """Clipping by an infinite norm would make them 0, which looks like a step and is none."""
    params = {"w": jnp.ones(4)}
    tx = skip_nonfinite(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)))
    updates, state = tx.update({"w": jnp.full(4, 3e38)}, tx.init(params), params)
    assert int(state.skipped) == 1
    np.testing.assert_array_equal(updates["w"], 0)


def test_moments_lie_with_their_parameters() -> None:
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    params = a_network()

    def spec(leaf) -> NamedSharding:
        split = leaf.ndim > 1 and leaf.shape[-1] % 2 == 0
        return NamedSharding(mesh, PartitionSpec(*(None,) * (leaf.ndim - 1), "tensor") if split else PartitionSpec())

    shardings = jax.tree.map(spec, params)
    tx = make_optimizer(a_config(), STEPS)
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    derived = opt_state_shardings(tx, abstract, shardings)
    placed = jax.tree.map(jax.device_put, params, shardings)
    state = jax.jit(tx.init, out_shardings=derived)(placed)
    adam = next(part for part in state.inner if isinstance(part, optax.ScaleByAdamState))
    for moments in (adam.mu, adam.nu):
        jax.tree.map(lambda moment, sharding: _same(moment.sharding, sharding, moment.ndim), moments, shardings)
    assert state.skipped.sharding.is_fully_replicated
    assert adam.count.sharding.is_fully_replicated
    # Shardings stay through a donated step.
    _, after = jax.jit(tx.update)(placed, state, placed)
    adam = next(part for part in after.inner if isinstance(part, optax.ScaleByAdamState))
    mu = adam.mu["local"]["mlp"]["up"]
    mu = mu.get_value() if hasattr(mu, "get_value") else mu
    assert mu.addressable_shards[0].data.size * 2 == mu.size
    single = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    alone = opt_state_shardings(tx, abstract, jax.tree.map(lambda _: single, abstract))
    assert set(jax.tree.leaves(alone)) == {single}
    with pytest.raises(ValueError, match="no parameters to train"):
        opt_state_shardings(tx, {}, {})


def _same(found, expected, ndim: int) -> None:
    assert found.is_equivalent_to(expected, ndim)
