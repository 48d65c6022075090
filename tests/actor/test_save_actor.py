"""Export: what is written is what was loaded, under the names and in the layouts that transformers writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from actor_checks import FAMILIES, GOLDEN
from folders import copy, edit_config, same, stored
from safetensors.numpy import load_file

from remory_jax import make_mesh
from remory_jax.actor import ActorConfig, load_actor, save_actor
from remory_jax.actor.loading import export

OTHERS = ("model.visual.", "mtp.")
OWN_LAYOUT = ("gpt_oss_mxfp4", "qwen3_5_moe_vl")  # written dequantised, and with a tensor per expert


def language_model(folder: Path) -> dict[str, np.ndarray]:
    return {name: values for name, values in stored(folder).items() if not name.startswith(OTHERS)}


@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip(family: str, tmp_path: Path) -> None:
    actor = load_actor(GOLDEN / family, None)
    folder = save_actor(actor, tmp_path / "saved")
    again = load_actor(folder, None)
    assert again.config == actor.config
    assert same(again.weights, actor.weights)
    if family in OWN_LAYOUT:
        return
    wanted, written = language_model(GOLDEN / family), stored(folder)
    assert written.keys() == wanted.keys()
    for name, values in written.items():
        np.testing.assert_array_equal(values.astype(np.float32), wanted[name].astype(np.float32), err_msg=name)
        assert values.dtype == wanted[name].dtype or values.dtype == np.float32  # what is float32 in any case


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip_of_the_shared_models(family: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "golden" / "actors" / family
    folder = save_actor(load_actor(source), tmp_path / "saved")
    assert same(load_actor(folder).weights, load_actor(source).weights)
    if family in OWN_LAYOUT:
        return
    lines = [line.split("\t") for line in (source / "names.txt").read_text().splitlines()]
    wanted = {name: shape for name, shape, _ in lines if not name.startswith(OTHERS)}
    assert {name: str(list(values.shape)) for name, values in stored(folder).items()} == wanted
    for name, values in stored(folder).items():
        np.testing.assert_array_equal(values, stored(source)[name])


def test_mxfp4_becomes_plain_tensors_of_the_same_values(tmp_path: Path) -> None:
    actor = load_actor(GOLDEN / "gpt_oss_mxfp4")
    folder = save_actor(actor, tmp_path / "saved")
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    written, source = stored(folder), stored(GOLDEN / "gpt_oss_mxfp4")
    name = "model.layers.0.mlp.experts."
    assert f"{name}gate_up_proj_blocks" not in written
    experts, columns, groups, _ = source[f"{name}gate_up_proj_blocks"].shape
    assert written[f"{name}gate_up_proj"].shape == (experts, 32 * groups, columns)  # [E, in, out]
    group = next(group for group, leaf in enumerate(actor.weights["groups"]) if leaf)
    gate = np.asarray(actor.weights["groups"][group][0]["feed"]["gate"][0])
    np.testing.assert_array_equal(written[f"{name}gate_up_proj"][:, :, 0::2], gate)


def test_fused_experts_are_written_one_by_one(tmp_path: Path) -> None:
    folder = save_actor(load_actor(GOLDEN / "qwen3_5_moe_vl", None), tmp_path / "saved")
    written, source = stored(folder), stored(GOLDEN / "qwen3_5_moe_vl")
    name = "model.language_model.layers.0.mlp.experts."
    for expert, both in enumerate(source[f"{name}gate_up_proj"]):
        gate, up = np.split(both, 2)
        np.testing.assert_array_equal(written[f"{name}{expert}.gate_proj.weight"], gate)
        np.testing.assert_array_equal(written[f"{name}{expert}.up_proj.weight"], up)
        np.testing.assert_array_equal(written[f"{name}{expert}.down_proj.weight"], source[f"{name}down_proj"][expert])


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next"])
def test_from_a_mesh_and_slice_by_slice(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = load_actor(GOLDEN / family)
    actor = load_actor(GOLDEN / family, mesh=make_mesh(data=2, fsdp=2, tensor=2))
    monkeypatch.setattr(export, "_WHOLE", 0)  # these models are small enough to be fetched whole
    assert same(load_actor(save_actor(actor, tmp_path / "saved")).weights, alone.weights)


def test_shards_and_their_index(tmp_path: Path) -> None:
    actor = load_actor(GOLDEN / "llama")
    folder = save_actor(actor, tmp_path / "saved", max_shard_bytes=40_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    count = len(files)
    assert count > 3 and files == [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    found = {file: load_file(folder / file) for file in files}  # the format's own library
    assert {name: file for file, tensors in found.items() for name in tensors} == index["weight_map"]
    sizes = {file: sum(values.nbytes for values in tensors.values()) for file, tensors in found.items()}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert all(size <= 40_000 or len(found[file]) == 1 for file, size in sizes.items())
    assert same(load_actor(folder).weights, actor.weights)
    assert not (save_actor(actor, tmp_path / "one") / "model.safetensors.index.json").exists()


def test_dtype_in_file_and_config(tmp_path: Path) -> None:
    actor = load_actor(GOLDEN / "qwen3_5_vl")
    folder = save_actor(actor, tmp_path / "saved", dtype="bfloat16")
    config = json.loads((folder / "config.json").read_text())
    source = json.loads((GOLDEN / "qwen3_5_vl" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["text_config"].get("dtype", "bfloat16") == "bfloat16"
    assert {**config, "dtype": None, "text_config": None} == {**source, "dtype": None, "text_config": None}
    written = stored(folder)
    decay = "model.language_model.layers.0.linear_attn.A_log"
    assert {name for name, values in written.items() if values.dtype == np.float32} >= {decay}
    assert written["lm_head.weight"].dtype.name == "bfloat16"
    assert same(load_actor(folder, "bfloat16").weights, load_actor(GOLDEN / "qwen3_5_vl", "bfloat16").weights)
    with pytest.raises(ValueError, match="float32, bfloat16, float16"):
        save_actor(actor, tmp_path / "wrong", dtype="float8_e4m3fn")
    assert not (tmp_path / "wrong").exists()


def test_the_old_name_of_the_dtype_stays(tmp_path: Path) -> None:
    source = copy(GOLDEN / "llama", tmp_path / "source")
    (source / "config.json").write_text((GOLDEN / "llama" / "config_old.json").read_text())
    folder = save_actor(load_actor(source), tmp_path / "saved")
    config = json.loads((folder / "config.json").read_text())
    assert config["torch_dtype"] == "float32" and "dtype" not in config


def test_stop_ids_and_tokenizer_travel(tmp_path: Path) -> None:
    source = copy(GOLDEN / "qwen3", tmp_path / "source")
    edit_config(source, eos_token_id=5)
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    for name in ("tokenizer.json", "chat_template.jinja", "unrelated.txt"):
        (source / name).write_text(name)
    actor = load_actor(source)
    plain = save_actor(actor, tmp_path / "plain")
    assert load_actor(plain).config.stop_ids == (5, 7)
    assert not (plain / "tokenizer.json").exists()
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": 7, "top_p": 0.5}))
    whole = save_actor(actor, tmp_path / "whole", tokenizer_from=source)
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (whole / name).read_text() == (source / name).read_text()
    assert not (whole / "unrelated.txt").exists()
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        save_actor(actor, tmp_path / "none", tokenizer_from=tmp_path / "plain")


def test_only_an_empty_folder_is_written(tmp_path: Path) -> None:
    actor = load_actor(GOLDEN / "llama")
    (tmp_path / "empty").mkdir()
    save_actor(actor, tmp_path / "empty")
    for taken in (tmp_path / "empty", tmp_path / "empty" / "config.json"):
        with pytest.raises(ValueError, match="not empty"):
            save_actor(actor, taken)
    with pytest.raises(ValueError, match="max_shard_bytes = 0"):
        save_actor(actor, tmp_path / "other", max_shard_bytes=0)
    written_by_hand = ActorConfig(**{**vars(actor.config), "source": ""})
    with pytest.raises(ValueError, match=r"config\.json"):
        save_actor(type(actor)(config=written_by_hand, weights=actor.weights), tmp_path / "other")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty"]


def test_a_fault_while_writing_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, value, left = load_actor(GOLDEN / "llama"), export._value, [10]

    def failing(*arguments: object) -> np.ndarray:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("no space left on device")
        return value(*arguments)

    monkeypatch.setattr(export, "_value", failing)
    with pytest.raises(OSError, match="no space"):
        save_actor(actor, tmp_path / "saved")
    assert not list(tmp_path.iterdir())
