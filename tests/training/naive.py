"""The training loss without any sharing, the oracle of the step: four full passes and a dense divergence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from remory_jax.actor import Actor
from remory_jax.data.batch import Batch
from remory_jax.data.template import Template
from remory_jax.memory import MemoryNetwork


def naive_sums(
    network: MemoryNetwork, actor: Actor, batch: Batch, template: Template, *, full_slots: bool = True
) -> tuple[Array, Array]:
    """(sum w KL(student || teacher), sum w) of a batch with one boundary, whose rows may be padded."""
    config = network.config
    (history,), (history_length,) = batch.histories, batch.history_lengths
    (summary,), (summary_length,) = batch.summaries, batch.summary_lengths
    size, width = batch.response.shape

    def part(ids: Any, length: Any) -> tuple[Array, Array]:
        ids = jnp.asarray(ids)
        return actor.embed(ids), jnp.arange(ids.shape[1])[None, :] < jnp.asarray(length)[:, None]

    def constant(ids: tuple[int, ...]) -> tuple[Array, Array]:
        return part(jnp.broadcast_to(jnp.asarray(ids, jnp.int32), (size, len(ids))), jnp.full(size, len(ids)))

    def run(*parts: tuple[Array, Array], **options: Any) -> Any:
        embeddings = jnp.concatenate([each[0] for each in parts], axis=1)
        mask = jnp.concatenate([each[1] for each in parts], axis=1)
        return actor(embeddings=embeddings, segment_ids=mask.astype(jnp.int32), use_cache=False, **options), mask

    def logits(out: Any, mask: Array) -> Array:
        """Logits that predict the last ``width`` columns: of each column's last real one before it."""
        at = jnp.arange(mask.shape[1])[None, :]
        before = jax.lax.cummax(jnp.where(mask, at, 0), axis=1)[:, -width - 1 : -1]
        return actor.logits(jnp.take_along_axis(out.hidden, before[..., None], axis=1))

    prefix = part(batch.prefix, batch.prefix_length)
    past = part(history, history_length)
    said = part(summary, summary_length)
    response = part(batch.response, batch.response_length)
    s_open, s_close, m_open, m_close = map(
        constant, (template.s_open, template.s_close, template.m_open, template.m_close)
    )

    teacher = logits(*run(prefix, past, response))
    taps = run(prefix, past, taps=config.target_layer_ids)[0].taps[:, :, batch.prefix.shape[1] :]
    features = jnp.concatenate(list(taps), axis=-1)
    shown: list[tuple[Array, Array]] = []
    states = mask = None
    if summary.shape[1]:
        shown = [s_open, said, s_close]
        start = batch.prefix.shape[1] + len(template.s_open)
        states, mask = run(prefix, *shown)[0].hidden[:, start : start + summary.shape[1]], said[1]
    length = jnp.asarray(history_length)
    out = network(
        features,
        past[1],
        summary=states,
        summary_mask=mask,
        source_lengths=length,
        slot_lengths=jnp.where(length > 0, config.block_tokens, 0) if full_slots else length,
        slots=-(-(config.block_tokens if full_slots else history.shape[1]) // config.compression_ratio),
    )
    student = logits(*run(prefix, *shown, m_open, (out.rows.astype(actor.dtype), out.mask), m_close, response))
    q, p = jax.nn.log_softmax(student), jax.nn.log_softmax(teacher)
    divergence = jnp.sum(jnp.exp(q) * (q - p), axis=-1)
    weights = jnp.asarray(batch.weights)
    return jnp.sum(jnp.where(weights > 0, weights * divergence, 0)), jnp.sum(weights)
