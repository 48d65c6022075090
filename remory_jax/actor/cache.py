"""The cache of an actor: keys and values, latents, sliding rings and recurrent states, stacked like the layers.

A cache is an immutable pytree. Using it twice branches it; `take` repeats or reorders its rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor.call import Places

__all__ = ["SLOTS", "Cache", "Memory", "layer_of", "lengthen", "room", "store", "widen"]

Memory = Mapping[str, Array]
"""Buffers of one kind of layer, stacked over the layers of that kind in a group: [R, B, ...]."""

SLOTS = frozenset({"k", "v", "latent", "rope", "index_k", "index_gate"})
"""Names of full attention's buffers, whose third dimension is the slot."""


def lengthen(
    memory: Memory | None, layer: Array | int, slot: Int[Array, ""] | None, now: Memory
) -> tuple[Memory, Memory]:
    """What full attention sees of one layer: its slots and the new columns ``now`` [B, S, ...]; and the buffers after.

    With a slot to write to, the new columns go into the buffers from there on. Without one nothing is kept: they stand
    behind the layer's slots, and the other layers' buffers need no room for them.
    """
    if memory is None:
        return now, now
    if slot is None:
        held = {name: layer_of(memory[name], layer) for name in now}
        return {
            name: jnp.concatenate([held[name], new.astype(held[name].dtype)], axis=1) for name, new in now.items()
        }, {}
    after = {name: _append(memory[name], layer, slot, new) for name, new in now.items()}
    return {name: layer_of(after[name], layer) for name in now}, after


def _append(buffer: Array, layer: Array | int, slot: Int[Array, ""], new: Array) -> Array:
    """Write ``new`` [B, S, ...] into the slots from ``slot`` on of one layer of [R, B, slots, ...]."""
    start = (jnp.asarray(layer, jnp.int32), jnp.int32(0), slot, *(jnp.int32(0),) * (buffer.ndim - 3))
    return jax.lax.dynamic_update_slice(buffer, new[None].astype(buffer.dtype), start)


def layer_of(buffer: Array, layer: Array | int) -> Array:
    """One layer's part of a stacked buffer."""
    return jax.lax.dynamic_index_in_dim(buffer, layer, keepdims=False)


def store(buffer: Array, layer: Array | int, value: Array) -> Array:
    """Replace one layer's part of a stacked buffer."""
    return jax.lax.dynamic_update_index_in_dim(buffer, value.astype(buffer.dtype), layer, axis=0)


def room(slots: int) -> int:
    """Slots to allocate for at least ``slots``: steps of an eighth to a quarter, so few sizes are ever compiled."""
    step = max(128, 1 << max(slots.bit_length() - 3, 0))
    return -(-slots // step) * step


def widen(memory: Any, count: int) -> Any:
    """Add ``count`` empty slots to every buffer of full attention in a tree of `Memory`."""

    def wider(path: tuple[Any, ...], buffer: Array) -> Array:
        if path[-1].key not in SLOTS:
            return buffer
        return jnp.pad(buffer, ((0, 0), (0, 0), (0, count), *((0, 0),) * (buffer.ndim - 3)))

    return jax.tree_util.tree_map_with_path(wider, memory)


@pytree()
@dataclass(frozen=True, kw_only=True)
class Cache:
    """What an actor remembers of the tokens it has seen.

    Attributes:
      places: bookkeeping shared by the layers.
      memory: per group of layers, per position in its pattern, the stacked buffers.
    """

    places: Places
    memory: tuple[tuple[Memory, ...], ...]

    @property
    def capacity(self) -> int:
        """Slots of full attention. A call whose tokens do not fit is given a larger cache, unless it is traced."""
        return self.places.full.segments.shape[1]

    @property
    def used(self) -> Int[Array, ""]:
        """Slots written, padding included."""
        return self.places.used

    @property
    def lengths(self) -> Int[Array, " batch"]:
        """Tokens of each row's current segment."""
        return self.places.rank

    def grow(self, capacity: int) -> Cache:
        """The same cache with at least ``capacity`` slots."""
        count = capacity - self.capacity
        if count <= 0:
            return self
        full = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, count))), self.places.full)
        return Cache(places=replace(self.places, full=full), memory=_widen(self.memory, count))

    def take(self, rows: Int[Array, " n"]) -> Cache:
        """Rows of the batch, repeated or reordered: ``cache.take(jnp.zeros(4, int))`` branches the first row in four.

        Args:
          rows: indices into the batch.
        """
        places = {
            name: jax.tree.map(lambda x: x[rows], getattr(self.places, name))
            for name in ("full", "rings", "recent", "segment_id", "segment", "rank", "position")
        }
        memory = jax.tree.map(lambda x: jnp.take(x, rows, axis=1), self.memory)
        return Cache(places=replace(self.places, **places), memory=memory)


@functools.partial(jax.jit, static_argnums=1)
def _widen(memory: Any, count: int) -> Any:
    return widen(memory, count)
