"""Generation: one prefill, then one compiled step per token, for prompts of unequal length."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor.cache import Cache, room

if TYPE_CHECKING:
    from remory_jax.actor.model import Actor

__all__ = ["generate", "stream"]

Prompt = Int[Array, "batch length"] | Int[np.ndarray, "batch length"] | Sequence[Sequence[int]] | Sequence[int]


def generate(
    actor: Actor,
    ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float | int = 0.0,
    top_p: float | int = 1.0,
    stop_ids: Sequence[int] | None = None,
    seed: int = 0,
    cache: Cache | None = None,
    pad_id: int = 0,
) -> Int[np.ndarray, "batch total"] | list[list[int]] | list[int]:
    """Continue prompts, prompt included in what comes back, as transformers does.

    Args:
      actor: the model.
      ids: one prompt (a list of ids), several of any lengths (a list of lists), or an array [B, S].
      max_new_tokens: at most this many for each row.
      temperature: 0 takes the likeliest token; else logits are divided by it and sampled.
      top_p: sample from the likeliest tokens whose probability first reaches this; 1 keeps all.
      stop_ids: ids that end a row, and are part of it; by default those of the model's config.
      seed: of the samples; each row and step has a key of its own.
      cache: what came before the prompts, with one row each; it is not changed.
      pad_id: fills rows that ended early where an array comes back.

    Returns:
      in the form of ``ids``: a list, lists without padding, or an array [B, S + new].

    Raises:
      ValueError: an option out of range, or an empty prompt.
    """
    prompts = _prompts(ids)
    new: list[list[int]] = [[] for _ in prompts]
    steps = stream(
        actor,
        ids,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        stop_ids=stop_ids,
        seed=seed,
        cache=cache,
    )
    for step in steps:
        for row, token in zip(new, step.tolist(), strict=True):
            if token >= 0:
                row.append(token)
    whole = [[*prompt, *row] for prompt, row in zip(prompts, new, strict=True)]
    if not isinstance(ids, Sequence):
        longest = max(map(len, whole))
        return np.asarray([row + [pad_id] * (longest - len(row)) for row in whole], np.int32)
    return whole if _is_batch(ids) else whole[0]


def stream(
    actor: Actor,
    ids: Prompt,
    *,
    max_new_tokens: int,
    temperature: float | int = 0.0,
    top_p: float | int = 1.0,
    stop_ids: Sequence[int] | None = None,
    seed: int = 0,
    cache: Cache | None = None,
) -> Iterator[Int[np.ndarray, " batch"]]:
    """Yield the next id of every row, -1 for rows that have ended, until all have. Arguments as for `generate`.

    Options are checked at once, before the first token is asked for.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens = {max_new_tokens}; ask for at least one")
    if temperature < 0 or not np.isfinite(temperature):
        raise ValueError(f"temperature = {temperature}; use 0 for the likeliest token, or a positive number")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p = {top_p}; it is a probability above 0, and 1 keeps every token")
    prompts = _prompts(ids)
    stops = tuple(actor.config.stop_ids if stop_ids is None else stop_ids)
    sampling = Sampling(
        temperature=jnp.float32(temperature),
        top_p=jnp.float32(top_p),
        key=jax.random.key(seed),
        greedy=temperature == 0,
        nucleus=top_p < 1,
        stop_ids=stops,
    )
    return _stream(actor, prompts, max_new_tokens, sampling, cache)


@pytree(static=("greedy", "nucleus", "stop_ids"))
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; what is static decides which program is compiled."""

    temperature: Float[Array, ""]
    top_p: Float[Array, ""]
    key: Array
    greedy: bool
    nucleus: bool
    stop_ids: tuple[int, ...]


def _stream(
    actor: Actor, prompts: list[list[int]], count: int, sampling: Sampling, cache: Cache | None
) -> Iterator[Int[np.ndarray, " batch"]]:
    lengths = np.asarray([len(prompt) for prompt in prompts])
    width = _bucket(int(lengths.max()))
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    segments = (np.arange(width)[None, :] < lengths[:, None]).astype(np.int32)
    before = 0 if cache is None else int(cache.used)
    if cache is not None:  # rows go on in the segment they are in
        segments = segments * np.maximum(np.asarray(cache.places.segment_id), 1)[:, None]
    out = actor(tokens=tokens, segment_ids=segments, cache=cache, capacity=room(before + width + count))
    assert out.hidden is not None and out.cache is not None
    last = jnp.take_along_axis(out.hidden, jnp.asarray(lengths - 1)[:, None, None], axis=1)  # [B, 1, D]
    done = jnp.zeros(len(prompts), jnp.bool_)
    token, done_after = _choose(actor, last, done, jnp.int32(0), sampling)
    yield _shown(token, done)
    held = out.cache
    segment = jnp.array(held.places.segment_id)  # a copy: the cache itself is donated to each step
    for step in range(1, count):
        done = done_after
        if bool(jnp.all(done)):
            return
        token, done_after, held = _step(actor, held, token, done, segment, jnp.int32(step), sampling)
        yield _shown(token, done)


def _shown(token: Int[Array, " batch"], done: Bool[Array, " batch"]) -> Int[np.ndarray, " batch"]:
    return np.where(np.asarray(done), -1, np.asarray(token)).astype(np.int32)


@jax.jit
def _choose(
    actor: Actor,
    hidden: Float[Array, "batch 1 d"],
    done: Bool[Array, " batch"],
    step: Int[Array, ""],
    sampling: Sampling,
) -> tuple[Int[Array, " batch"], Bool[Array, " batch"]]:
    """The next id of each row, and which rows have ended with it."""
    logits = actor.logits(hidden)[:, 0]  # [B, V]
    if sampling.greedy:
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    else:
        logits = logits / sampling.temperature
        if sampling.nucleus:
            logits = _keep_nucleus(logits, sampling.top_p)
        rows = jnp.arange(len(logits))
        row_keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(sampling.key, row), step))(rows)
        token = jax.vmap(jax.random.categorical)(row_keys, logits).astype(jnp.int32)
    ends = jnp.zeros_like(done)
    for stop in sampling.stop_ids:
        ends |= token == stop
    return token, done | ends


def _keep_nucleus(
    logits: Float[Array, "batch vocabulary"], top_p: Float[Array, ""]
) -> Float[Array, "batch vocabulary"]:
    """Mask all but the likeliest tokens whose probabilities first add up to ``top_p``; the likeliest always stays."""
    ordered = jnp.sort(logits, axis=-1, descending=True)
    probability = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probability, axis=-1) - probability
    kept = jnp.sum(before < top_p, axis=-1, keepdims=True)
    least = jnp.take_along_axis(ordered, jnp.maximum(kept - 1, 0), axis=-1)
    return jnp.where(logits < least, -jnp.inf, logits)


@functools.partial(jax.jit, donate_argnames=("cache",))
def _step(
    actor: Actor,
    cache: Cache,
    token: Int[Array, " batch"],
    done: Bool[Array, " batch"],
    segment: Int[Array, " batch"],
    step: Int[Array, ""],
    sampling: Sampling,
) -> tuple[Int[Array, " batch"], Bool[Array, " batch"], Cache]:
    """Feed one token per row and choose the next; rows that have ended feed padding."""
    out: Any = actor(tokens=token[:, None], segment_ids=jnp.where(done, 0, segment)[:, None], cache=cache)
    token, done = _choose(actor, out.hidden, done, step, sampling)
    return token, done, out.cache


def _is_batch(ids: Prompt) -> bool:
    return not isinstance(ids, Sequence) or (len(ids) > 0 and not isinstance(ids[0], int | np.integer))


def _prompts(ids: Prompt) -> list[list[int]]:
    if len(ids) == 0:
        raise ValueError("no prompt given")
    rows = np.asarray(ids).tolist() if not isinstance(ids, Sequence) else ids
    batch: Any = rows if _is_batch(ids) else [rows]
    prompts = [[int(token) for token in row] for row in batch]
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {number} is empty; a model needs at least one token to continue from")
    return prompts


def _bucket(length: int) -> int:
    """Prompt widths to compile for: multiples of 32, then steps of an eighth: few programs serve all prompts."""
    return next(
        size
        for step in itertools.accumulate(itertools.repeat(2), lambda step, _: step * 2, initial=32)
        for size in range(step, step * 8 + 1, step)
        if size >= length
    )
