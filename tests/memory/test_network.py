"""The network against an independent float64 program, and what must not change its rows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from network_oracle import Oracle

from remory_jax.memory import MemoryConfig, MemoryNetwork, abstract_network, memory_axes
from remory_jax.memory.parameters import stored_shapes
from remory_jax.memory.tensors import memory_from_tensors, tensors_of

TINY = MemoryConfig(
    hidden_size=32,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    target_layer_ids=(1, 3),
    compression_ratio=4,
    block_tokens=32,
    memory_budget=64,
    max_depth=3,
    conv_group=8,
    output_rms=0.5,
)
BATCH, WIDTH, SLOTS, SUMMARY = 6, 24, 8, 5
VARIANTS = {
    "released": TINY,
    "plain, one layer, odd heads": replace(
        TINY, summary_attention=False, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1, head_dim=4
    ),
    "convolution, window": replace(TINY, dynamic_conv=True, local_window=10),
    "long convolution, pooled, plain": replace(
        TINY, dynamic_conv=True, conv_kernel=3, query_init="pooled", summary_attention=False, num_hidden_layers=2
    ),
    "pooled, smallest window": replace(TINY, query_init="pooled", local_window=4),
}


@lru_cache(maxsize=8)
def drawn(config: MemoryConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights that leave nothing at its neutral value."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in stored_shapes(config).items():
        if name == "output_embedding_rms":
            found[name] = np.asarray(0.5, np.float32)
        elif name.endswith(("norm.weight", ".base")):
            found[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            found[name] = (rng.normal(size=shape) / np.sqrt(max(shape[-1], 4))).astype(np.float32)
    return found


def batch(config: MemoryConfig, seed: int = 0) -> dict[str, Any]:
    """Padding anywhere, an empty row, declared lengths other than the rows' where the window allows."""
    rng = np.random.default_rng(seed)
    rows = np.asarray([WIDTH, 9, 0, 1, 17, 5])
    mask = np.zeros((BATCH, WIDTH), bool)
    for row, count in enumerate(rows):
        mask[row, np.sort(rng.choice(WIDTH, count, replace=False))] = True
    source = np.where(rows > 0, np.asarray([WIDTH, 18, 0, 1, 11, 5]), 0)
    slot = np.where(rows > 0, np.asarray([WIDTH, 30, 0, 32, 11, 5]), 0) if config.local_window >= 2048 else source
    given: dict[str, Any] = {
        "features": rng.normal(size=(BATCH, WIDTH, 2 * config.hidden_size)).astype(np.float32),
        "features_mask": mask,
        "source_lengths": source.astype(np.int32),
        "slot_lengths": slot.astype(np.int32),
        "depth": np.asarray([0, 2, 1, 0, 1, 2], np.int32) if config.summary_attention else 0,
    }
    if config.summary_attention:
        real = rng.uniform(size=(BATCH, SUMMARY)) < 0.6
        real[:, 2] = True
        given |= {"summary": rng.normal(size=(BATCH, SUMMARY, config.hidden_size)).astype(np.float32)}
        given |= {"summary_mask": real}
    return given


def expected(config: MemoryConfig, given: dict[str, Any], row: int) -> np.ndarray:
    mask = given["features_mask"][row]
    summary = None
    if "summary" in given:
        summary = given["summary"][row][given["summary_mask"][row]]
    return Oracle(config, drawn(config))(
        given["features"][row][mask],
        summary,
        int(np.broadcast_to(given["depth"], BATCH)[row]),
        int(given["source_lengths"][row]),
        int(given["slot_lengths"][row]),
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_against_the_oracle(variant: str) -> None:
    config = VARIANTS[variant]
    network, given = memory_from_tensors(config, drawn(config)), batch(config)
    out = network(**given, slots=SLOTS)
    assert out.rows.shape == (BATCH, SLOTS, 32)
    for row in range(BATCH):
        count = -(-int(given["slot_lengths"][row]) // 4)
        assert int(out.counts[row]) == count
        np.testing.assert_array_equal(out.mask[row], np.arange(SLOTS) >= SLOTS - count)
        assert not np.any(out.rows[row, : SLOTS - count])
        if count:
            wanted = expected(config, given, row)
            np.testing.assert_allclose(out.rows[row, SLOTS - count :], wanted, atol=2e-5)


def released() -> tuple[MemoryNetwork, dict[str, Any]]:
    return memory_from_tensors(TINY, drawn(TINY)), batch(TINY)


def test_padding_and_batch_do_not_matter() -> None:
    network, given = released()
    whole = network(**given, slots=SLOTS).rows
    order = np.asarray([4, 2, 0, 5, 3, 1])
    moved = network(**{name: value[order] for name, value in given.items()}, slots=SLOTS).rows
    np.testing.assert_allclose(moved, whole[order], atol=5e-6)
    noise = np.random.default_rng(1).normal(size=given["features"].shape).astype(np.float32) * 50
    spoiled = given | {"features": np.where(given["features_mask"][..., None], given["features"], noise)}
    spoiled["summary"] = np.where(given["summary_mask"][..., None], given["summary"], noise[:, :SUMMARY, :32])
    np.testing.assert_allclose(network(**spoiled, slots=SLOTS).rows, whole, atol=5e-6)
    aligned = np.argsort(~given["features_mask"], axis=1, stable=True)  # the same rows without gaps
    packed = given | {
        "features": np.take_along_axis(given["features"], aligned[..., None], axis=1),
        "features_mask": np.take_along_axis(given["features_mask"], aligned, axis=1),
    }
    np.testing.assert_allclose(network(**packed, slots=SLOTS).rows, whole, atol=5e-6)


def test_slots_default_to_the_widest_row() -> None:
    network, given = released()
    assert network(**given).rows.shape == (BATCH, 8, 32)
    empty = {name: value[2:3] for name, value in given.items()}
    assert network(**empty).rows.shape == (1, 0, 32)


def test_blocks_of_an_example_share_its_summary() -> None:
    network, given = released()
    states, real = given["summary"][:2], given["summary_mask"][:2]
    shared = network(**given | {"summary": states, "summary_mask": real}, slots=SLOTS)
    repeated = {"summary": np.repeat(states, 3, axis=0), "summary_mask": np.repeat(real, 3, axis=0)}
    np.testing.assert_allclose(shared.rows, network(**given | repeated, slots=SLOTS).rows, atol=5e-6)


def test_under_jit_with_traced_lengths() -> None:
    network, given = released()
    graph, params, rest = nnx.split(network, nnx.Param, ...)

    @jax.jit
    def rows(params: nnx.State, given: dict[str, Any]) -> jax.Array:
        return nnx.merge(graph, params, rest)(**given, slots=SLOTS).rows

    np.testing.assert_allclose(rows(params, given), network(**given, slots=SLOTS).rows, atol=5e-6)
    # An example whose summary is empty keeps the step out, as a call without a summary does.
    real = given["summary_mask"] & (np.arange(BATCH) != 1)[:, None]
    bare = {name: value for name, value in given.items() if not name.startswith("summary")}
    found = rows(params, given | {"summary_mask": real})
    np.testing.assert_allclose(found[1], expected(TINY, bare, 1), atol=2e-5)
    np.testing.assert_allclose(found[0], rows(params, given)[0], atol=5e-6)
    with pytest.raises(ValueError, match="give slots="):
        jax.eval_shape(lambda given: network(**given), given)


def test_no_gradient_to_constants_unless_asked() -> None:
    config = replace(TINY, num_hidden_layers=2)
    network, given = memory_from_tensors(config, drawn(config)), batch(config)

    def total(features: jax.Array, summary: jax.Array, through: bool) -> jax.Array:
        changed = given | {"features": features, "summary": summary}
        return jnp.sum(network(**changed, slots=SLOTS, differentiate_features=through).rows ** 2)

    inputs = jnp.asarray(given["features"]), jnp.asarray(given["summary"])

    @jax.jit
    def gradients(*inputs: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        return [jax.grad(total, argnums=(0, 1))(*inputs, through) for through in (False, True)]

    constant, through = gradients(*inputs)
    assert not any(np.any(gradient) for gradient in (*constant, through[1]))
    assert np.all(np.isfinite(through[0]))
    real = given["features_mask"] & (np.arange(BATCH) != 2)[:, None]
    np.testing.assert_array_equal(np.any(through[0], axis=2), real)


def test_axes_and_leaves() -> None:
    for config in VARIANTS.values():
        state = nnx.state(abstract_network(config), nnx.Param)
        pairs = jax.tree.leaves(
            jax.tree.map(lambda leaf, names: (leaf.shape, names), state, memory_axes(config)),
            is_leaf=lambda node: isinstance(node, tuple),
        )
        assert sum(int(np.prod(shape)) for shape, _ in pairs) == config.parameter_count
        sizes = {"embed": 32, "mlp": 24, "heads": config.num_attention_heads, "layers": config.num_hidden_layers - 1}
        for shape, names in pairs:
            assert [sizes.get(name, size) for size, name in zip(shape, names, strict=True)] == list(shape)


def test_copier_copies() -> None:
    config = replace(
        TINY, init="copier", copier_noise=0.0, num_attention_heads=8, num_key_value_heads=4, head_dim=8, copier_tap=0
    )
    network = MemoryNetwork(config, rngs=nnx.Rngs(0))
    tensors, identity = dict(tensors_of(network)), np.eye(32, dtype=np.float32)
    np.testing.assert_array_equal(tensors["fc.weight"], np.concatenate([identity, 0 * identity], axis=1))
    for attention in ("layers.0.self_attn", "summary_attention.1", "layers.2.self_attn"):
        values, outputs = (tensors[f"{attention}.{part}_proj.weight"] for part in ("v", "o"))
        np.testing.assert_array_equal(values, identity)
        # Both query heads of a group bring back half of what they read.
        heads = np.repeat(values.reshape(4, 1, 8, 32), 2, axis=1).reshape(64, 32)
        np.testing.assert_allclose(outputs @ heads, identity, atol=1e-6)
    assert not np.any(tensors["layers.0.mlp.down_proj.weight"])
    # A source that is the same everywhere gives that row back, whatever slots attend to.
    given = batch(config)
    row = given["features"][0, 0]
    given["features"] = np.broadcast_to(row, given["features"].shape)
    bare = {name: value for name, value in given.items() if not name.startswith("summary")}
    for found in np.asarray(network(**bare, slots=SLOTS).rows)[0, -6:]:
        assert np.corrcoef(found, row[:32])[0, 1] > 0.85


def test_bfloat16_computation_keeps_float32_parameters() -> None:
    network = memory_from_tensors(TINY, drawn(TINY), dtype=jnp.bfloat16, param_dtype=jnp.float32)
    graph, params, rest = nnx.split(network, nnx.Param, ...)
    given = batch(TINY)

    def total(params: nnx.State) -> tuple[jax.Array, jax.Array]:
        rows = nnx.merge(graph, params, rest)(**given, slots=SLOTS, remat=True).rows
        return jnp.sum(rows.astype(jnp.float32) ** 2), rows

    gradients, rows = jax.jit(jax.grad(total, has_aux=True))(params)
    assert rows.dtype == jnp.bfloat16
    for leaf in jax.tree.leaves((params, gradients)):
        assert leaf.dtype == jnp.float32
        assert np.all(np.isfinite(leaf))
    wide = released()[0](**given, slots=SLOTS).rows
    np.testing.assert_allclose(rows.astype(jnp.float32), wide, atol=0.06)


def changed(**changes: Any) -> dict[str, Any]:
    return batch(TINY) | changes


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (changed(features=np.zeros((BATCH, WIDTH, 32), np.float32)), "features are 32 wide; 2 taps of 32 make 64"),
        (changed(source_lengths=np.asarray([24, 18, 3, 1, 11, 5])), "row 2 has 0 source rows"),
        (changed(slot_lengths=np.asarray([24, 17, 0, 32, 11, 5])), "row 1: slot length 17"),
        (changed(depth=3), "depth = 3"),
        (changed(depth=np.asarray([0, -1, 0, 0, 0, 0])), "depth = -1"),
        (changed(slots=7), "slots = 7 and a row needs 8"),
        (changed(summary_mask=np.zeros((BATCH, SUMMARY), bool)), "summary 0 has no real row"),
        (changed(summary_mask=np.ones((BATCH, 4), bool)), "summary_mask has shape"),
        (changed(summary=np.zeros((BATCH, SUMMARY, 16), np.float32)), "summary states are 16 wide"),
        (changed(summary=np.zeros((4, SUMMARY, 32), np.float32)), "4 summaries for 6 blocks"),
        (changed(summary=None), "summary_mask is given without summary"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_refused_inputs(given: dict[str, Any], word: str) -> None:
    network = memory_from_tensors(TINY, drawn(TINY))
    with pytest.raises(ValueError, match=word):
        network(**given)


def test_forced_slots_need_a_wide_window() -> None:
    config = replace(TINY, local_window=100)
    with pytest.raises(ValueError, match="local_window = 100 must be at least 2048"):
        memory_from_tensors(config, drawn(config))(**batch(TINY))


def test_plain_network_takes_no_summary() -> None:
    config = replace(TINY, summary_attention=False)
    network = memory_from_tensors(config, drawn(config))
    with pytest.raises(ValueError, match="takes no summary"):
        network(**batch(TINY))
