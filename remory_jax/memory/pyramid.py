"""The hierarchy: which blocks of a history become rows as they are, and which are merged to stay within the budget.

A history is cut into blocks; each becomes a leaf of depth 1 (of its deepest input's depth plus 1). While the rows
exceed the budget, the oldest group of ``ratio`` neighbours of one depth is replaced by one parent a level deeper, whose
input is their rows. Recent history so keeps the finest grain. Nothing is ever dropped: where no group is left, the
budget cannot be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BudgetError", "Merge", "Node", "Plan", "merge_frontier", "plan_frontier"]


class BudgetError(ValueError):
    """A memory budget that no merging of neighbours of one depth can meet."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A stretch of history that a fixed number of rows stands for.

    Args:
      depth: 1 for rows made of tokens, and one more than its children's for a parent.
      start, stop: the stretch, in blocks or positions, whichever the caller counts in; ``stop`` is exclusive.
    """

    depth: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Merge:
    """One parent, in the order they are made.

    Args:
      node: the parent's id: leaves have 0, 1, .. in time order, and parents the ids after them as they are made.
      parent: what it stands for.
      children: ids, in time order; not always consecutive, as a child may be a parent itself.
    """

    node: int
    parent: Node
    children: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Of the parent."""
        return self.parent.depth

    @property
    def first_child(self) -> int:
        """Id of the oldest child."""
        return self.children[0]

    @property
    def last_child(self) -> int:
        """Id of the newest child."""
        return self.children[-1]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A frontier and how it comes about.

    Args:
      leaves: number of nodes at the start.
      merges: in order.
      nodes: the frontier in time order; for `plan_frontier` in blocks.
      frontier_nodes: their ids.
      slots_per_node: rows of each.
    """

    leaves: int
    merges: tuple[Merge, ...]
    nodes: tuple[Node, ...]
    frontier_nodes: tuple[int, ...]
    slots_per_node: int

    @property
    def frontier(self) -> list[tuple[int, int, int]]:
        """(depth, first, last) of each node in time order, ``last`` inclusive."""
        return [(node.depth, node.start, node.stop - 1) for node in self.nodes]

    @property
    def slots(self) -> int:
        """Rows of the memory."""
        return len(self.nodes) * self.slots_per_node

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node; 0 without any."""
        return max((node.depth for node in self.nodes), default=0)


def plan_frontier(
    source_positions: int,
    block: int = 1024,
    ratio: int = 16,
    budget: int = 4096,
    *,
    max_depth: int | None = None,
    input_depths: Sequence[int] | None = None,
) -> Plan:
    """The frontier of a history; nodes count in blocks.

    Args:
      source_positions: of the history.
      block: positions per leaf.
      ratio: positions per row, and children per parent.
      budget: rows that the memory may hold.
      max_depth: deepest node that may be made; None for no ceiling, as in serving.
      input_depths: of each block, the depth of its deepest input row; 0 for tokens, the default.

    Raises:
      ValueError: an argument that is out of range.
      BudgetError: no merging meets the budget.

    Example:
      >>> plan_frontier(65_537).slots
      3200
    """
    if source_positions < 1:
        raise ValueError(f"source_positions = {source_positions}; there is nothing to remember")
    if ratio < 2 or block < ratio or block % ratio:
        raise ValueError(f"block = {block} must be a multiple of ratio = {ratio}, which is at least 2")
    leaves = -(-source_positions // block)
    depths = [0] * leaves if input_depths is None else list(input_depths)
    if len(depths) != leaves:
        raise ValueError(f"input_depths has {len(depths)} entries for {leaves} blocks")
    deepest = max(depths)
    if min(depths) < 0 or (max_depth is not None and deepest >= max_depth):
        raise ValueError(
            f"input_depths has {min(depths)} to {deepest}; they must be from 0 to below max_depth = {max_depth}"
        )
    nodes = [Node(depth=depth + 1, start=index, stop=index + 1) for index, depth in enumerate(depths)]
    return merge_frontier(nodes, ratio=ratio, slots_per_node=block // ratio, budget=budget, max_depth=max_depth)


def merge_frontier(
    nodes: Sequence[Node], *, ratio: int, slots_per_node: int, budget: int, max_depth: int | None = None
) -> Plan:
    """Merge the oldest groups of ``ratio`` equal neighbours until the rows fit the budget.

    The rule restarts from the oldest node after every merge. As no group ends before the first one that does, one pass
    with a stack finds the same groups in the same order.

    Raises:
      BudgetError: no merging meets the budget.
    """
    stack: list[tuple[Node, int, int]] = []  # node, id, length of the run of equal depth that ends here
    merges: list[Merge] = []
    pending = list(enumerate(nodes))[::-1]

    def full() -> bool:
        return (len(stack) + len(pending)) * slots_per_node > budget

    def push(node: Node, identity: int) -> None:
        run = stack[-1][2] + 1 if stack and stack[-1][0].depth == node.depth else 1
        stack.append((node, identity, run))

    while pending:
        identity, node = pending.pop()
        push(node, identity)
        while full() and stack[-1][2] >= ratio and (max_depth is None or stack[-1][0].depth < max_depth):
            group = stack[-ratio:]
            del stack[-ratio:]
            parent = Node(depth=group[0][0].depth + 1, start=group[0][0].start, stop=group[-1][0].stop)
            made = len(nodes) + len(merges)
            merges.append(Merge(node=made, parent=parent, children=tuple(child[1] for child in group)))
            push(parent, made)
    if full():
        raise BudgetError(
            f"memory_budget = {budget} rows cannot be met by merging {ratio} neighbours of one depth: {len(nodes)} "
            f"nodes of {slots_per_node} rows come to {len(stack) * slots_per_node}; raise it (nothing was dropped)"
        )
    return Plan(
        leaves=len(nodes),
        merges=tuple(merges),
        nodes=tuple(node for node, _, _ in stack),
        frontier_nodes=tuple(identity for _, identity, _ in stack),
        slots_per_node=slots_per_node,
    )
