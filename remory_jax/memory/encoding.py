"""A history's features to memory rows, for a batch under `jax.jit`: blocks, then merges up to the budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.network import MemoryNetwork
from remory_jax.memory.pyramid import plan_frontier

__all__ = ["Rows", "Source", "Summary", "encode", "slots_of"]

ShortBlocks = Literal["full", "natural"]
Features = Callable[[Float[Array, "batch rows d"], Bool[Array, "batch rows"]], Float[Array, "batch rows taps d"]]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Source:
    """What is encoded: features of everything after the prefix, padding anywhere.

    Attributes:
      features: tapped layers [B, T, K, D]; apart, so that a mesh may split their width.
      mask: which rows are real [B, T].
      depth: 0 for tokens, and the depth of the memory row it was for a soft row [B, T]; None where there are none.
    """

    features: Float[Array, "batch rows taps d"]
    mask: Bool[Array, "batch rows"]
    depth: Int[Array, "batch rows"] | None = None


@pytree()
@dataclass(frozen=True, kw_only=True)
class Summary:
    """Final-norm hidden states of the actor at the summary [B, S, D], and which are real [B, S]."""

    states: Float[Array, "batch summary d"]
    mask: Bool[Array, "batch summary"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Rows:
    """Memory rows in time order.

    Attributes:
      rows: [B, N, D].
      mask: [B, N].
      depth: of the node each row belongs to [B, N].
    """

    rows: Float[Array, "batch slots d"]
    mask: Bool[Array, "batch slots"]
    depth: Int[Array, "batch slots"]


def slots_of(config: MemoryConfig, width: int, short_blocks: ShortBlocks = "full") -> int:
    """Memory rows of a source of ``width`` columns."""
    blocks, length = _blocks(config, width)
    if blocks * config.block_tokens // config.compression_ratio > config.memory_budget:
        return plan_frontier(width, config.block_tokens, config.compression_ratio, config.memory_budget).slots
    return blocks * _slots(config, length, short_blocks)


def _blocks(config: MemoryConfig, width: int) -> tuple[int, int]:
    """Number of blocks, and columns of each."""
    if width <= config.block_tokens:
        return 1, width
    return -(-width // config.block_tokens), config.block_tokens


def _slots(config: MemoryConfig, length: int, short_blocks: ShortBlocks) -> int:
    return -(-(config.block_tokens if short_blocks == "full" else length) // config.compression_ratio)


def encode(
    network: MemoryNetwork,
    source: Source,
    summary: Summary | None,
    *,
    features_of: Features,
    short_blocks: ShortBlocks = "full",
    at_once: int = 1,
) -> Rows:
    """Memory rows of a batch of histories.

    The source is cut into blocks of real rows; each is encoded alone. While there are more rows than the budget,
    neighbours of one depth are merged: their rows go through the actor again (``features_of``) and the network.

    Args:
      summary: conditions the network; None skips that step, as in Stage I.
      features_of: taps of the actor over soft rows that follow the prefix.
      short_blocks: "full" gives a short block as many slots as a full one, as the released engines do; "natural" one
        for every ``compression_ratio`` of its rows.
      at_once: blocks of an example that are encoded together, at most.

    Raises:
      ValueError: a source with soft rows whose memory does not fit the budget, or a budget that no merging meets.
    """
    config = network.config
    batch, width = source.mask.shape
    count, length = _blocks(config, width)
    source = _compact(source, count * length)
    slots = _slots(config, length, short_blocks)

    def one(features: Array, mask: Array, depth: Array | int) -> Rows:
        real = jnp.sum(mask, axis=1, dtype=jnp.int32)
        full = jnp.where(real > 0, config.block_tokens, 0) if short_blocks == "full" else real
        out = network(
            features.reshape(*mask.shape, -1),
            mask,
            summary=None if summary is None else summary.states,
            summary_mask=None if summary is None else summary.mask,
            depth=jnp.minimum(depth, config.max_depth - 1),
            source_lengths=real,
            slot_lengths=full,
            slots=slots,
            differentiate_features=True,  # whoever made them decides
        )
        own = jnp.broadcast_to(jnp.asarray(depth, jnp.int32).reshape(-1, 1) + 1, out.mask.shape)
        return Rows(rows=out.rows, mask=out.mask, depth=own)

    if count == 1:
        return one(source.features, source.mask, 0 if source.depth is None else jnp.max(source.depth, axis=1))
    depth = jnp.zeros((batch, count), jnp.int32)
    if source.depth is not None:
        depth = jnp.max(source.depth.reshape(batch, count, length), axis=2)
    together = math.gcd(count, at_once)
    blocks = [
        jnp.moveaxis(value.reshape(batch, -1, together, *shape), 1, 0)  # [steps, B, together, ...]
        for value, shape in (
            (source.features, (length, *source.features.shape[2:])),
            (source.mask, (length,)),
            (depth, ()),
        )
    ]

    def some(inputs: list[Array]) -> Rows:
        """Blocks of an example are consecutive rows, so that they share its summary."""
        found = one(*(value.reshape(-1, *value.shape[2:]) for value in inputs))
        return jax.tree.map(lambda value: value.reshape(batch, together, *value.shape[1:]), found)

    body = jax.checkpoint(some, prevent_cse=False)
    _, leaves = jax.lax.scan(lambda carry, inputs: (carry, body(inputs)), None, blocks)
    nodes = [jax.tree.map(lambda value, i=i: value[i // together, :, i % together], leaves) for i in range(count)]
    return _merged(nodes, width, config, source, one, features_of)


def _compact(source: Source, width: int) -> Source:
    """Real rows first, then padding up to ``width``: blocks are cut by what is real."""
    order = jnp.argsort(~source.mask, axis=1, stable=True)

    def moved(value: Array) -> Array:
        index = order.reshape(*order.shape, *(1,) * (value.ndim - 2))
        value = jnp.take_along_axis(value, index, axis=1)
        return jnp.pad(value, ((0, 0), (0, width - value.shape[1]), *((0, 0),) * (value.ndim - 2)))

    return jax.tree.map(moved, source)


def _merged(
    nodes: list[Rows],
    width: int,
    config: MemoryConfig,
    source: Source,
    encode_block: Callable[[Array, Array, int], Rows],
    features_of: Features,
) -> Rows:
    if sum(node.mask.shape[1] for node in nodes) > config.memory_budget:
        if source.depth is not None:
            raise ValueError(
                f"{width} columns of history and earlier memory need more than memory_budget = {config.memory_budget} "
                f"rows; train on shorter histories between boundaries, or raise the budget"
            )
        plan = plan_frontier(width, config.block_tokens, config.compression_ratio, config.memory_budget)
        alive: dict[int, Rows] = dict(enumerate(nodes))
        for merge in plan.merges:
            children = [alive.pop(child) for child in merge.children]
            soft = jax.lax.stop_gradient(jnp.concatenate([child.rows for child in children], axis=1))
            mask = jnp.concatenate([child.mask for child in children], axis=1)
            alive[merge.node] = encode_block(features_of(soft, mask), mask, merge.depth - 1)
        nodes = [alive[node] for node in plan.frontier_nodes]
    return jax.tree.map(lambda *values: jnp.concatenate(values, axis=1), *nodes)
