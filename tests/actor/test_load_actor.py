"""Loading: the right numbers in the right places, on every mesh, in pieces or whole, in little memory."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from actor_checks import FAMILIES, GOLDEN
from folders import copy, same, stored, write
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from tiny_gguf import tiny

from remory_jax import make_mesh
from remory_jax.actor import ActorConfig, Rules, abstract_actor, init_actor, load_actor
from remory_jax.actor.decoder import parameters
from remory_jax.actor.loading import converted, load, pieces
from remory_jax.actor.loading.folder import read_folder
from remory_jax.actor.loading.mxfp4 import decode
from remory_jax.actor.loading.plan import plan
from remory_jax.actor.parameters import random_values
from remory_jax.actor.sharding import DEFAULT_RULES, shardings
from remory_jax.mesh import AXES

MESHES = ((1, 1, 1), (8, 1, 1), (2, 2, 2), (1, 8, 1), (1, 1, 2))
REPOSITORY = Path(__file__).resolve().parents[2]


def mesh_of(shape: tuple[int, int, int]) -> Mesh:
    data, fsdp, tensor = shape
    return make_mesh(data=data, fsdp=fsdp, tensor=tensor, devices=jax.devices()[: data * fsdp * tensor])


def layer(tree: Any, config: ActorConfig, index: int) -> dict[str, Any]:
    """One layer's weights, wherever it is stacked."""
    for group, definitions in zip(tree["groups"], parameters(config)["groups"], strict=True):
        for stack, parameter in zip(group, definitions, strict=True):
            layers = parameter["mixer_norm"].layers
            if index in layers:
                host = jax.tree.map(np.asarray, dict(stack))
                return jax.tree.map(operator.itemgetter(layers.index(index)), host)
    raise AssertionError(index)


@pytest.fixture
def read(request: pytest.FixtureRequest) -> tuple[ActorConfig, Any, dict[str, np.ndarray]]:
    actor = load_actor(GOLDEN / request.param)
    wanted = {name: np.asarray(values, np.float32) for name, values in stored(GOLDEN / request.param).items()}
    return actor.config, actor.weights, wanted


@pytest.mark.parametrize("read", ["llama"], indirect=True)
def test_projections_are_transposed_and_split_by_head(read: tuple[ActorConfig, Any, dict[str, np.ndarray]]) -> None:
    config, weights, file = read
    np.testing.assert_array_equal(weights["embed"], file["model.embed_tokens.weight"])
    np.testing.assert_array_equal(weights["norm"], file["model.norm.weight"])
    for index in range(len(config.layers)):
        ours, name = layer(weights, config, index), f"model.layers.{index}."
        q = file[f"{name}self_attn.q_proj.weight"]  # [H hd, D]
        heads = ours["mixer"]["q"].shape[1]
        for head, rows in enumerate(np.split(q, heads)):
            np.testing.assert_array_equal(ours["mixer"]["q"][:, head], rows.T)
        o = file[f"{name}self_attn.o_proj.weight"]  # [D, H hd]
        for head, columns in enumerate(np.split(o, heads, axis=1)):
            np.testing.assert_array_equal(ours["mixer"]["o"][head], columns.T)
        np.testing.assert_array_equal(ours["feed"]["down"], file[f"{name}mlp.down_proj.weight"].T)
        np.testing.assert_array_equal(ours["feed_norm"], file[f"{name}post_attention_layernorm.weight"])


@pytest.mark.parametrize("read", ["qwen3_moe", "qwen3_5_moe_vl"], indirect=True)
def test_experts_from_a_tensor_each_and_from_one(read: tuple[ActorConfig, Any, dict[str, np.ndarray]]) -> None:
    config, weights, file = read
    ours = layer(weights, config, 1)["feed"]
    for expert in range(ours["gate"].shape[0]):
        if config.nested:
            both = file["model.language_model.layers.1.mlp.experts.gate_up_proj"][expert]
            gate, up = np.split(both, 2)
            down = file["model.language_model.layers.1.mlp.experts.down_proj"][expert]
        else:
            gate, up, down = (
                file[f"model.layers.1.mlp.experts.{expert}.{n}_proj.weight"] for n in ("gate", "up", "down")
            )
        for name, values in (("gate", gate), ("up", up), ("down", down)):
            np.testing.assert_array_equal(ours[name][expert], values.T)


@pytest.mark.parametrize("read", ["qwen3_5", "qwen3_next"], indirect=True)
def test_delta_net_inputs_flat_and_grouped(read: tuple[ActorConfig, Any, dict[str, np.ndarray]]) -> None:
    config, weights, file = read
    ours, name = layer(weights, config, 0)["mixer"], "model.layers.0.linear_attn."
    key_heads, key_dim = ours["q"].shape[1:]
    value_heads, value_dim = ours["v"].shape[1:]
    ratio = value_heads // key_heads
    taps = file[f"{name}conv1d.weight"][:, 0]  # [Q | K | V, taps]
    ends = np.cumsum([key_heads * key_dim, key_heads * key_dim])
    for part, rows in zip("qkv", np.split(taps, ends), strict=True):
        np.testing.assert_array_equal(ours[f"{part}_conv"].reshape(rows.shape), rows)
    if config.family == "qwen3_5":
        rows = np.split(file[f"{name}in_proj_qkv.weight"], ends)
        z, b = file[f"{name}in_proj_z.weight"], file[f"{name}in_proj_b.weight"]
    else:  # per key head: q, k, then its value heads' v and z; b and a
        block = ratio * value_dim
        grouped = file[f"{name}in_proj_qkvz.weight"].reshape(key_heads, -1, config.hidden)
        *rows, z = (
            part.reshape(-1, config.hidden)
            for part in np.split(grouped, [key_dim, 2 * key_dim, 2 * key_dim + block], axis=1)
        )
        b = file[f"{name}in_proj_ba.weight"].reshape(key_heads, 2, ratio, -1)[:, 0].reshape(value_heads, -1)
    for part, wanted in zip("qkvz", (*rows, z), strict=True):
        np.testing.assert_array_equal(ours[part].reshape(config.hidden, -1), wanted.T)
    np.testing.assert_array_equal(ours["b"], b.T)


@pytest.mark.parametrize("read", ["glm4_moe_lite"], indirect=True)
def test_latent_expansion_is_split(read: tuple[ActorConfig, Any, dict[str, np.ndarray]]) -> None:
    config, weights, file = read
    ours = layer(weights, config, 0)["mixer"]
    heads, nope = ours["k_up"].shape[1:]
    both = file["model.layers.0.self_attn.kv_b_proj.weight"].reshape(heads, -1, ours["k_up"].shape[0])
    for head in range(heads):
        np.testing.assert_array_equal(ours["k_up"][:, head], both[head, :nope].T)
        np.testing.assert_array_equal(ours["v_up"][:, head], both[head, nope:].T)


def test_gpt_oss_columns_are_interleaved_and_mxfp4_is_exact() -> None:
    actor, file = load_actor(GOLDEN / "gpt_oss_mxfp4", "bfloat16"), stored(GOLDEN / "gpt_oss_mxfp4")
    ours = layer(actor.weights, actor.config, 1)["feed"]
    name = "model.layers.1.mlp.experts."
    blocks, scales = file[f"{name}gate_up_proj_blocks"], file[f"{name}gate_up_proj_scales"]
    levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for expert, row, group in ((0, 0, 0), (1, 5, 0), (2, 30, 0), (3, 31, 0)):
        for place, byte in enumerate(blocks[expert, row, group]):
            for half, nibble in enumerate((byte & 15, byte >> 4)):
                value = (-1 if nibble & 8 else 1) * levels[nibble & 7] * 2.0 ** (int(scales[expert, row, group]) - 127)
                column = ours["up" if row % 2 else "gate"][expert, 32 * group + 2 * place + half]
                assert float(column[row // 2]) == value
    bias = np.asarray(file[f"{name}gate_up_proj_bias"])
    np.testing.assert_array_equal(ours["gate_bias"], bias[:, 0::2])
    np.testing.assert_array_equal(ours["up_bias"], bias[:, 1::2])
    assert ours["gate"].dtype == ml_dtypes.bfloat16


def test_mxfp4_over_the_whole_range_of_exponents() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (1, 1, 1))  # [E, out, pairs]: every pair of values
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for scale in (1, 2, 64, 126, 127, 128, 200, 252):
        ours = decode(jnp.asarray(codes), jnp.full(codes.shape, scale, jnp.uint8))[0, :, 0]
        wanted = np.stack([levels[np.arange(256) % 16], levels[np.arange(256) // 16]], -1).reshape(-1)
        wanted = np.ldexp(wanted, scale - 127)
        normal = (np.abs(wanted) >= 2.0**-126) | (wanted == 0)
        np.testing.assert_array_equal(np.asarray(ours, np.float64)[normal], wanted[normal])
        np.testing.assert_array_equal(ours.astype(jnp.bfloat16).astype(jnp.float32), ours)


@pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("family", FAMILIES)
def test_shards_hold_the_bits_of_one_device(family: str, shape: tuple[int, int, int]) -> None:
    mesh = mesh_of(shape)
    actor, alone = load_actor(GOLDEN / family, mesh=mesh), load_actor(GOLDEN / family)
    assert same(actor.weights, alone.weights)
    wanted = shardings(parameters(actor.config), mesh, DEFAULT_RULES)
    jax.tree.map(lambda leaf, sharding: _is(leaf.sharding, sharding), actor.weights, wanted)
    assert actor.config == alone.config and actor.mesh == mesh


def _is(ours: object, wanted: object) -> None:
    assert ours == wanted


@pytest.mark.parametrize(
    ("family", "shape", "dtype"),
    [
        ("llama", None, "float32"),
        ("qwen3_moe", (1, 1, 2), "float32"),
        ("qwen3_5_moe_vl", (1, 2, 2), "bfloat16"),
        ("qwen3_next", (2, 2, 2), "bfloat16"),
        ("gpt_oss_mxfp4", None, "float32"),
        ("gpt_oss_mxfp4", (2, 2, 2), "bfloat16"),
    ],
)
def test_many_pieces_make_the_same_bits(
    family: str, shape: tuple[int, int, int] | None, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_actor(GOLDEN / family, dtype)
    taken: list[int] = []

    def counted(size: int, each: int, limit: int) -> list[slice]:
        found = pieces.cuts(size, each, limit)
        taken.append(len(found))
        return found

    monkeypatch.setattr(load, "_LEAST", 1)  # the largest tensor of such models has some kilobytes
    monkeypatch.setattr("remory_jax.actor.loading.buffers.cuts", counted)
    cut = load_actor(GOLDEN / family, dtype, None if shape is None else mesh_of(shape))
    assert max(taken) > 4
    assert same(cut.weights, whole.weights)


@pytest.mark.parametrize(("size", "each", "limit"), [(10, 4, 12), (1, 100, 1), (7, 1, 100), (9, 4, 12), (5, 0, 1)])
def test_cuts_cover_everything_with_equal_lengths(size: int, each: int, limit: int) -> None:
    found = pieces.cuts(size, each, limit)
    assert sorted({row for cut in found for row in range(size)[cut]}) == list(range(size))
    assert len({cut.stop - cut.start for cut in found}) == 1
    assert all((cut.stop - cut.start) * each <= limit or cut.stop - cut.start == 1 for cut in found)


def test_dtypes() -> None:
    exact, folder = load_actor(GOLDEN / "qwen3_next"), GOLDEN / "qwen3_next"
    for dtype in ("bfloat16", jnp.float16):
        cast = load_actor(folder, dtype)
        assert cast.dtype == jnp.dtype(dtype)
        decay = layer(cast.weights, cast.config, 0)["mixer"]["decay"]
        np.testing.assert_array_equal(decay, layer(exact.weights, exact.config, 0)["mixer"]["decay"])
        assert decay.dtype == np.float32
        expected = jax.tree.map(lambda x, y: np.asarray(x).astype(y.dtype), exact.weights, cast.weights)
        assert same(cast.weights, expected)
    assert load_actor(folder, None).dtype == jnp.bfloat16  # as stored
    for wrong in ("int8", "float64", "half-precision", jnp.int32):
        with pytest.raises(ValueError, match="float32, bfloat16, float16"):
            load_actor(folder, wrong)


def test_float64_is_read_as_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy(GOLDEN / "llama", tmp_path / "model")
    monkeypatch.setitem(sys.modules["folders"].DTYPES, "F64", np.float64)
    write(folder / "model.safetensors", {n: np.asarray(v, np.float64) for n, v in stored(folder).items()})
    assert same(load_actor(folder).weights, load_actor(GOLDEN / "llama").weights)
    assert load_actor(folder, None).dtype == jnp.float32


def test_what_is_no_part_of_the_model_is_left_out(tmp_path: Path) -> None:
    llama = copy(GOLDEN / "llama", tmp_path / "llama")
    extra = {"lm_head.weight": stored(llama)["model.embed_tokens.weight"]}  # tied, but written all the same
    extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    write(llama / "more.safetensors", extra)
    assert same(load_actor(llama).weights, load_actor(GOLDEN / "llama").weights)
    glm = copy(GOLDEN / "glm4_moe_lite", tmp_path / "glm")
    depth = len(load_actor(glm).config.layers)
    write(glm / "more.safetensors", {f"model.layers.{depth}.eh_proj.weight": np.zeros((2, 2), np.float32)})
    assert same(load_actor(glm).weights, load_actor(GOLDEN / "glm4_moe_lite").weights)


def test_either_prefix_of_a_nested_model(tmp_path: Path) -> None:
    folder = copy(GOLDEN / "qwen3_5_vl", tmp_path / "model")
    text = {name.replace("model.language_model.", "model."): values for name, values in stored(folder).items()}
    write(folder / "model.safetensors", text)
    assert same(load_actor(folder).weights, load_actor(GOLDEN / "qwen3_5_vl").weights)


def test_mesh_is_checked_before_any_file_is_read(tmp_path: Path) -> None:
    folder = copy(GOLDEN / "llama", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="kv_heads"):
        load_actor(folder, mesh=mesh_of((1, 1, 8)))
    with pytest.raises(ValueError, match=r"Rules\.layers"):
        load_actor(folder, mesh=mesh_of((1, 1, 1)), rules=Rules(layers="data"))


def test_mxfp4_needs_whole_bytes_on_every_device() -> None:
    config = ActorConfig.from_hf(GOLDEN / "gpt_oss_mxfp4")
    sources = plan(config, read_folder(GOLDEN / "gpt_oss_mxfp4"), GOLDEN)
    shapes = jax.tree.leaves(abstract_actor(config, mesh=mesh_of((1, 1, 1))).weights)
    for fsdp in (1, 16, 32):  # of 32 rows
        mesh = AbstractMesh((1, fsdp, 1), AXES)
        placed = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=NamedSharding(mesh, each.sharding.spec))
            for each in shapes
        ]
        if fsdp < 32:
            load.check_pairs(placed, sources)
            continue
        with pytest.raises(ValueError, match="two rows into a byte"):
            load.check_pairs(placed, sources)


def test_gguf_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tiny("llama")
    file = made.write(tmp_path / "tiny.gguf")
    actor = load_actor(file)
    np.testing.assert_array_equal(actor.weights["embed"], made.weights["model.embed_tokens.weight"])
    monkeypatch.setattr(converted, "convert_gguf", None)
    assert same(load_actor(file).weights, actor.weights)
    monkeypatch.undo()


def test_abstract_actor_takes_no_memory_and_random_values_do_not_depend_on_the_mesh() -> None:
    config = ActorConfig.from_hf(GOLDEN / "llama")
    mesh = mesh_of((1, 1, 2))
    abstract, random = abstract_actor(config, "bfloat16", mesh), init_actor(config, 3, "bfloat16", mesh)
    for shape, value in zip(jax.tree.leaves(abstract), jax.tree.leaves(random), strict=True):
        assert isinstance(shape, jax.ShapeDtypeStruct)
        assert (shape.shape, shape.dtype, shape.sharding) == (value.shape, value.dtype, value.sharding)
    embed, (group, *_) = random.weights["embed"], random.weights["groups"]
    tree = parameters(config)
    assert same(random_values(tree["embed"], 3, "bfloat16"), embed)  # as on one device
    assert same(random_values(tree["groups"][0][0]["mixer"]["q"], 3, "bfloat16"), group[0]["mixer"]["q"])
    assert np.std(np.asarray(embed, np.float32)) > 0.1
    with pytest.raises(ValueError, match="float32, bfloat16, float16"):
        abstract_actor(config, "int4")


def _python(script: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_host_memory_stays_under_a_third_more_than_the_largest_tensor(tmp_path: Path) -> None:
    """With the process's own shards; on the CPU that is all weights."""
    process = _python("load_memory.py", tmp_path)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    over, naive, largest = (float(word) for word in out.split()[-3:])
    assert over < 1.3 * largest < naive, out  # a loader that holds the whole file would be seen


@pytest.mark.slow
def test_two_processes_read_half_each(tmp_path: Path) -> None:
    processes = [_python("load_two.py", rank, tmp_path) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
