"""Every recorded call of the official network: layout exact, rows and hidden states, gradients.

Calls that differ in shapes alone are run as one batch, padded to the largest: no row's result depends on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from recorded import BFLOAT16, FLOAT32, GRADIENT, HIDDEN, Case, case, config_of, index, tensors

from remory_jax.memory import memory_from_tensors
from remory_jax.memory.forward import forward
from remory_jax.memory.layers import Summary
from remory_jax.memory.layout import Layout, global_mask, layout, local_mask
from remory_jax.memory.network import MemoryNetwork
from remory_jax.memory.parameters import stored_shapes
from remory_jax.memory.tensors import tensors_of

GROUPS = {
    "a, blocks of 64": (
        "a_full64_w2048_s37",
        "a_depth2_s1",
        "a_depth7_s37",
        "a_partial37_forced64",
        "a_partial1_forced64",
        "a_batch_forced_w2048",
        "a_grad_partial37",
        "a_tiny_values",
    ),
    "a, window 32": (
        "a_full64_w32_s37",
        "a_partial37_natural_w32",
        "a_batch_right_padding_w32",
        "a_canonical_rescale_w32",
        "a_batch_with_empty_row",
        "a_rescale_double_w32",
    ),
    "a, window 16": ("a_full64_w16_nolen",),
    "a, window 48": ("a_scattered_padding_w48",),
    "a, window 256": ("a_full1024_w256_s37",),
    "a, blocks of 1024": ("a_partial900_forced1024",),
    "a, bfloat16": ("a_bf16_full64", "a_bf16_t160_fp32_buffers"),
    "a, bfloat16 and rounded tables": ("a_bf16_t160_cast_buffers",),
    "b, blocks of 64": ("b_full64_w2048", "b_partial37_forced64"),
    "b, window 32": ("b_full64_w32", "b_batch_right_padding_w32", "b_grad_full64_w32"),
    "c": ("c_full64_w2048", "c_partial50_forced64_batch2"),
}


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "golden" / "remory"


def network_of(recorded: Case) -> MemoryNetwork:
    return memory_from_tensors(recorded.config, recorded.weights, dtype=recorded.dtype)


def close(ours: object, theirs: np.ndarray, tolerance: float, what: str) -> None:
    error = float(np.max(np.abs(np.asarray(ours, np.float64) - theirs), initial=0))
    assert error <= tolerance, f"{what}: off by {error:.1e}"


def test_every_case_is_covered(folder: Path) -> None:
    ours = sorted(name for names in GROUPS.values() for name in names)
    assert sorted(entry["case"] for entry in index(folder)["cases"]) == ours
    assert len(ours) == 28


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Batches one after another, padded with zeros on the right of their second dimension."""
    width = max(array.shape[1] for array in arrays)
    rest = [((0, 0),) * (array.ndim - 2) for array in arrays]
    return np.concatenate(
        [np.pad(array, ((0, 0), (0, width - array.shape[1]), *more)) for array, more in zip(arrays, rest, strict=True)]
    )


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What the network makes of a group of cases."""

    rows: jax.Array
    places: Layout
    near: jax.Array
    everywhere: jax.Array
    seen: dict[str, Any]


def compute(cases: list[Case], slots: int) -> Computed:
    config, network = cases[0].config, network_of(cases[0])
    given = [recorded.inputs() for recorded in cases]
    spans = [inputs["features_mask"].sum(axis=1) for inputs in given]
    sources = [inputs.get("source_lengths", span) for inputs, span in zip(given, spans, strict=True)]
    covered = [inputs.get("slot_lengths", source) for inputs, source in zip(given, sources, strict=True)]
    depths = [np.full(len(inputs["features"]), recorded.depth) for inputs, recorded in zip(given, cases, strict=True)]
    summary = None
    if config.summary_attention:
        states, real = (joined([inputs[key] for inputs in given]) for key in ("summary", "summary_mask"))
        summary = Summary(states=jnp.asarray(states), mask=jnp.asarray(real))
    dtype = jnp.dtype(cases[0].dtype)

    @jax.jit
    def everything(features: Any, mask: Any, summary: Any, source: Any, slot: Any, depth: Any) -> Any:
        places = layout(mask, source, slot, ratio=config.compression_ratio, slots=slots)
        scale = network.output_embedding_rms[...]
        rows, seen = forward(
            config, network.weights(), scale, features, places, summary, depth, dtype=dtype, collect=True
        )
        return rows, places, local_mask(places, config.local_window), global_mask(places), seen

    integers = [jnp.asarray(np.concatenate(values), jnp.int32) for values in (sources, covered, depths)]
    features, mask = (joined([inputs[key] for inputs in given]) for key in ("features", "features_mask"))
    rows, places, near, everywhere, seen = everything(features, mask, summary, *integers)
    return Computed(rows=rows, places=places, near=near, everywhere=everywhere, seen=seen)


@pytest.mark.parametrize("group", GROUPS)
def test_layout_rows_and_hidden_states(folder: Path, group: str) -> None:
    cases = [case(folder, name) for name in GROUPS[group]]
    assert len({(recorded.config, recorded.dtype) for recorded in cases}) == 1
    slots = max(recorded.arrays["slot_mask"].shape[1] for recorded in cases)
    computed = compute(cases, slots)
    first = 0
    for recorded in cases:
        batch, width = recorded.arrays["source_mask"].shape
        check(recorded, computed, slice(first, first + batch), width, slots)
        first += batch


def check(recorded: Case, computed: Computed, of: slice, width: int, slots: int) -> None:
    wanted, name, places = recorded.arrays, recorded.name, computed.places
    count = wanted["slot_mask"].shape[1]
    tail = slice(slots - count, slots)  # slots are padded on the left
    exact = {
        "source_position_ids": places.source_positions[of, :width],
        "slot_position_ids": places.slot_positions[of, tail],
        "slot_mask": places.slot_mask[of, tail],
        "slot_counts": places.counts[of],
        "global_keep_mask": computed.everywhere[of, None, tail, tail],
    }
    for key, ours in exact.items():
        np.testing.assert_array_equal(ours, wanted[key], err_msg=f"{name}: {key}")
    near = np.asarray(computed.near[of, None, tail])
    columns = computed.near.shape[2] - slots
    np.testing.assert_array_equal(near[..., :width], wanted["local_keep_mask"][..., :width], err_msg=name)
    np.testing.assert_array_equal(near[..., columns:][..., tail], wanted["local_keep_mask"][..., width:], err_msg=name)
    assert not near[..., width:columns].any()
    narrow = recorded.dtype == "bfloat16"
    rows = computed.rows[of].astype(jnp.float32)
    assert not np.any(rows[:, : slots - count])
    close(rows[:, tail], wanted["embeddings"], BFLOAT16 if narrow else FLOAT32, f"{name}: rows")
    if narrow:
        return
    real, seen = wanted["slot_mask"][..., None], computed.seen
    if "fused_source" in wanted:
        close(seen["source"][of, :width], wanted["fused_source"], HIDDEN, f"{name}: fused source")
    last = recorded.config.num_hidden_layers - 1
    for layer in range(last + 1):
        read = seen["last_attention"] if layer == last else seen["attention"][layer]
        hidden = seen["last_hidden"] if layer == last else seen["hidden"][layer]
        found = {"attn": read, "hidden": hidden} | ({} if layer == last else {"cross": seen["summary"][layer]})
        for kind, ours in found.items():
            if (theirs := wanted.get(f"{kind}_{layer}")) is not None:
                at = f"{name}: {kind} {layer}"
                close(np.where(real, ours[of, tail], 0), np.where(real, theirs, 0), HIDDEN, at)


def test_as_it_was_called(folder: Path) -> None:
    recorded = case(folder, "a_batch_with_empty_row")
    out = network_of(recorded)(**recorded.inputs())
    np.testing.assert_array_equal(out.counts, recorded.arrays["slot_counts"])
    np.testing.assert_array_equal(out.mask, recorded.arrays["slot_mask"])
    close(out.rows, recorded.arrays["embeddings"], FLOAT32, recorded.name)


@pytest.mark.parametrize(("name", "remat"), [("a_grad_partial37", False), ("b_grad_full64_w32", True)])
def test_gradients(folder: Path, name: str, remat: bool) -> None:
    recorded = case(folder, name)
    assert recorded.gradients is not None
    network = network_of(recorded)
    graph, params, rest = nnx.split(network, nnx.Param, ...)
    given = recorded.inputs()
    slots = recorded.arrays["slot_mask"].shape[1]

    def loss(params: nnx.State, features: jax.Array) -> jax.Array:
        rows = nnx.merge(graph, params, rest)(**given | {"features": features}, slots=slots, remat=remat).rows
        return jnp.sum(rows * recorded.arrays["cotangent"])

    gradients, of_features = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, jnp.asarray(given["features"]))
    found = dict(tensors_of(nnx.merge(graph, gradients, rest)))
    assert set(found) == {*recorded.gradients, "output_embedding_rms"}
    for tensor, wanted in recorded.gradients.items():
        close(found[tensor], wanted, GRADIENT * float(np.max(np.abs(wanted), initial=1e-30)), tensor)
    assert not np.any(of_features)  # features are constants


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_names_and_shapes(folder: Path, name: str) -> None:
    wanted = {key: tuple(shape) for key, shape in index(folder)["configs"][name]["tensors"].items()}
    config = config_of(folder, name)
    found = stored_shapes(config)
    assert {key: shape for key, shape in found.items() if key in wanted} == wanted
    assert set(found) - set(wanted) <= {"output_embedding_rms"}
    network = memory_from_tensors(config, tensors(folder / f"weights_{name}.safetensors"))
    for key, value in tensors_of(network):
        np.testing.assert_array_equal(value, tensors(folder / f"weights_{name}.safetensors")[key])
