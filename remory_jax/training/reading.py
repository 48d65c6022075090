"""Everything a step needs of a batch: teacher, memory and the student's context, each shared part run once.

Source: REMORY (arXiv 2610.11287), sections 3 and 4; the sharing is ours. The actor processes, for an example with one
boundary, ``|P| + |H| + |y| + |S| + |M| + |y|`` positions and the markers', where four passes of their own would take
``4|P| + 2|H| + 2|S| + |M| + 2|y|``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor import Actor
from remory_jax.actor.sharding import Sharding
from remory_jax.data.batch import Batch, Ids, Lengths
from remory_jax.data.template import Template
from remory_jax.memory import MemoryNetwork
from remory_jax.memory.encoding import Rows, Source, Summary, encode
from remory_jax.training.contexts import (
    Context,
    Piece,
    adjacent,
    begin,
    extend,
    judged,
    marker,
    pieces,
    repeated,
    rows,
    sequence,
    tokens,
)
from remory_jax.training.experiment import EncodingConfig

__all__ = ["Reading", "read", "respond"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a batch comes to before the student answers.

    Attributes:
      prefix: the persistent instructions.
      summarised: prefix and the last summary, from which the student goes on; the prefix itself without a summary.
      response: what teacher and student are given.
      teacher: hidden states that predict the response from the full history [B, Y, D].
      memory: rows of the last boundary.
      sound: examples all of whose features, summary states and teacher states are finite [B].
    """

    prefix: Context
    summarised: Context
    response: Piece
    teacher: Float[Array, "batch response d"]
    memory: Rows
    sound: Bool[Array, " batch"]


def read(
    network: MemoryNetwork,
    actor: Actor,
    batch: Batch,
    template: Template,
    encoding: EncodingConfig,
    *,
    earlier: Callable[[Rows], Rows] | None = None,
) -> Reading:
    """Run teacher, features, summaries and memory network.

    With one boundary teacher and features are one pass: the response comes after the history, which cannot see it. With
    several, each later boundary's source is what a restored context holds: the summary and memory before it, with their
    markers, and the new history (the released re-encode engine's rule).

    A gradient reaches the network through the last boundary's rows, and through the rows before them where
    ``encoding.through_memory`` asks for it. An example that is not sound is encoded as if its features were 0; whoever
    uses the reading gives it no weight.

    Args:
      earlier: changes the memory of the last boundary but one before it is encoded again, for a control.
    """
    size = len(batch.index)
    layers = network.config.target_layer_ids
    prefix, _, _ = extend(actor, begin(actor, size), tokens(actor, batch.prefix, batch.prefix_length))
    response = tokens(actor, batch.response, batch.response_length)
    histories = list(zip(batch.histories, batch.history_lengths, strict=True))
    single = len(histories) == 1
    past, _ = sequence(actor, *histories)
    whole = pieces(past, response)
    _, hidden, taps = extend(actor, prefix, whole, taps=layers if single else (), use_cache=False)
    assert hidden is not None
    teacher = judged(prefix, hidden, whole.mask, response.mask.shape[1])
    sound = _finite(teacher, jnp.asarray(batch.weights) > 0)

    def features_of(piece: Piece) -> Array:
        return _features(actor, extend(actor, prefix, piece, taps=layers, stop=max(layers), use_cache=False)[2])

    memory: Rows | None = None
    shown: Piece | None = None
    remembered: tuple[Piece, Array] | None = None
    summarised = prefix
    for boundary, history in enumerate(histories):
        last = boundary == len(histories) - 1
        source, depth = (past, None) if single else _source(shown, remembered, tokens(actor, *history))
        features = _features(actor, taps[:, :, : source.mask.shape[1]]) if single else features_of(source)
        if not (encoding.through_memory and last):
            features = jax.lax.stop_gradient(features)
        ids, lengths = batch.summaries[boundary], batch.summary_lengths[boundary]
        summarised, summary, shown = _summarise(actor, prefix, template, ids, lengths)
        sound &= _finite(features, source.mask)
        if summary is not None:
            sound &= _finite(summary.states, summary.mask)
            summary = replace(summary, states=_only(sound, summary.states))
        memory = encode(
            network,
            Source(features=_only(sound, features), mask=source.mask, depth=depth),
            summary,
            features_of=lambda soft, mask: features_of(rows(actor, soft, mask)),
            short_blocks=encoding.short_blocks,
            at_once=encoding.at_once,
        )
        if earlier is not None and boundary == len(histories) - 2:
            memory = earlier(memory)
        remembered = _remembered(actor, memory, template)
    assert memory is not None  # a batch has a boundary
    return Reading(
        prefix=prefix,
        summarised=summarised,
        response=response,
        teacher=teacher,
        memory=replace(memory, rows=_only(sound, memory.rows)),
        sound=sound,
    )


def respond(
    actor: Actor, context: Context, memory: Rows | None, response: Piece, template: Template, *, remat: bool = False
) -> Float[Array, "batch response d"]:
    """Hidden states that predict the response after a context and, with markers around them, memory rows.

    Args:
      memory: None for a context that has no memory, and no markers of it.
    """
    piece = response if memory is None else pieces(_remembered(actor, memory, template)[0], response)
    _, hidden, _ = extend(actor, context, piece, use_cache=False, remat=remat)
    assert hidden is not None
    return judged(context, hidden, piece.mask, response.mask.shape[1])


def _features(actor: Actor, taps: Float[Array, "taps batch rows ..."]) -> Float[Array, "batch rows taps d"]:
    """Tapped layers in list order; of parallel residual streams their mean (ours)."""
    if taps.ndim == 5:
        taps = jnp.mean(taps, axis=3)
    taps = Sharding(mesh=actor.mesh, rules=actor.rules, batch=taps.shape[1]).constrain_taps(taps)
    return jnp.moveaxis(taps, 0, 2)


def _summarise(
    actor: Actor, prefix: Context, template: Template, ids: Ids, lengths: Lengths
) -> tuple[Context, Summary | None, Piece | None]:
    """The context after a summary, the states that condition the network, and the piece it is."""
    if ids.shape[1] == 0:
        return prefix, None, None
    size = len(lengths)
    piece, part = sequence(actor, repeated(template.s_open, size), (ids, lengths), repeated(template.s_close, size))
    context, hidden, _ = extend(actor, prefix, piece)
    assert hidden is not None
    return context, Summary(states=hidden, mask=piece.mask & (part == 1)), piece


def _remembered(actor: Actor, memory: Rows, template: Template) -> tuple[Piece, Int[Array, "batch rows"]]:
    """Memory rows between their markers, and of each row the depth of its node, 0 for markers."""
    size = len(memory.mask)
    opening, closing = (marker(actor, ids, size) for ids in (template.m_open, template.m_close))
    piece = pieces(opening, rows(actor, memory.rows, memory.mask), closing)
    depth = jnp.pad(memory.depth, ((0, 0), (len(template.m_open), len(template.m_close))))
    mask, (embeddings, depth) = adjacent(piece.mask, (piece.embeddings, depth))
    return Piece(embeddings=embeddings, mask=mask), depth


def _source(shown: Piece | None, remembered: tuple[Piece, Array] | None, history: Piece) -> tuple[Piece, Array | None]:
    """What a context holds at a boundary: the summary and memory before it, and the new history; and rows' depths."""
    if remembered is None:
        return history, None
    memory, depth = remembered
    whole = pieces(*([] if shown is None else [shown]), memory, history)
    after = history.mask.shape[1]
    depth = jnp.pad(depth, ((0, 0), (whole.mask.shape[1] - after - depth.shape[1], after)))
    mask, (embeddings, depth) = adjacent(whole.mask, (whole.embeddings, depth))
    return Piece(embeddings=embeddings, mask=mask), depth


def _finite(values: Float[Array, "batch rows *d"], mask: Bool[Array, "batch rows"]) -> Bool[Array, " batch"]:
    finite = jnp.all(jnp.isfinite(values), axis=tuple(range(2, values.ndim)))
    return jnp.all(finite | ~mask, axis=1)


def _only(sound: Bool[Array, " batch"], values: Float[Array, "batch rows *d"]) -> Float[Array, "batch rows *d"]:
    return jnp.where(sound.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)
