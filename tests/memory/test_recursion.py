"""Series of compactions: the recorded ones, call by call, and rules of our own."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remory_jax.data.template import Template
from remory_jax.memory import Contract, Memory, plan_compaction, restored, run
from remory_jax.memory.recursion import Compaction, Engine
from remory_jax.memory.sequences import Call, Rows

CONTRACT = Contract(
    block_tokens=64,
    compression_ratio=16,
    memory_budget=16,
    max_depth=4,
    placeholder=7,
    template=Template(s_open=(11, 12), s_close=(13,), m_open=(14,), m_close=(15, 16)),
)


class Labels:
    """An encoder whose rows say which call and block made them."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.calls: list[Call] = []

    def __call__(self, call: Call, summary: Rows | None) -> Rows:
        number = len(self.calls)
        self.calls.append(call)
        if call.operation == "summary":
            assert summary is None
            return np.zeros((call.stop - call.start, 2), np.float32)
        blocks = -(-(call.stop - call.start) // self.contract.block_tokens)
        each = self.contract.slots_per_node
        return np.asarray([(number, block) for block in range(blocks) for _ in range(each)], np.float32)

    def nodes(self, rows: Rows) -> list[list[int]]:
        return rows[:: self.contract.slots_per_node].astype(int).tolist()


def runs(values: Any) -> list[list[int]]:
    return [[int(value), len(list(group))] for value, group in groupby(values)]


def described(encoder: Labels, number: int) -> dict[str, Any]:
    call = encoder.calls[number]
    found: dict[str, Any] = {
        "operation": call.operation,
        "sequence_length": len(call.tokens.ids),
        "start": call.start,
        "end": call.stop,
        "call": number,
    }
    blocks = -(-(call.stop - call.start) // encoder.contract.block_tokens)
    found["rows"] = call.stop - call.start if call.operation == "summary" else blocks * encoder.contract.slots_per_node
    if len(call.tokens.rows):
        found["memory_rows"] = [call.tokens.start, call.tokens.stop]
        key = "children" if call.operation == "parent" else "soft_nodes"
        found[key] = encoder.nodes(call.tokens.rows)
    if call.operation == "parent":
        found["input_depth"] = call.depths[0]
    if call.operation == "recursive_leaves":
        found["block_depths"] = list(call.depths)
    return found


def contract_of(recorded: dict[str, Any]) -> Contract:
    return Contract(
        block_tokens=recorded["block_tokens"],
        compression_ratio=recorded["ratio"],
        memory_budget=recorded["memory_budget"],
        max_depth=recorded["max_depth"],
        placeholder=recorded["placeholder_id"],
        template=Template(
            s_open=tuple(recorded["summary_before"]),
            s_close=tuple(recorded["summary_after"]),
            m_open=tuple(recorded["memory_before"]),
            m_close=tuple(recorded["memory_after"]),
        ),
    )


def check_step(step: dict[str, Any], plan: Compaction, memory: Memory, encoder: Labels, first: int) -> None:
    calls = [described(encoder, number) for number in range(first, len(encoder.calls))]
    assert calls == step["encode_calls"]
    assert len(memory.rows) == step["soft_rows"]
    assert runs(memory.slot_depths) == step["slot_depths_rle"]
    assert encoder.nodes(memory.rows) == step["memory_nodes"]
    assert memory.source_tokens == step["source_tokens"]
    assert plan.source_memory_slots == step["source_memory_slots"]
    assert [[node.depth, node.start, node.stop] for node in memory.nodes] == step["frontier"]
    if plan.engine == "reencode":
        assert list(plan.input_depths) == step["block_input_depths"]
        assert plan.hierarchy.max_depth == step["logical_max_depth"]
        assert plan.depth_saturated == step["depth_index_saturated"]
        assert [
            [made.depth, made.parent.start, made.parent.stop, made.first_child, made.last_child]
            for made in plan.hierarchy.merges
        ] == step["merges"]
    prepared = restored(plan.contract, memory, (9, 9, 9))
    assert len(prepared.ids) == step["prepared"]["length"]
    assert [prepared.start, prepared.stop] == step["prepared"]["memory_rows"]
    assert runs(prepared.ids[len(memory.prefix) :]) == step["prepared"]["ids_rle"]


def test_recorded_scenarios(shared: Path) -> None:
    recorded = json.loads((shared / "golden" / "remory" / "recursion.json").read_text())
    engines: dict[str, Engine] = {"reencode_all": "reencode", "keep_frontier": "keep_frontier"}
    assert len(recorded["scenarios"]) == 8
    for scenario in recorded["scenarios"]:
        contract = contract_of(scenario["contract"])
        encoder, memory = Labels(contract), None
        for step in scenario["steps"]:
            request = step["request"]
            arguments: dict[str, Any] = {
                "prefix": [3] * request.get("prefix", 20),
                "history": [5] * request["history"],
                "summary": [6] * request["summary"],
                "previous": memory,
                "engine": engines[scenario["engine"]],
                "context_limit": scenario["context_limit"],
            }
            if "error" in step:
                with pytest.raises(ValueError, match=r"prefix|tokens|memory_budget"):
                    plan_compaction(contract, **arguments)
                continue
            first = len(encoder.calls)
            plan = plan_compaction(contract, **arguments)
            assert len(encoder.calls) == first
            memory = run(plan, encoder)
            check_step(step, plan, memory, encoder, first)


def compacted(history: int, previous: Memory | None = None, **options: Any) -> tuple[Memory, Labels]:
    encoder = Labels(CONTRACT)
    plan = plan_compaction(
        CONTRACT, prefix=[1, 2], history=[5] * history, summary=[6] * 3, previous=previous, **options
    )
    return run(plan, encoder), encoder


def test_reencoding_reads_the_restored_context() -> None:
    memory, encoder = compacted(100)
    assert [call.operation for call in encoder.calls] == ["summary", "leaves"]
    assert encoder.calls[0].tokens.ids.tolist() == [1, 2, 11, 12, 6, 6, 6, 13]
    memory, encoder = compacted(10, memory)
    ids = encoder.calls[1].tokens.ids.tolist()
    assert ids == [1, 2, 11, 12, 6, 6, 6, 13, 14, *[7] * 8, 15, 16, *[5] * 10]
    assert encoder.calls[1].depths == (1,)
    assert memory.nodes[0].depth == 2


def test_keep_frontier_appends() -> None:
    memory, _ = compacted(100, engine="keep_frontier")
    longer, encoder = compacted(10, memory, engine="keep_frontier")
    assert [call.operation for call in encoder.calls] == ["leaves"]
    assert encoder.calls[0].tokens.ids.tolist() == [1, 2, *[7] * 8, *[5] * 10]
    assert (encoder.calls[0].start, encoder.calls[0].stop) == (10, 20)
    np.testing.assert_array_equal(longer.rows[:8], memory.rows)
    assert [node.stop for node in longer.nodes] == [64, 100, 110]
    same, encoder = compacted(0, longer, engine="keep_frontier")
    assert not encoder.calls
    np.testing.assert_array_equal(same.rows, longer.rows)


def test_keep_frontier_checks_the_budget_first() -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        compacted(64 * 9, engine="keep_frontier")


@pytest.mark.parametrize("engine", ["reencode", "keep_frontier"])
def test_short_history_is_kept_verbatim(engine: Engine) -> None:
    memory, encoder = compacted(3, engine=engine, verbatim=True)
    assert not encoder.calls
    assert memory.verbatim == (5,) * 3
    assert memory.source_tokens == 3
    context = restored(CONTRACT, memory, (9,))
    assert context.ids.tolist() == [1, 2, 11, 12, 6, 6, 6, 13, 14, 5, 5, 5, 15, 16, 9]
    assert not len(context.rows)
    # With one token more than it would have rows it is encoded, and everything before it too.
    still, _ = compacted(1, memory, engine=engine, verbatim=True)
    assert still.verbatim == (5,) * 4
    memory, encoder = compacted(1, still, engine=engine, verbatim=True)
    assert memory.verbatim == ()
    assert len(memory.rows) == CONTRACT.slots_per_node
    leaves = encoder.calls[-1]
    ids = leaves.tokens.ids[leaves.start : leaves.stop].tolist()
    assert ids == ([5] * 5 if engine == "keep_frontier" else [11, 12, 6, 6, 6, 13, 14, *[5] * 4, 15, 16, 5])
    assert memory.source_tokens == len(ids)


def test_short_history_costs_rows_unless_asked() -> None:
    memory, encoder = compacted(3)
    assert len(memory.rows) == 4
    assert len(encoder.calls) == 2


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"history": []}, "nothing to remember"),
        ({"summary": []}, "summary is empty"),
        ({"context_limit": 20}, "sequence with the history has 102 tokens"),
        ({"context_limit": 105, "summary": [6] * 150}, "sequence with the summary has 155"),
        ({"history": [5] * 64 * 16, "context_limit": 65}, "history"),
    ],
)
def test_refusals(changes: dict[str, Any], word: str) -> None:
    arguments: dict[str, Any] = {"prefix": [1, 2], "history": [5] * 100, "summary": [6] * 3}
    with pytest.raises(ValueError, match=word):
        plan_compaction(CONTRACT, **arguments | changes)


def test_prefix_may_not_change() -> None:
    memory, _ = compacted(100)
    with pytest.raises(ValueError, match="prefix"):
        plan_compaction(CONTRACT, prefix=[1, 3], history=[5], summary=[6], previous=memory)


def test_rows_that_are_not_finite_are_refused() -> None:
    plan = plan_compaction(CONTRACT, prefix=[1], history=[5] * 64, summary=[6])

    def broken(call: Call, summary: Rows | None) -> Rows:
        rows = Labels(CONTRACT)(call, summary)
        return rows if call.operation == "summary" else rows * np.float32(np.nan)

    with pytest.raises(FloatingPointError, match="not finite"):
        run(plan, broken)
