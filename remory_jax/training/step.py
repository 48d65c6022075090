"""One training step: the divergence of the student with memory from the teacher, and an update of the network alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor import Actor
from remory_jax.data.batch import Batch
from remory_jax.data.template import Template
from remory_jax.memory import MemoryNetwork
from remory_jax.objective import Divergence, divergence_sums
from remory_jax.training.experiment import EncodingConfig, Experiment, ObjectiveConfig
from remory_jax.training.reading import read, respond

__all__ = ["Setting", "Step", "TrainState", "gradients", "make_step"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What decides the program of a step, beside shapes."""

    graph: nnx.GraphDef[MemoryNetwork]
    template: Template
    encoding: EncodingConfig
    objective: ObjectiveConfig

    @classmethod
    def of(cls, experiment: Experiment, graph: nnx.GraphDef[MemoryNetwork]) -> Setting:
        """An experiment's, with the structure of its network."""
        return cls(
            graph=graph,
            template=experiment.template,
            encoding=experiment.encoding,
            objective=experiment.objective,
        )

    def network(self, params: Any, buffers: Any) -> MemoryNetwork:
        """The memory network with these values."""
        return nnx.merge(self.graph, params, buffers)


@pytree()
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that a run changes.

    Attributes:
      step: updates so far, over all stages.
      params: of the memory network.
      buffers: its constants.
      opt_state: of the optimizer.
    """

    step: Int[Array, ""]
    params: Any
    buffers: Any
    opt_state: Any


def gradients(
    setting: Setting,
    params: Any,
    buffers: Any,
    actor: Actor,
    batch: Batch,
    share: Float[Array, ""],
    *,
    microbatches: int = 1,
) -> tuple[Any, dict[str, Any]]:
    """Gradients of ``sum w KL / sum w`` over the global batch with respect to the network, and metrics as sums.

    Args:
      share: of reverse against forward KL, where the objective turns from one to the other.
      microbatches: equal parts of the batch that are run one after another; sums stay global.

    Returns:
      gradients like ``params``, and metrics: ``loss`` as (sum w KL, sum w), ``unsound`` as one flag per example.
    """

    def sums(params: Any, part: Batch) -> tuple[Array, tuple[Array, Array]]:
        reading = read(setting.network(params, buffers), actor, part, setting.template, setting.encoding)
        student = respond(
            actor,
            reading.summarised,
            reading.memory,
            reading.response,
            setting.template,
            remat=setting.encoding.remat,
        )
        weights = jnp.where(reading.sound[:, None], part.weights, 0)
        numerator, denominator = divergence_sums(
            student,
            reading.teacher,
            actor.head,
            weights,
            kind=kind,
            chunk=setting.objective.chunk,
            mesh=actor.mesh,
        )
        return numerator, (denominator, ~reading.sound)

    name = setting.objective.divergence
    if name == "forward_to_reverse":
        kind = Divergence(name="mixture", reverse_share=share)
    else:
        kind = Divergence(name=name)
    value_and_grad = jax.value_and_grad(sums, has_aux=True)
    if microbatches == 1:
        (numerator, (denominator, unsound)), total = value_and_grad(params, batch)
    else:
        # Every microbatch takes rows of every device, so that none has to move.
        rows = len(batch.index) // microbatches
        parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(rows, microbatches, *x.shape[1:]), 1, 0), batch)

        def add(carry: Any, part: Batch) -> tuple[Any, Array]:
            (numerator, (denominator, unsound)), more = value_and_grad(params, part)
            return jax.tree.map(jnp.add, carry, (numerator, denominator, more)), unsound

        zeros = (jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (numerator, denominator, total), unsound = jax.lax.scan(add, zeros, parts)
    mean = jax.tree.map(lambda gradient: gradient / jnp.maximum(denominator, 1e-30), total)
    return mean, {"loss": (numerator, denominator), "unsound": unsound.T.reshape(-1)}


Step = Callable[[TrainState, Actor, Batch], tuple[TrainState, dict[str, Any]]]


def make_step(
    setting: Setting,
    optimizer: optax.GradientTransformation,
    share_at: Callable[[Int[Array, ""]], Float[Array, ""]],
    *,
    microbatches: int = 1,
) -> Step:
    """The compiled step ``(state, actor, batch) -> (state, metrics)``; the state is donated.

    Args:
      optimizer: of `make_optimizer`, which makes no update from gradients that are not finite; ``skipped`` counts them.
      share_at: the share of reverse KL at a step.
    """

    def step(state: TrainState, actor: Actor, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        gradient, metrics = gradients(
            setting, state.params, state.buffers, actor, batch, share_at(state.step), microbatches=microbatches
        )
        norm = optax.tree.norm(gradient)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        finite = jnp.isfinite(norm)
        one = jnp.ones(())
        metrics |= {
            "gradient_norm": (jnp.where(finite, norm, 0), finite.astype(jnp.float32)),
            "skipped": (1 - finite.astype(jnp.float32), one),
            "examples": (jnp.sum(batch.index >= 0).astype(jnp.float32), one),
            "unsound_examples": (jnp.sum(metrics["unsound"]).astype(jnp.float32), one),
        }
        return replace(state, step=state.step + 1, params=params, opt_state=opt_state), metrics

    return jax.jit(step, donate_argnums=0)
