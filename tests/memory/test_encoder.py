"""A compaction from token ids to rows and on to the next token: recorded, and against the plain way of doing it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_actor
from flax import nnx
from network_oracle import Oracle
from recorded import HIDDEN, config_of, tensors
from test_recursion import contract_of

from remory_jax.data.template import Template
from remory_jax.memory import (
    ActorEncoder,
    Contract,
    Memory,
    MemoryConfig,
    MemoryNetwork,
    embed_tokens,
    memory_from_tensors,
    plan_compaction,
    restored,
    run,
)
from remory_jax.memory.encoder import side_by_side
from remory_jax.memory.sequences import Call, Rows
from remory_jax.memory.tensors import tensors_of


def close(ours: Any, theirs: np.ndarray, tolerance: float, what: str) -> None:
    error = float(np.max(np.abs(np.asarray(ours, np.float64) - theirs)))
    assert error <= tolerance, f"{what}: off by {error:.1e}"


def test_recorded_end_to_end(shared: Path, tmp_path: Path) -> None:
    folder = shared / "golden" / "remory"
    recorded = json.loads((folder / "e2e.json").read_text())
    with np.load(folder / "e2e.npz") as file:
        arrays = {key: file[key] for key in file.files}
    actor = tiny_actor.from_tensors(folder / "e2e_actor.safetensors", tmp_path / "actor")
    contract = contract_of(recorded["contract"])
    config = config_of(
        folder,
        "a",
        local_window=recorded["local_window"],
        block_tokens=contract.block_tokens,
        memory_budget=contract.memory_budget,
    )
    encoder = ActorEncoder(actor, memory_from_tensors(config, tensors(folder / "weights_a.safetensors")))
    calls: list[tuple[Call, Rows]] = []

    def keeping(call: Call, summary: Rows | None) -> Rows:
        rows = encoder(call, summary)
        calls.append((call, rows))
        return rows

    memory: Memory | None = None
    for boundary in ("1", "2"):
        plan = plan_compaction(
            contract,
            prefix=recorded["prefix_ids"],
            history=recorded[f"history{boundary}_ids"],
            summary=recorded[f"summary{boundary}_ids"],
            previous=memory,
        )
        memory = run(plan, keeping)
        receipt, wanted = recorded[f"receipt{boundary}"], recorded["restored"][boundary]
        assert memory.source_tokens == receipt["source_tokens"]
        assert len(memory.rows) == receipt["soft_tokens"]
        assert plan.hierarchy.max_depth == receipt["logical_max_depth"]
        assert list(plan.input_depths) == receipt["block_input_depths"]
        close(memory.rows, arrays[f"memory{boundary}"], HIDDEN, f"memory {boundary}")
        context = restored(contract, memory, recorded["continuation_ids"])
        assert context.ids.tolist() == wanted["prepared_ids"]
        assert [context.start, context.stop] == wanted["memory_positions"]
        assert memory.slot_depths.tolist() == wanted["slot_depths"]
        padding = 48 - len(context.ids)
        embeddings = jnp.pad(embed_tokens(actor, context), ((0, 0), (padding, 0), (0, 0)))
        hidden = actor(embeddings=embeddings, segment_ids=(np.arange(48) >= padding).astype(np.int32)[None]).hidden
        tail = arrays[f"logits_tail{boundary}"]
        logits = np.asarray(actor.logits(hidden))[0, -len(tail) :]
        close(logits, tail, 1e-3, f"logits {boundary}")
        assert int(np.argmax(logits[-1])) == wanted["greedy_output_ids"][0]

    assert len(calls) == len(recorded["encode_calls"])
    for (call, rows), wanted in zip(calls, recorded["encode_calls"], strict=True):
        assert (call.operation, call.start, call.stop) == (wanted["operation"], wanted["start"], wanted["end"])
        assert len(rows) == wanted["rows"]
        if call.operation == "recursive_leaves":
            assert list(call.depths) == wanted["block_depths"]
        elif call.operation == "parent":
            assert call.depths == (wanted["input_depth"],)
    for number, (call, rows) in enumerate(calls):
        close(rows, arrays[f"call{number}_{call.operation}"], HIDDEN, f"call {number}")


def small() -> tuple[Contract, MemoryConfig]:
    config = MemoryConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        target_layer_ids=(0, 2),
        block_tokens=16,
        compression_ratio=4,
        memory_budget=16,
        max_depth=3,
        gate_init=0.5,
    )
    template = Template(s_open=(11, 12), s_close=(13,), m_open=(14,), m_close=(15, 16))
    return Contract.of(config, template, 7), config


def test_rows_are_those_of_blocks_encoded_one_by_one() -> None:
    contract, config = small()
    actor = tiny_actor.actor()
    network = MemoryNetwork(config, rngs=nnx.Rngs(1))
    rng = np.random.default_rng(0)
    prefix, history, summary = (rng.integers(20, 96, count).tolist() for count in (5, 41, 6))
    encoder = ActorEncoder(actor, network, blocks_at_once=2)
    memory = run(plan_compaction(contract, prefix=prefix, history=history, summary=summary), encoder)
    assert memory.rows.shape == (12, 32)

    # The whole of both sequences at once, without a shared prefix.
    sequences = ([*prefix, *history], [*prefix, 11, 12, *summary, 13])
    ids, real = np.zeros((2, 46), np.int32), np.zeros((2, 46), np.int32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)], real[row, : len(sequence)] = sequence, 1
    out = actor(tokens=ids, segment_ids=real, taps=(0, 2))
    features = np.concatenate([np.asarray(tap)[0, 5:] for tap in out.taps], axis=1)
    states = np.asarray(out.hidden)[1, 7:13]
    oracle = Oracle(config, dict(tensors_of(network)))
    for block in range(3):
        part = features[16 * block : 16 * block + 16]
        close(memory.rows[4 * block : 4 * block + 4], oracle(part, states, 0, len(part), 16), 2e-5, f"block {block}")


def test_widths_and_taps_are_checked() -> None:
    _, config = small()
    actor = tiny_actor.actor()
    with pytest.raises(ValueError, match="layers before the last"):
        ActorEncoder(actor, MemoryNetwork(replace(config, target_layer_ids=(0, 3)), rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="16 wide and the actor 32"):
        ActorEncoder(actor, MemoryNetwork(replace(config, hidden_size=16), rngs=nnx.Rngs(0)))


def test_features_of_parallel_streams_are_their_mean() -> None:
    taps = jnp.arange(2 * 3 * 4 * 5, dtype=jnp.float32).reshape(2, 1, 3, 4, 5)
    found = side_by_side(taps)
    assert found.shape == (1, 3, 10)
    np.testing.assert_allclose(found[0, 2, 5:], jnp.mean(taps[1, 0, 2], axis=0))
