"""One step: equal to four passes without sharing, whatever the padding, the batch or the mesh; and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples import (
    TEMPLATE,
    alone,
    filled,
    random_batch,
    relative,
    setting_for,
    tiny_actor,
    tiny_config,
    tiny_network,
)
from flax import nnx
from naive import naive_sums

from remory_jax import make_mesh
from remory_jax.actor import Actor, Output
from remory_jax.data.batch import Batch
from remory_jax.training.experiment import EncodingConfig, Experiment, OptimizerConfig
from remory_jax.training.flops import step_cost
from remory_jax.training.network import create_network, split
from remory_jax.training.optimizer import make_optimizer, opt_state_shardings
from remory_jax.training.placement import place
from remory_jax.training.reading import read, respond
from remory_jax.training.step import Setting, TrainState, gradients, make_step

ONE = jnp.ones(())
compute = jax.jit(gradients, static_argnums=0, static_argnames="microbatches")


def naive_gradients(network: Any, actor: Actor, batch: Batch) -> tuple[float, Any]:
    """Loss and gradients, each example by itself and unpadded."""
    graph, params, buffers = split(network)

    def sums(params: Any, one: Batch) -> tuple[Any, Any]:
        return naive_sums(nnx.merge(graph, params, buffers), actor, one, TEMPLATE)

    differentiate = jax.jit(jax.value_and_grad(sums, has_aux=True))
    numerator, denominator, total = 0.0, 0.0, jax.tree.map(jnp.zeros_like, params)
    for row in range(len(batch.index)):
        (value, mass), gradient = differentiate(params, alone(batch, row))
        numerator, denominator = numerator + float(value), denominator + float(mass)
        total = jax.tree.map(jnp.add, total, gradient)
    return numerator / denominator, jax.tree.map(lambda leaf: leaf / denominator, total)


@pytest.mark.parametrize(("family", "summary"), [("conv_llama", 4), ("llama", 0)], ids=["summary", "stage one"])
def test_gradients_equal_four_full_passes_per_example(family: str, summary: int) -> None:
    actor, network, batch = tiny_actor(family), tiny_network(), random_batch(2, summaries=(summary,))
    wanted_loss, wanted = naive_gradients(network, actor, batch)
    setting, params, buffers = setting_for(network)
    found, metrics = compute(setting, params, buffers, actor, batch, ONE)
    numerator, denominator = metrics["loss"]
    assert float(numerator / denominator) == pytest.approx(wanted_loss, rel=2e-5)
    assert relative(found, wanted) < 2e-4
    assert not np.any(metrics["unsound"])


def test_padding_filler_rows_and_microbatches_change_nothing() -> None:
    actor, batch = tiny_actor(), random_batch(4)
    setting, params, buffers = setting_for(tiny_network())
    wanted, metrics = compute(setting, params, buffers, actor, batch, ONE)

    def wider(values: Any) -> Any:
        return np.pad(values, ((0, 0), (0, 2))) if values.ndim == 2 else values

    padded = filled(jax.tree.map(wider, batch), 2)
    found, again = compute(setting, params, buffers, actor, padded, ONE, microbatches=2)
    assert relative(found, wanted) < 1e-4
    np.testing.assert_allclose(again["loss"], metrics["loss"], rtol=1e-5)


def test_an_example_that_is_not_finite_is_named_and_left_out() -> None:
    actor, batch = tiny_actor(), random_batch(4)
    weights = dict(actor.weights)
    weights["embed"] = actor.weights["embed"].at[5].set(jnp.nan)  # the closing marker of memory aside, no id is 5
    setting, params, buffers = setting_for(tiny_network())
    setting = replace(setting, template=replace(TEMPLATE, m_close=(2,)))
    wanted, _ = compute(setting, params, buffers, actor, batch, ONE)
    history = batch.histories[0].copy()
    history[1, 0] = 5
    spoiled = replace(batch, histories=(history,), weights=np.where(np.arange(4)[:, None] == 1, 0, batch.weights))
    without, _ = compute(setting, params, buffers, actor, replace(spoiled, histories=batch.histories), ONE)
    bad = replace(actor, weights=weights)
    found, metrics = compute(setting, params, buffers, bad, replace(spoiled, weights=batch.weights), ONE)
    assert np.asarray(metrics["unsound"]).tolist() == [False, True, False, False]
    assert relative(found, without) < 1e-5
    assert relative(found, wanted) > 1e-3


class Counting(Actor):
    """An actor that writes down how many positions each of its passes has."""

    plain: Actor
    passes: list[int]

    def __call__(self, tokens: Any = None, embeddings: Any = None, **options: Any) -> Output:
        self.passes.append((tokens if embeddings is None else embeddings).shape[1])
        return self.plain(tokens, embeddings, **options)

    def embed(self, ids: Any) -> Any:
        return self.plain.embed(ids)


def test_actor_positions_are_those_of_a_shared_prefix() -> None:
    actor, network, batch = tiny_actor(), tiny_network(), alone(random_batch(2), 0)
    counting = Counting(config=actor.config, weights=actor.weights)
    object.__setattr__(counting, "plain", actor)
    object.__setattr__(counting, "passes", [])

    def both() -> Any:
        reading = read(network, counting, batch, TEMPLATE, EncodingConfig())
        return respond(counting, reading.summarised, reading.memory, reading.response, TEMPLATE)

    jax.eval_shape(both)
    prefix, history, summary, response, memory = 3, 14, 4, 6, 4
    markers = 2 + 3  # around the summary, around the memory
    assert counting.passes == [prefix, history + response, summary + 2, memory + 3 + response]
    assert sum(counting.passes) == prefix + history + response + summary + memory + response + markers
    experiment = Experiment(name="", actor=None, memory=network.config, stages=(), template=TEMPLATE)
    assert sum(step_cost(experiment, actor.config, batch).positions.values()) == sum(counting.passes)
    naive = (prefix + history + response) + (prefix + history) + (prefix + summary + 2)
    naive += prefix + summary + 2 + memory + 3 + response
    assert sum(counting.passes) < naive


def curve(shape: tuple[int, int, int]) -> list[float]:
    """The loss over a few steps on a mesh."""
    data, fsdp, tensor = shape
    mesh = make_mesh(data=data, fsdp=fsdp, tensor=tensor, devices=jax.devices()[: data * fsdp * tensor])
    actor = tiny_actor(mesh=mesh)
    config = tiny_config(num_hidden_layers=3)
    network = create_network(config, mesh, actor.rules, seed=3, scale=ONE)
    setting, _, _ = setting_for(network.merge())
    setting = Setting(
        graph=network.graph, template=setting.template, encoding=setting.encoding, objective=setting.objective
    )
    optimizer = make_optimizer(OptimizerConfig(peak_lr=1e-2, warmup=0.0), 4)
    moments = opt_state_shardings(optimizer, network.params, network.shardings)
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params=network.params,
        buffers=network.buffers,
        opt_state=jax.jit(optimizer.init, out_shardings=moments)(network.params),
    )
    step = make_step(setting, optimizer, lambda _: ONE)
    losses = []
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(actor.weights)]
    for _ in range(4):
        state, metrics = step(state, actor, place(random_batch(8), mesh))
        losses.append(float(metrics["loss"][0]) / float(metrics["loss"][1]))
    for kept, leaf in zip(before, jax.tree.leaves(actor.weights), strict=True):
        assert kept.tobytes() == np.asarray(leaf).tobytes()  # frozen, bit for bit
    return losses


def test_the_loss_curve_is_the_same_on_every_mesh() -> None:
    alone = curve((1, 1, 1))
    assert alone[-1] < alone[0]
    for shape in ((8, 1, 1), (2, 4, 1), (2, 2, 2)):
        np.testing.assert_allclose(curve(shape), alone, rtol=2e-4)
