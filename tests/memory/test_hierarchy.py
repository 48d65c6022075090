"""Merge plans: recorded ones, and a plain restatement of the rule on random frontiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remory_jax.memory import BudgetError, plan_frontier
from remory_jax.memory.pyramid import Node, Plan, merge_frontier


def check(recorded: dict[str, Any]) -> None:
    arguments = dict(recorded["args"])
    arguments["input_depths"] = arguments.pop("leaf_input_depths", None)
    if "error" in recorded:
        with pytest.raises(ValueError, match=r"memory_budget|input_depths"):
            plan_frontier(recorded["source_positions"], **arguments)
        return
    plan = plan_frontier(recorded["source_positions"], **arguments)
    assert [list(node) for node in plan.frontier] == recorded["frontier"]
    assert (plan.leaves, plan.slots) == (recorded["leaves"], recorded["slots"])
    assert (plan.slots_per_node, plan.max_depth) == (recorded["slots_per_node"], recorded["max_depth"])
    assert len(plan.merges) == recorded.get("merge_count", len(recorded.get("merges", ())))
    if "merges" in recorded:
        assert list(plan.frontier_nodes) == recorded["frontier_node_ids"]
        assert [
            [made.node, made.depth, made.parent.start, made.parent.stop - 1, made.first_child, made.last_child]
            for made in plan.merges
        ] == recorded["merges"]


def test_recorded_plans(shared: Path) -> None:
    recorded = json.loads((shared / "golden" / "remory" / "pyramid.json").read_text())
    for history in (*recorded["histories"], *recorded["small_geometry"]):
        check(history)


def slowly(nodes: list[Node], ratio: int, each: int, budget: int) -> list[Node]:
    """The rule as it is written: look from the oldest node, merge the first group, start again."""
    nodes = list(nodes)
    while len(nodes) * each > budget:
        for start in range(len(nodes) - ratio + 1):
            group = nodes[start : start + ratio]
            if len({node.depth for node in group}) == 1:
                parent = Node(depth=group[0].depth + 1, start=group[0].start, stop=group[-1].stop)
                nodes[start : start + ratio] = [parent]
                break
        else:
            raise BudgetError
    return nodes


@given(depths=st.lists(st.integers(1, 4), min_size=1, max_size=60), ratio=st.integers(2, 4), budget=st.integers(1, 30))
def test_one_pass_is_the_rule(depths: list[int], ratio: int, budget: int) -> None:
    nodes = [Node(depth=depth, start=3 * index, stop=3 * index + 3) for index, depth in enumerate(depths)]
    try:
        wanted = slowly(nodes, ratio, 1, budget)
    except BudgetError:
        with pytest.raises(BudgetError):
            merge_frontier(nodes, ratio=ratio, slots_per_node=1, budget=budget)
        return
    plan = merge_frontier(nodes, ratio=ratio, slots_per_node=1, budget=budget)
    assert list(plan.nodes) == wanted
    covers_everything_once(plan, len(nodes))


def covers_everything_once(plan: Plan, leaves: int) -> None:
    under = {leaf: [leaf] for leaf in range(leaves)}
    for merge in plan.merges:
        under[merge.node] = [leaf for child in merge.children for leaf in under.pop(child)]
    assert [leaf for node in plan.frontier_nodes for leaf in under[node]] == list(range(leaves))


def test_frontier_of_one_block() -> None:
    plan = plan_frontier(1)
    assert plan.frontier == [(1, 0, 0)]
    assert (plan.slots, plan.merges) == (64, ())


def test_frontier_just_over_the_budget() -> None:
    plan = plan_frontier(65_537)
    assert plan.frontier[:2] == [(2, 0, 15), (1, 16, 16)]
    assert plan.slots == 50 * 64
    assert plan.merges[0].children == tuple(range(16))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"source_positions": 0}, "source_positions = 0"),
        ({"source_positions": 5, "block": 10, "ratio": 4}, "block = 10"),
        ({"source_positions": 5, "ratio": 1}, "ratio = 1"),
        ({"source_positions": 5, "input_depths": [0, 0]}, "2 entries for 1 blocks"),
        ({"source_positions": 5, "input_depths": [-1]}, "input_depths has -1"),
        ({"source_positions": 5, "max_depth": 2, "input_depths": [2]}, "max_depth = 2"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        plan_frontier(**arguments)


def test_refused_budget() -> None:
    with pytest.raises(BudgetError, match=r"memory_budget = 12 .*nothing was dropped"):
        plan_frontier(113, block=8, ratio=2, budget=12)
