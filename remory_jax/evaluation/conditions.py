"""The same held-out response under every condition, side by side with its controls.

Source: REMORY (arXiv 2610.11287), section 5; the controls are ours.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor import Actor
from remory_jax.memory.encoding import Rows
from remory_jax.objective import per_position
from remory_jax.training.contexts import extend, marker, pieces, tokens
from remory_jax.training.experiment import HeldOut
from remory_jax.training.probe import donors, exchange
from remory_jax.training.reading import Reading, read, respond
from remory_jax.training.step import Setting

__all__ = ["CONDITIONS", "Judged", "Measured", "evaluate"]

CONDITIONS = (
    "full context",
    "summary",
    "summary++",
    "summary + memory",
    "memory only",
    "shuffled memory",
    "zero memory",
    "other first memory",
)
"""In the order of the table. ``summary++`` is there only where the data have longer summaries; the last, in which the
memory of the last boundary but one is another example's, only with several boundaries."""


Values = Float[Array, "batch response"] | Float[np.ndarray, "batch response"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Judged:
    """One condition against the full-context teacher, per response position [B, Y], in nats.

    Attributes:
      reverse: KL(student || teacher).
      forward: KL(teacher || student).
      agree: 1 where both have the same likeliest token.
      positions: of the input, before the response [B].
    """

    reverse: Values
    forward: Values
    agree: Values
    positions: Int[Array, " batch"] | Int[np.ndarray, " batch"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All held-out examples: per condition arrays as in `Judged`, the weights, and the record each example is of."""

    conditions: Mapping[str, Judged]
    weights: Float[np.ndarray, "examples response"]
    records: Int[np.ndarray, " examples"]


def evaluate(setting: Setting, params: Any, buffers: Any, actor: Actor, held_out: Iterable[HeldOut]) -> Measured:
    """Judge every condition on held-out batches.

    "Shuffled" memory is another example's, of another record where the batch has one
    (`remory_jax.training.probe.donors`); "zero" memory has the same number of rows, all 0.

    Raises:
      ValueError: no held-out batch, a batch of one example (it has nothing to shuffle with), or an example with
        features that are not finite.
    """
    found: list[dict[str, Judged]] = []
    weights, records = [], []
    for item in held_out:
        real = np.asarray(item.batch.index) >= 0
        if real.sum() < 2:
            raise ValueError("a held-out batch needs two examples or more: shuffled memory is another example's")
        judged, sound = _judge(setting, params, buffers, actor, item)
        bad = np.asarray(item.batch.index)[real & ~np.asarray(sound)]
        if bad.size:
            raise ValueError(f"held-out examples {bad.tolist()} have features that are not finite; leave them out")
        found.append(jax.tree.map(lambda x, real=real: np.asarray(x)[real], judged))
        weights.append(np.asarray(item.batch.weights)[real])
        records.append(np.asarray(item.batch.index if item.records is None else item.records)[real])
    if not found:
        raise ValueError("there is no held-out batch; nothing can be said about a memory without one")
    width = max(each.shape[1] for each in weights)
    padded = [jax.tree.map(functools.partial(_pad, width=width), each) for each in found]
    return Measured(
        conditions=jax.tree.map(lambda *parts: np.concatenate(parts), *padded),
        weights=np.concatenate([_pad(each, width=width) for each in weights]),
        records=np.concatenate(records),
    )


def _pad(values: np.ndarray, *, width: int) -> np.ndarray:
    return values if values.ndim == 1 else np.pad(values, ((0, 0), (0, width - values.shape[1])))


@functools.partial(jax.jit, static_argnames="setting")
def _judge(setting: Setting, params: Any, buffers: Any, actor: Actor, item: HeldOut) -> tuple[dict[str, Judged], Array]:
    batch, longer, template = item.batch, item.longer, setting.template
    network = setting.network(params, buffers)
    reading = read(network, actor, batch, template, setting.encoding)
    shuffle = functools.partial(exchange, source=donors(item))
    memory, response = reading.memory, reading.response
    prefix = batch.prefix_length
    around = len(template.m_open) + len(template.m_close)
    has_summary = batch.summaries[-1].shape[1] > 0
    marks = len(template.s_open) + len(template.s_close)
    summary = prefix + (batch.summary_lengths[-1] + marks if has_summary else 0)
    remembered = jnp.sum(memory.mask, axis=1, dtype=jnp.int32) + around

    def judge(student: Array, positions: Any) -> Judged:
        found = per_position(
            student,
            reading.teacher,
            actor.head,
            mask=jnp.asarray(batch.weights) > 0,
            chunk=setting.objective.chunk,
            mesh=actor.mesh,
        )
        agree = found.agree.astype(jnp.float32)
        return Judged(reverse=found.reverse, forward=found.forward, agree=agree, positions=positions)

    def after(context: Any, rows: Rows | None) -> Array:
        return respond(actor, context, rows, response, template)

    full = prefix + functools.reduce(jnp.add, [jnp.asarray(length) for length in batch.history_lengths])
    found = {"full context": judge(reading.teacher, full)}
    # Where there is no summary this is the prefix alone: what the student knows without memory.
    found["summary"] = judge(after(reading.summarised, None), summary)
    if longer is not None:
        found["summary++"] = judge(after(_longer(actor, setting, reading, *longer), None), prefix + longer[1] + marks)
    found["summary + memory"] = judge(after(reading.summarised, memory), summary + remembered)
    if has_summary:
        found["memory only"] = judge(after(reading.prefix, memory), prefix + remembered)
    shuffled = shuffle(memory)
    found["shuffled memory"] = judge(
        after(reading.summarised, shuffled), summary + jnp.sum(shuffled.mask, axis=1, dtype=jnp.int32) + around
    )
    zero = replace(memory, rows=jnp.zeros_like(memory.rows))
    found["zero memory"] = judge(after(reading.summarised, zero), summary + remembered)
    if batch.boundaries > 1:
        other = read(network, actor, batch, template, setting.encoding, earlier=shuffle).memory
        found["other first memory"] = judge(after(reading.summarised, other), summary + remembered)
    return found, reading.sound


def _longer(actor: Actor, setting: Setting, reading: Reading, ids: Array, lengths: Array) -> Any:
    size = len(lengths)
    opening, closing = (marker(actor, each, size) for each in (setting.template.s_open, setting.template.s_close))
    context, _, _ = extend(actor, reading.prefix, pieces(opening, tokens(actor, ids, lengths), closing))
    return context
