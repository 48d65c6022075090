"""Sequences with soft rows in them, and what a compaction carries on: the vocabulary of `recursion` and `encoder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from remory_jax.data.template import Template
from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.pyramid import Node

__all__ = ["Call", "Contract", "Encode", "Memory", "Rows", "Tokens", "as_ids", "no_rows", "restored"]

Operation = Literal["summary", "leaves", "recursive_leaves", "parent"]
Rows = Float[np.ndarray, "rows d"]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What an actor and a memory network agree on.

    Args:
      block_tokens, compression_ratio, memory_budget, max_depth: as in `MemoryConfig`.
      placeholder: token id where a soft row stands; its embedding is never used.
      template: markers.
    """

    block_tokens: int
    compression_ratio: int
    memory_budget: int
    max_depth: int
    placeholder: int
    template: Template

    @classmethod
    def of(cls, config: MemoryConfig, template: Template, placeholder: int) -> Contract:
        """With the network's geometry."""
        return cls(
            block_tokens=config.block_tokens,
            compression_ratio=config.compression_ratio,
            memory_budget=config.memory_budget,
            max_depth=config.max_depth,
            placeholder=placeholder,
            template=template,
        )

    @property
    def slots_per_node(self) -> int:
        """Rows of every node."""
        return self.block_tokens // self.compression_ratio


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is carried from one compaction to the next; immutable.

    Args:
      prefix: ids of the persistent instructions.
      summary: ids of the summary, without markers.
      nodes: the frontier in time order, in source positions.
      rows: of all nodes, float32 [nodes * rows per node, D].
      source_tokens: positions that were remembered.
      verbatim: instead of rows, the ids of a history that is shorter than its rows would be.
    """

    prefix: tuple[int, ...]
    summary: tuple[int, ...]
    nodes: tuple[Node, ...]
    rows: Rows
    source_tokens: int
    verbatim: tuple[int, ...] = ()

    @property
    def slot_depths(self) -> Int[np.ndarray, " rows"]:
        """Depth of the node that each row belongs to."""
        each = len(self.rows) // max(len(self.nodes), 1)
        return np.repeat(np.asarray([node.depth for node in self.nodes], np.int32), each)


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A sequence for the actor: ids, some of whose embeddings are replaced by soft rows.

    Args:
      ids: with the placeholder where soft rows stand [S].
      prefix: how many of the first ids are persistent instructions, which many sequences share.
      start: position of the first soft row.
      rows: soft rows, at ``start`` and after; of no rows where there are none.
    """

    ids: Int[np.ndarray, " length"]
    prefix: int
    start: int
    rows: Rows

    @property
    def stop(self) -> int:
        """Position after the last soft row."""
        return self.start + len(self.rows)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One run of the actor, and of the memory network over it.

    Args:
      operation: "summary" asks for the actor's final-norm states at the span; the others for memory rows of its blocks.
      tokens: the sequence.
      start, stop: the span in it.
      depths: of each block's deepest input, already within the depth table.
    """

    operation: Operation
    tokens: Tokens
    start: int
    stop: int
    depths: tuple[int, ...] = ()


Encode = Callable[[Call, Rows | None], Rows]
"""Runs a call, given the summary's states for rows that are conditioned on them: float32 [rows, D]."""


def restored(contract: Contract, memory: Memory, continuation: Sequence[int] = ()) -> Tokens:
    """The context after a compaction: ``prefix | s_open summary s_close | m_open memory m_close | continuation``."""
    marks = contract.template
    before = (*memory.prefix, *marks.s_open, *memory.summary, *marks.s_close, *marks.m_open)
    held = memory.verbatim or (contract.placeholder,) * len(memory.rows)
    return Tokens(
        ids=as_ids((*before, *held, *marks.m_close, *continuation)),
        prefix=len(memory.prefix),
        start=len(before),
        rows=memory.rows,
    )


def as_ids(ids: Sequence[int]) -> Int[np.ndarray, " length"]:
    """Token ids as an array."""
    return np.asarray(ids, np.int32).reshape(-1)


def no_rows(previous: Memory | None) -> Rows:
    """Rows of no length, as wide as the memory's."""
    return np.zeros((0, 0), np.float32) if previous is None else previous.rows[:0]
