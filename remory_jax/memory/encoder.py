"""`ActorEncoder`: runs the calls of a compaction with an actor and a memory network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from remory_jax.actor import Actor, Cache
from remory_jax.memory.network import MemoryNetwork
from remory_jax.memory.sequences import Call, Rows, Tokens

__all__ = ["ActorEncoder", "embed_tokens", "side_by_side"]

_SMALLEST = 64


def side_by_side(taps: Float[Array, "taps batch length ..."]) -> Float[Array, "batch length features"]:
    """Tapped layers as features, in list order; of parallel residual streams their mean (ours)."""
    if taps.ndim == 5:
        taps = jnp.mean(taps, axis=3)
    moved = jnp.moveaxis(taps, 0, 2)  # [B, S, K, D]
    return moved.reshape(*moved.shape[:2], -1)


def embed_tokens(actor: Actor, tokens: Tokens) -> Float[Array, "1 length d"]:
    """Input embeddings of a sequence, soft rows in their places."""
    return _embedded(actor, tokens, 0, len(tokens.ids), len(tokens.ids))


def _embedded(actor: Actor, tokens: Tokens, first: int, last: int, length: int) -> Float[Array, "1 length d"]:
    """Of ``ids[first:last]``, padded to ``length``."""
    ids = np.zeros((1, length), np.int32)
    ids[0, : last - first] = tokens.ids[first:last]
    embeddings = actor.embed(ids)
    if len(tokens.rows):
        rows = jnp.asarray(tokens.rows, actor.dtype)[None]
        embeddings = jax.lax.dynamic_update_slice(embeddings, rows, (0, tokens.start - first, 0))
    return embeddings


def _bucket(length: int, step: int = _SMALLEST) -> int:
    """A length that many lengths share, so that few programs are compiled; at most a quarter more."""
    step = max(step, 2 ** max(length.bit_length() - 3, 0))
    return -(-length // step) * step


class ActorEncoder:
    """The encoder of `remory_jax.memory.recursion.run` for one actor and one memory network.

    The prefix is run once and shared; blocks of a call are a batch of the memory network.

    Args:
      actor: the frozen model.
      network: trained for it.
      features_of: features out of the taps [K, 1, S, D].
      blocks_at_once: largest batch of the memory network.

    Raises:
      ValueError: taps that the actor has not, or widths that differ.

    Example:
      >>> plan = plan_compaction(contract, prefix=p, history=h, summary=s)  # doctest: +SKIP
      >>> memory = run(plan, ActorEncoder(actor, network))  # doctest: +SKIP
    """

    def __init__(
        self,
        actor: Actor,
        network: MemoryNetwork,
        *,
        features_of: Callable[[Array], Array] = side_by_side,
        blocks_at_once: int = 64,
    ) -> None:
        last = len(actor.config.layers) - 1
        taps = network.config.target_layer_ids
        if max(taps) >= last:
            raise ValueError(
                f"target_layer_ids = {taps}: features are of layers before the last, and this actor has {last + 1}"
            )
        if actor.config.hidden != network.config.hidden_size:
            raise ValueError(
                f"the memory network is {network.config.hidden_size} wide and the actor {actor.config.hidden}; "
                "use the network that was trained for it"
            )
        self.actor, self.network = actor, network
        self._features_of, self._at_once = features_of, blocks_at_once
        self._prefix: tuple[bytes, Cache] | None = None

    def __call__(self, call: Call, summary: Rows | None) -> Float[np.ndarray, "slots d"]:
        """Final-norm states of a summary call, memory rows of any other."""
        start, stop = (at - call.tokens.prefix for at in (call.start, call.stop))
        if start < 0:
            raise ValueError(f"the span starts at {call.start}, inside the prefix of {call.tokens.prefix} tokens")
        if call.operation == "summary":
            hidden, _ = self._run(call.tokens, taps=())
            return np.asarray(hidden)[0, start:stop].astype(np.float32)
        _, taps = self._run(call.tokens, taps=self.network.config.target_layer_ids)
        return self._encode(taps, start, stop, call.depths, summary)

    def _run(self, tokens: Tokens, *, taps: tuple[int, ...]) -> tuple[Array | None, Array]:
        """Final-norm states and taps after the prefix, padded."""
        length = len(tokens.ids) - tokens.prefix
        padded = _bucket(length)
        embeddings = _embedded(self.actor, tokens, tokens.prefix, len(tokens.ids), padded)
        real = (np.arange(padded) < length).astype(np.int32)[None]
        cache = self._cache(tokens.ids[: tokens.prefix])
        out = self.actor(
            embeddings=embeddings,
            segment_ids=real,
            cache=cache,
            capacity=None if cache is None else cache.capacity + padded,
            taps=taps,
            stop_after_layer=max(taps) if taps else None,
            use_cache=False,
        )
        return out.hidden, out.taps

    def _cache(self, prefix: np.ndarray) -> Cache | None:
        if not len(prefix):
            return None
        key = prefix.tobytes()
        if self._prefix is None or self._prefix[0] != key:
            padded = _bucket(len(prefix))
            ids = np.zeros((1, padded), np.int32)
            ids[0, : len(prefix)] = prefix
            real = (np.arange(padded) < len(prefix)).astype(np.int32)[None]
            cache = self.actor(tokens=ids, segment_ids=real).cache
            assert cache is not None
            self._prefix = (key, cache)
        return self._prefix[1]

    def _encode(
        self,
        taps: Float[Array, "taps 1 length ..."],
        start: int,
        stop: int,
        depths: tuple[int, ...],
        summary: Rows | None,
    ) -> Float[np.ndarray, "slots d"]:
        """Rows of the blocks of positions ``start`` to ``stop``."""
        config = self.network.config
        block, count = config.block_tokens, len(depths)
        batch = min(1 << (count - 1).bit_length(), self._at_once)
        chunks = -(-count // batch)
        states, states_mask = (None, None) if summary is None else _padded_summary(summary)
        lengths = np.clip(stop - start - block * np.arange(chunks * batch), 0, block).astype(np.int32)
        deep = np.zeros(chunks * batch, np.int32)
        deep[:count] = depths
        found = []
        for chunk, features in enumerate(_cut(taps, start, self._features_of, block, batch, chunks)):
            of = slice(chunk * batch, (chunk + 1) * batch)
            out = self.network(
                features,
                np.arange(block)[None, :] < lengths[of, None],
                states,
                states_mask,
                deep[of],
                lengths[of],
                np.where(lengths[of] > 0, block, 0).astype(np.int32),
                slots=config.slots_per_block,
            )
            found.append(np.asarray(out.rows).astype(np.float32)[lengths[of] > 0])
        return np.concatenate(found).reshape(-1, config.hidden_size)


@functools.partial(jax.jit, static_argnames=("features_of", "block", "batch", "chunks"))
def _cut(
    taps: Float[Array, "taps 1 length ..."],
    start: Any,
    features_of: Callable[[Array], Array],
    block: int,
    batch: int,
    chunks: int,
) -> list[Float[Array, "batch block features"]]:
    """Features from ``start`` on, in batches of blocks; what lies past the end is anything finite."""
    features = features_of(taps)[0]
    at = jnp.minimum(start + jnp.arange(chunks * batch * block), len(features) - 1)
    parts = features[at].reshape(chunks, batch, block, -1)
    return [parts[chunk] for chunk in range(chunks)]


def _padded_summary(summary: Rows) -> tuple[np.ndarray, np.ndarray]:
    width = _bucket(len(summary))
    states = np.zeros((1, width, summary.shape[1]), np.float32)
    states[0, : len(summary)] = summary
    return states, np.arange(width)[None] < len(summary)
