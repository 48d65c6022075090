"""Released folders in and out: bits, both shapes of config, checksums, actors, and folders that are not right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_actor
from jax.sharding import PartitionSpec
from safetensors.numpy import load_file, save_file
from test_network import SLOTS, TINY, batch, drawn

from costmodel_jax.errors import InputError
from remory_jax.actor import Rules
from remory_jax.data.template import Template
from remory_jax.memory import (
    Fingerprint,
    Released,
    actor_of,
    fingerprint,
    load_memory,
    memory_from_tensors,
    read_memory_config,
    save_memory,
)
from remory_jax.memory.released import PLAIN_SCHEMA, canonical_sha256
from remory_jax.memory.tensors import tensors_of
from remory_jax.mesh import make_mesh

GOLDEN = Path(__file__).parents[1] / "golden" / "memory"
TEMPLATE = Template(s_open=(1, 2), s_close=(3,), m_open=(), m_close=(4,))
ACTOR = Fingerprint(tensors="a" * 64, tokenizer="b" * 64, template="c" * 64)
PLAIN = replace(TINY, summary_attention=False, block_tokens=1024, memory_budget=4096, compression_ratio=16, max_depth=8)
MARKERS = {
    "student_summary_before_ids": [1, 2],
    "student_summary_after_ids": [3],
    "student_memory_before_ids": [],
    "student_memory_after_ids": [4],
}
GEOMETRY = {
    "target_hidden_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "target_layer_ids": [1, 3],
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "local_window": 2048,
    "output_embedding_rms": 0.5,
}
SUMMARY_SHAPE = {
    "target_model": "someone/an-actor",
    "target_revision": "0123",
    "compressor": GEOMETRY | {"compression_ratio": 4, "max_depth": 3, "summary_gate_init": 0.001},
    "residual": {"block_tokens": 32, "compression_ratio": 4, "memory_budget": 64},
    "summary_contract": MARKERS | {"end_token_id": 9, "language": "kept as it is"},
}
PLAIN_SHAPE = {
    "schema": PLAIN_SCHEMA,
    "feature_view": "kept as it is",
    "compressor": GEOMETRY | {"compression_ratio": 16},
    "token_contract": MARKERS,
}
SHAPES = {
    "summary": (SUMMARY_SHAPE, replace(TINY, conv_group=16)),
    "plain": (PLAIN_SHAPE, replace(PLAIN, conv_group=16)),
}


def write(folder: Path, content: dict[str, Any], tensors: dict[str, np.ndarray], **manifest: Any) -> Path:
    """A released folder by other means than those under test."""
    from hashlib import sha256

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content))
    save_file(tensors, folder / "model.safetensors")
    digests = {
        "config_sha256": canonical_sha256(content),
        "safetensors_sha256": sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
    }
    (folder / "manifest.json").write_text(json.dumps(digests | manifest))
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_both_shapes_come_back_as_they_were(shape: str, tmp_path: Path) -> None:
    content, config = SHAPES[shape]
    first = write(tmp_path / "first", content, drawn(config))
    released = read_memory_config(first)
    assert released.config == replace(config, output_rms=0.5)
    assert released.template == TEMPLATE
    assert released.placeholder == (9 if shape == "summary" else 154820)
    network = load_memory(first)
    assert network.config == released.config
    for name, value in tensors_of(network):
        np.testing.assert_array_equal(value, drawn(config)[name])
    second = save_memory(tmp_path / "second", network, released=released)
    assert json.loads((second / "config.json").read_text()) == content
    before, after = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert {name: (value.dtype, value.tobytes()) for name, value in before.items()} == {
        name: (value.dtype, value.tobytes()) for name, value in after.items()
    }
    third = save_memory(tmp_path / "third", load_memory(second), released=read_memory_config(second))
    for name in ("config.json", "manifest.json", "model.safetensors"):
        assert (second / name).read_bytes() == (third / name).read_bytes()


def test_own_options_survive(tmp_path: Path) -> None:
    config = replace(
        TINY, dynamic_conv=True, query_init="pooled", rope_theta=5e5, rms_norm_eps=1e-5, gate_init=0.1, output_rms=0.5
    )
    network = memory_from_tensors(config, drawn(config), dtype="bfloat16")
    about = Released(config=config, template=TEMPLATE, placeholder=9, target_model="x/y")
    folder = save_memory(tmp_path / "folder", network, released=about)
    found = read_memory_config(folder)
    assert replace(found, source={}) == replace(about, source={})
    again = load_memory(folder, dtype="bfloat16")
    assert again.config == replace(config, rope_table_dtype="bfloat16")
    assert load_memory(folder).config == config
    for (name, left), (_, right) in zip(tensors_of(network), tensors_of(again), strict=True):
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes(), name


def test_manifest_of_an_export(tmp_path: Path) -> None:
    folder = save_memory(tmp_path / "folder", memory_from_tensors(TINY, drawn(TINY)), actor=ACTOR)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["parameters"] == TINY.parameter_count
    assert manifest["tensors"] == TINY.tensor_count == len(load_file(folder / "model.safetensors"))
    assert actor_of(folder) == ACTOR
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(ValueError, match="not empty"):
        save_memory(folder, memory_from_tensors(TINY, drawn(TINY)))


def test_committed_folder_and_its_rows() -> None:
    """Rows recorded from the float64 program beside a folder that was written once."""
    network = load_memory(GOLDEN / "tiny")
    recorded = load_file(GOLDEN / "rows.safetensors")
    given = {name.removeprefix("in."): value for name, value in recorded.items() if name.startswith("in.")}
    out = network(**given, slots=recorded["rows"].shape[1])
    np.testing.assert_allclose(out.rows, recorded["rows"], atol=2e-5)
    np.testing.assert_array_equal(out.mask, recorded["mask"])


def test_another_actor_is_refused(tmp_path: Path) -> None:
    folder = save_memory(tmp_path / "folder", memory_from_tensors(TINY, drawn(TINY)), actor=ACTOR)
    load_memory(folder, actor=ACTOR)
    load_memory(folder, actor=replace(ACTOR, tokenizer=None))
    for field, word in (("tensors", "weights"), ("tokenizer", "tokenizer"), ("template", "template of markers")):
        others = {"weights", "tokenizer", "template of markers"} - {word}
        with pytest.raises(InputError, match=f"another actor: it differs in {word}") as caught:
            load_memory(folder, actor=replace(ACTOR, **{field: "d" * 64}))
        assert not any(f"{other} (" in str(caught.value) for other in others)
        assert str(folder) in str(caught.value)
    load_memory(write(tmp_path / "bare", SUMMARY_SHAPE, drawn(TINY)), actor=ACTOR)  # carries none to compare with


def test_fingerprints_tell_actors_apart(tmp_path: Path) -> None:
    actor = tiny_actor.actor()
    first = fingerprint(actor, template=TEMPLATE)
    assert first == fingerprint(tiny_actor.actor(), template=TEMPLATE)
    assert fingerprint(None) == Fingerprint()
    other = fingerprint(tiny_actor.actor(seed=1), template=replace(TEMPLATE, m_open=(4,), m_close=()))
    assert None not in (first.tensors, other.tensors, first.template, other.template)
    assert first.tensors != other.tensors
    assert first.template != other.template
    embed = actor.weights["embed"]
    for changed in (embed.at[0, 0].add(1e-3), embed[::-1], embed[:, ::-1]):
        assert fingerprint(replace(actor, weights={**actor.weights, "embed": changed})).tensors != first.tensors
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), actor.weights)
    widened = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)
    assert len({fingerprint(replace(actor, weights=weights)).tensors for weights in (rounded, widened)}) == 1

    tokenizer = {"model": {"vocab": {"a": 0}}, "truncation": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))

    class Fast:
        def to_str(self) -> str:
            return json.dumps(tokenizer | {"truncation": {"max_length": 5}})

    by_file = {fingerprint(None, tokenizer=given) for given in (tmp_path, tmp_path / "tokenizer.json", Fast())}
    assert len(by_file) == 1
    with pytest.raises(InputError, match="cannot be read as a tokenizer"):
        fingerprint(None, tokenizer=tmp_path / "absent")
    with pytest.raises(InputError, match="fast tokenizer"):
        fingerprint(None, tokenizer=object())


def test_sharded_on_a_mesh(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", SUMMARY_SHAPE, drawn(TINY))
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    network = load_memory(folder, mesh=mesh)
    weights = network.weights()
    assert weights["local"]["mlp"]["gate"].sharding.spec == PartitionSpec(None, "fsdp", "tensor")
    assert weights["last"]["attention"]["q"].sharding.spec == PartitionSpec("fsdp", "tensor", None)
    np.testing.assert_allclose(
        network(**batch(TINY), slots=SLOTS).rows, load_memory(folder)(**batch(TINY), slots=SLOTS).rows, atol=1e-5
    )
    for name, value in tensors_of(network):
        np.testing.assert_array_equal(value, drawn(TINY)[name])
    with pytest.raises(ValueError, match="kv_heads = 2"):
        load_memory(folder, mesh=make_mesh(tensor=4, data=2))
    load_memory(folder, mesh=make_mesh(tensor=4, data=2), rules=Rules(kv_heads=None))


Spoil = Callable[[Path], None]


def config_with(**changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        for name, value in changes.items():
            section, _, field = name.partition("__")
            if field:
                content[section][field] = value
            else:
                content[section] = value
        manifest = json.loads((folder / "manifest.json").read_text()) | {"config_sha256": canonical_sha256(content)}
        (folder / "config.json").write_text(json.dumps(content))
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return spoil


def tensors_with(change: Callable[[dict[str, np.ndarray]], None]) -> Spoil:
    def spoil(folder: Path) -> None:
        tensors = dict(drawn(TINY))
        change(tensors)
        content = json.loads((folder / "config.json").read_text())
        shutil.rmtree(folder)
        write(folder, content, tensors)

    return spoil


def append(name: str, text: str) -> Spoil:
    def spoil(folder: Path) -> None:
        with (folder / name).open("a") as opened:
            opened.write(text)

    return spoil


def replaced(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text) and None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("spoil", "file", "words"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "", "holds no manifest.json"),
        (lambda folder: shutil.rmtree(folder), "", "holds no config.json"),
        (append("model.safetensors", "x"), "model.safetensors", "safetensors_sha256 .* fetch it anew"),
        (replaced("config.json", json.dumps({"compressor": {}})), "config.json", "config_sha256"),
        (replaced("config.json", "{"), "config.json", "cannot be read as JSON"),
        (replaced("manifest.json", "[]"), "manifest.json", "not a JSON object"),
        (replaced("manifest.json", "{}"), "manifest.json", "config_sha256 = None"),
        (config_with(compressor=3), "config.json", "has no object 'compressor'"),
        (config_with(residual=None), "config.json", "has no object 'residual'"),
        (config_with(compressor__hidden_size="32"), "config.json", "compressor.hidden_size = '32'"),
        (config_with(compressor__target_layer_ids=3), "config.json", "target_layer_ids = 3"),
        (config_with(compressor__target_hidden_size=64), "config.json", "target_hidden_size = 64"),
        (config_with(compressor__layer_types=["full_attention"] * 3), "config.json", "2 sliding layers and a full one"),
        (
            config_with(compressor__num_key_value_heads=3),
            "config.json",
            "describes no network: num_attention_heads = 4",
        ),
        (config_with(residual__compression_ratio=8), "config.json", "compression_ratio differ"),
        (
            config_with(summary_contract__student_summary_after_ids="3"),
            "config.json",
            "student_summary_after_ids = '3'",
        ),
        (config_with(compressor__intermediate_size=48), "model.safetensors", r"has shape \(32, 24\) and .* \(32, 48\)"),
        (tensors_with(lambda t: t.pop("norm.weight")), "model.safetensors", "lacks 1 of 57 tensors, norm.weight"),
        (
            tensors_with(lambda t: t.update({"extra": np.zeros(1, np.float32)})),
            "model.safetensors",
            "1 tensors that the network has not, extra",
        ),
        (
            tensors_with(lambda t: t.update({"norm.weight": np.full(32, np.nan, np.float32)})),
            "model.safetensors",
            "norm.weight has values that are not finite",
        ),
        (
            tensors_with(lambda t: t.update({"norm.weight": np.ones(32, np.int32)})),
            "model.safetensors",
            "norm.weight is of I32",
        ),
    ],
)
def test_refused_folders(spoil: Spoil, file: str, words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", SUMMARY_SHAPE, drawn(TINY))
    spoil(folder)
    with pytest.raises(InputError, match=words) as caught:
        load_memory(folder)
    assert str(folder / file) in str(caught.value)


def test_a_network_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    tensors = drawn(TINY) | {"norm.weight": np.full(32, np.inf, np.float32)}
    with pytest.raises(InputError, match=r"norm\.weight"):
        save_memory(tmp_path / "folder", memory_from_tensors(TINY, tensors))
    assert not list(tmp_path.iterdir())
