"""Is the memory used? The divergence with an example's own memory beside that with another's, on a held-out batch."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from remory_jax.actor import Actor
from remory_jax.data.batch import Batch
from remory_jax.memory.encoding import Rows
from remory_jax.objective import per_position
from remory_jax.training.reading import read, respond
from remory_jax.training.step import Setting, TrainState

__all__ = ["exchange", "gates", "probe"]


@functools.partial(jax.jit, static_argnames="setting")
def probe(setting: Setting, state: TrainState, actor: Actor, batch: Batch) -> dict[str, tuple[Array, Array]]:
    """Sums over a batch, as (sum, count): reverse and forward KL in nats, agreement, and what another's memory costs.

    ``own_minus_shuffled`` is reverse KL with the example's own memory less that with the next example's: below 0 where
    the memory is used. ``gate`` is the mean size of tanh(gate) over the layers that read the summary.
    """
    network = setting.network(state.params, state.buffers)
    reading = read(network, actor, batch, setting.template, setting.encoding)
    weights = jnp.where(reading.sound[:, None], batch.weights, 0)

    def judge(memory: Rows) -> Any:
        student = respond(actor, reading.summarised, memory, reading.response, setting.template)
        return per_position(
            student, reading.teacher, actor.head, mask=weights > 0, chunk=setting.objective.chunk, mesh=actor.mesh
        )

    own, other = judge(reading.memory), judge(exchange(reading.memory, jnp.asarray(batch.index) >= 0))
    total = jnp.sum(weights)
    found = {
        "reverse_kl": own.reverse,
        "forward_kl": own.forward,
        "agreement": own.agree.astype(jnp.float32),
        "own_minus_shuffled": own.reverse - other.reverse,
    }
    sums = {name: (jnp.sum(weights * values), total) for name, values in found.items()}
    gate = gates(state.params)
    return sums if gate is None else sums | {"gate": (gate, jnp.ones(()))}


def gates(params: Any) -> Array | None:
    """Mean of \\|tanh(gate)\\| over the layers that read the summary; None where there are none."""
    found = [
        value
        for path, value in jax.tree_util.tree_leaves_with_path(params)
        if any(getattr(part, "key", getattr(part, "name", None)) == "gate" for part in path) and value.ndim <= 2
    ]
    return jnp.mean(jnp.abs(jnp.tanh(jnp.concatenate([value.reshape(-1) for value in found])))) if found else None


def exchange(memory: Rows, real: Array) -> Rows:
    """Each real example's memory goes to the one before it; filler rows, which end a batch, keep theirs."""
    count = jnp.sum(real, dtype=jnp.int32)
    at = jnp.arange(len(real), dtype=jnp.int32)
    source = jnp.where(real, (at + 1) % jnp.maximum(count, 1), at)
    return jax.tree.map(lambda value: value[source], memory)
