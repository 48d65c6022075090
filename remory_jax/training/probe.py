"""Is the memory used? The divergence with an example's own memory beside that with another's, on a held-out batch."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from remory_jax.actor import Actor
from remory_jax.memory.encoding import Rows
from remory_jax.objective import per_position
from remory_jax.training.experiment import HeldOut
from remory_jax.training.reading import read, respond
from remory_jax.training.step import Setting, TrainState

__all__ = ["donors", "exchange", "gates", "probe"]


@functools.partial(jax.jit, static_argnames="setting")
def probe(setting: Setting, state: TrainState, actor: Actor, item: HeldOut) -> dict[str, tuple[Array, Array]]:
    """Sums over a batch, as (sum, count): reverse and forward KL in nats, agreement, and what another's memory costs.

    ``own_minus_shuffled`` is reverse KL with the example's own memory less that with another's (`exchange`): below 0
    where the memory is used. ``gate`` is the mean size of tanh(gate) over the layers that read the summary.
    """
    batch = item.batch
    network = setting.network(state.params, state.buffers)
    reading = read(network, actor, batch, setting.template, setting.encoding)
    weights = jnp.where(reading.sound[:, None], batch.weights, 0)

    def judge(memory: Rows) -> Any:
        student = respond(actor, reading.summarised, memory, reading.response, setting.template)
        return per_position(
            student, reading.teacher, actor.head, mask=weights > 0, chunk=setting.objective.chunk, mesh=actor.mesh
        )

    own, other = judge(reading.memory), judge(exchange(reading.memory, donors(item)))
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


def donors(item: HeldOut) -> Int[Array, " batch"]:
    """Whose memory each example gets when memories are exchanged.

    That of the next example of another record, as a neighbour from the same text would say much of the same; of the
    next example where the batch is of one record. Filler rows keep theirs.
    """
    index = jnp.asarray(item.batch.index)
    records = index if item.records is None else jnp.asarray(item.records)
    at = jnp.arange(len(index), dtype=jnp.int32)
    ahead = (at[None, :] - at[:, None]) % len(index)  # of each column's example, seen from each row's
    real = (index >= 0)[None, :] & (ahead > 0)
    other = real & (records[None, :] != records[:, None])
    rank = jnp.where(other, ahead, jnp.where(real, ahead + len(index), 2 * len(index)))
    return jnp.where(index >= 0, jnp.argmin(rank, axis=1).astype(jnp.int32), at)


def exchange(memory: Rows, source: Int[Array, " batch"]) -> Rows:
    """Each example gets the memory of its donor."""
    return jax.tree.map(lambda value: value[source], memory)
