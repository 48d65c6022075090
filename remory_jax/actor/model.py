"""`Actor`: a frozen language model. Token ids or embeddings in; hidden states, tapped layers and a cache out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from costmodel_jax.precision import has_tracer
from costmodel_jax.pytree import pytree
from remory_jax.actor.cache import Cache, room, widen
from remory_jax.actor.call import begin
from remory_jax.actor.config import ActorConfig
from remory_jax.actor.decoder import run_layers
from remory_jax.actor.norms import rms_norm
from remory_jax.actor.sharding import DEFAULT_RULES, Rules, Sharding

__all__ = ["Actor", "Output"]

Ids = Int[Array, "batch length"] | Int[np.ndarray, "batch length"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Output:
    """What one forward pass gives.

    Attributes:
      hidden: [B, S, D] after the final norm; None where the pass stopped before it.
      taps: [len(taps), B, S, D] outputs of decoder layers; with hyper-connections [len(taps), B, S, N, D].
      cache: what the tokens of this call leave behind; None where the pass stopped early or was told to keep nothing.
    """

    hidden: Float[Array, "batch length d"] | None
    taps: Float[Array, "taps batch length ..."]
    cache: Cache | None


@pytree(static=("config", "mesh", "rules"))
@dataclass(frozen=True, kw_only=True)
class Actor:
    """A frozen language model; a pytree whose leaves are its weights, so it passes through `jax.jit` as an argument.

    No gradient ever reaches the weights: differentiate with respect to embeddings.

    Args:
      config: what it is made of.
      weights: arrays in the structure of `remory_jax.actor.decoder.parameters`.
      mesh: where it lies; None for one device.
      rules: logical axes on the mesh.

    Example:
      >>> actor = load_actor("models/SmolLM2-135M-Instruct")  # doctest: +SKIP
      >>> out = actor(tokens=ids, taps=(5, 20))  # doctest: +SKIP
      >>> logits = actor.logits(out.hidden[:, -1:])  # doctest: +SKIP
    """

    config: ActorConfig
    weights: Mapping[str, Any]
    mesh: Mesh | None = None
    rules: Rules = DEFAULT_RULES

    @property
    def dtype(self) -> jnp.dtype:
        """Of the activations: that of the embedding."""
        return jnp.dtype(self.weights["embed"].dtype)

    @property
    def head(self) -> Float[Array, "d vocabulary"]:
        """The language-model head; a tied one is the embedding, transposed."""
        return self.weights["embed"].T if self.config.tied else self.weights["head"]

    def embed(self, ids: Ids) -> Float[Array, "batch length d"]:
        """Input embeddings of token ids. An id outside the vocabulary gives NaN, never another token's row."""
        return _embed(self, jnp.asarray(ids))

    def logits(self, hidden: Float[Array, "batch length d"]) -> Float[Array, "batch length vocabulary"]:
        """``hidden @ head``, float32: for the positions that need it, as a vocabulary is large."""
        return _logits(self, hidden)

    def __call__(
        self,
        tokens: Ids | None = None,
        embeddings: Float[Array, "batch length d"] | None = None,
        *,
        positions: Ids | None = None,
        segment_ids: Ids | None = None,
        cache: Cache | None = None,
        taps: Sequence[int] = (),
        stop_after_layer: int | None = None,
        use_cache: bool = True,
        capacity: int | None = None,
        remat: bool = False,
        attention: str | None = None,
        delta: str | None = None,
    ) -> Output:
        """Run the model.

        Args:
          tokens: ids [B, S]; or
          embeddings: rows in input-embedding space [B, S, D], as `embed` gives, soft vectors among them.
          positions: for the rotary angles; by default they count each segment from 0, and go on from the cache.
          segment_ids: 0 for padding, on the left or right or between segments; 1 everywhere by default. A row's
            segments do not see one another; a segment goes on for as long as its id does, into the next call too.
          cache: from an earlier call's output. It is not changed: calling twice with the same cache branches it.
          taps: decoder layers whose outputs are wanted, from 0, in any order.
          stop_after_layer: run no layer after this one, where only taps are wanted: ``hidden`` and ``cache`` are None.
          use_cache: build ``cache``. Without, a call that has an incoming one needs no room in it: each layer sees the
            new columns behind what the cache holds.
          capacity: slots of the cache that goes out, padding included; by default what the call itself needs. A full
            cache grows by itself, which under `jax.jit` it cannot: there an overflow makes every output NaN.
          remat: recompute layers in the backward pass instead of keeping their insides.
          attention, delta: implementation by name, see `remory_jax.actor.attention` and `remory_jax.actor.delta`; None
            chooses by device and shape.

        Raises:
          ValueError: an argument that contradicts another or is out of range.
        """
        if (tokens is None) == (embeddings is None):
            raise ValueError("give either tokens= (ids) or embeddings=, not both and not neither")
        given = jnp.asarray(tokens if embeddings is None else embeddings)
        if embeddings is not None and given.shape[-1] != self.config.hidden:
            raise ValueError(f"embeddings have width {given.shape[-1]}; this model's is {self.config.hidden}")
        batch, length = given.shape[:2]
        taps = tuple(int(tap) for tap in taps)
        self._check_layers(taps, stop_after_layer)
        for name, value in (("positions", positions), ("segment_ids", segment_ids)):
            if value is not None and value.shape != (batch, length):
                raise ValueError(f"{name} has shape {value.shape}; it needs one value per token, {(batch, length)}")
        keep = use_cache and stop_after_layer is None
        if cache is not None:
            cache = self._with_room(cache, batch, length, capacity, keep)
        elif capacity is not None and capacity < length:
            raise ValueError(f"capacity = {capacity} is less than the {length} tokens of this call")
        return _forward(
            self,
            given.astype(jnp.int32) if embeddings is None else given.astype(self.dtype),
            None if positions is None else jnp.asarray(positions, jnp.int32),
            jnp.ones((batch, length), jnp.int32) if segment_ids is None else jnp.asarray(segment_ids, jnp.int32),
            cache,
            taps=taps,
            depth=len(self.config.layers) if stop_after_layer is None else stop_after_layer + 1,
            finish=stop_after_layer is None,
            keep=keep,
            capacity=length if capacity is None else capacity,
            remat=remat,
            attention=attention,
            delta=delta,
        )

    def _check_layers(self, taps: tuple[int, ...], stop: int | None) -> None:
        depth = len(self.config.layers)
        last = depth - 1 if stop is None else stop
        if not 0 <= last < depth:
            raise ValueError(f"stop_after_layer = {stop}; this model has layers 0 to {depth - 1}")
        for tap in taps:
            if not 0 <= tap <= last:
                after = "" if stop is None else f" and stops after layer {stop}"
                raise ValueError(f"tap {tap} is out of range: this model has layers 0 to {depth - 1}{after}")

    def _with_room(self, cache: Cache, batch: int, length: int, capacity: int | None, keep: bool) -> Cache:
        rows = cache.places.segment.shape[0]
        if rows != batch:
            raise ValueError(f"the cache holds {rows} rows and the call {batch}; cache.take repeats or reorders rows")
        if not keep:
            return cache
        needed = capacity or 0
        if not has_tracer(cache.used) and int(cache.used) + length > cache.capacity:
            needed = max(needed, room(int(cache.used) + length))
        return cache.grow(needed)

    def generate(
        self, ids: Ids | Sequence[Sequence[int]] | Sequence[int], **options: Any
    ) -> Int[np.ndarray, "batch total"] | list[list[int]] | list[int]:
        """Continue token ids; see `remory_jax.actor.generation.generate`."""
        from remory_jax.actor.generation import generate

        return generate(self, ids, **options)

    def stream(self, ids: Ids | Sequence[Sequence[int]] | Sequence[int], **options: Any) -> Iterator[Any]:
        """Continue token ids one step at a time; see `remory_jax.actor.generation.stream`."""
        from remory_jax.actor.generation import stream

        return stream(self, ids, **options)


@jax.jit
def _embed(actor: Actor, ids: Int[Array, "batch length"]) -> Float[Array, "batch length d"]:
    table = jax.lax.stop_gradient(actor.weights["embed"])
    sharding = Sharding(mesh=actor.mesh, rules=actor.rules, batch=ids.shape[0])
    # Brought together along its width first: rows that lie in parts over the batch's own axis cannot be looked up
    # without the partitioner holding the whole batch's embeddings on every device.
    rows = jnp.take(sharding.whole(table, "vocab"), ids, axis=0, mode="fill", fill_value=jnp.nan)
    return sharding.constrain(rows)


@jax.jit
def _logits(actor: Actor, hidden: Float[Array, "batch length d"]) -> Float[Array, "batch length vocabulary"]:
    head = jax.lax.stop_gradient(actor.head)
    logits = jnp.einsum("bsd,dv->bsv", hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    sharding = Sharding(mesh=actor.mesh, rules=actor.rules, batch=hidden.shape[0])
    return sharding.constrain(logits, None, "vocab")


@functools.partial(
    jax.jit, static_argnames=("taps", "depth", "finish", "keep", "capacity", "remat", "attention", "delta")
)
def _forward(
    actor: Actor,
    given: Array,
    positions: Int[Array, "batch length"] | None,
    segment_ids: Int[Array, "batch length"],
    cache: Cache | None,
    *,
    taps: tuple[int, ...],
    depth: int,
    finish: bool,
    keep: bool,
    capacity: int,
    remat: bool,
    attention: str | None,
    delta: str | None,
) -> Output:
    config = actor.config
    weights = jax.lax.stop_gradient(actor.weights)
    sharding = Sharding(mesh=actor.mesh, rules=actor.rules, batch=given.shape[0])
    x = _embed(actor, given) if given.ndim == 2 else given
    x = sharding.constrain(x)
    call, places = begin(
        config,
        segment_ids,
        positions,
        None if cache is None else cache.places,
        sharding=sharding,
        capacity=capacity,
        keep=keep,
        attention=attention,
        delta=delta,
    )
    if config.hyper is not None:
        x = jnp.broadcast_to(x[:, :, None], (*x.shape[:2], config.hyper.streams, x.shape[2]))
    ordered = tuple(sorted(set(taps)))
    held = None if cache is None else cache.memory
    # Kernels that are written for one device find the mesh they are to be mapped over in the context.
    with nullcontext() if actor.mesh is None else jax.sharding.use_abstract_mesh(actor.mesh.abstract_mesh):
        x, tapped, memory = run_layers(
            config, weights, x, call, held, taps=ordered, depth=depth, keep=keep, remat=remat
        )
    if ordered != taps:
        tapped = jnp.stack([tapped[ordered.index(tap)] for tap in taps])
    if memory is not None and cache is None:
        memory = widen(memory, capacity - given.shape[1])
    hidden = None
    if finish:
        hidden = x if config.hyper is None else jnp.mean(x, axis=2)
        hidden = rms_norm(hidden, weights["norm"], config.norm)
    if cache is not None and keep:
        fits = cache.used + given.shape[1] <= cache.capacity  # else writes were clamped and hit other tokens
        hidden = None if hidden is None else jnp.where(fits, hidden, jnp.nan)
        tapped = jnp.where(fits, tapped, jnp.nan)
    return Output(hidden=hidden, taps=tapped, cache=None if memory is None else Cache(places=places, memory=memory))
