"""GGUF conversion: known weights come back under Hugging Face's names and in its row order; bad files say where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFEndian
from safetensors import safe_open
from safetensors.flax import load_file
from tiny_gguf import END, EXPERT_F, EXPERTS, HEAD_DIM, KINDS, START, TEMPLATE, THINK, TOKENS, D, F, Tiny, V, tiny
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

from costmodel_jax.errors import InputError
from remory_jax.actor.loading import gguf as conversion
from remory_jax.actor.loading.gguf import convert_gguf

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("architecture", "tied"), [("llama", True), ("llama", False), ("qwen3", True)])
def test_known_weights_come_back(tmp_path: Path, architecture: str, tied: bool, kind: str) -> None:
    model = tiny(architecture, kind=kind, tied=tied)
    folder = convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "hf", dtype="float32")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    found = load_file(folder / "model.safetensors")
    assert found.keys() == model.weights.keys()
    for name, expected in model.weights.items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
    with safe_open(folder / "model.safetensors", framework="flax") as file:
        assert file.metadata() == {"format": "pt"}


def test_experts_are_unstacked(tmp_path: Path) -> None:
    model = tiny("qwen3moe", kind="Q8_0", tied=False)
    folder = convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "hf", dtype="float32")
    found = load_file(folder / "model.safetensors")
    assert found.keys() == model.weights.keys()
    assert all((found[name] == expected).all() for name, expected in model.weights.items())
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == "qwen3_moe"
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (EXPERTS, 2, EXPERT_F)
    assert config.norm_topk_prob is True


def test_bfloat16_is_the_nearest(tmp_path: Path) -> None:
    model = tiny("qwen3", kind="F16")
    found = load_file(convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "hf") / "model.safetensors")
    for name, expected in model.weights.items():
        assert found[name].dtype == jnp.bfloat16
        np.testing.assert_array_equal(found[name], jnp.asarray(expected).astype(jnp.bfloat16), err_msg=name)


def test_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tiny(kind="Q4_1").write(tmp_path / "m.gguf")
    whole = convert_gguf(file, tmp_path / "whole") / "model.safetensors"
    monkeypatch.setattr(conversion, "_BLOCK", 5 * D)
    assert (convert_gguf(file, tmp_path / "rows") / "model.safetensors").read_bytes() == whole.read_bytes()


def test_config_of_llama(tmp_path: Path) -> None:
    folder = convert_gguf(tiny().write(tmp_path / "m.gguf"), tmp_path / "hf")
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == "llama"
    assert config.architectures == ["LlamaForCausalLM"]
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.vocab_size) == (D, F, 2, V)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert config.rms_norm_eps == 1e-5  # the file holds the nearest float32
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1e5}
    assert config.max_position_embeddings == 512
    assert config.tie_word_embeddings is True
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (START, END, END)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == END


def test_config_of_qwen3(tmp_path: Path) -> None:
    model = tiny("qwen3", tied=False)
    del model.keys["qwen3.attention.head_count_kv"], model.keys["qwen3.rope.freq_base"]
    with pytest.raises(
        InputError, match=r"blk\.0\.attn_k\.weight has shape \(64, 64\) and its keys ask for \(128, 64\)"
    ):
        convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "hf")  # without the key: as many as query heads
    model.keys |= {
        "qwen3.attention.head_count_kv": 2,
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 128,
        "tokenizer.ggml.eot_token_id": THINK,
    }
    folder = convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "hf")
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.head_dim, config.tie_word_embeddings) == ("qwen3", HEAD_DIM, False)
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    assert config.rope_parameters.items() >= rope.items()
    assert config.eos_token_id == [END, THINK]


def test_tokenizer(tmp_path: Path) -> None:
    folder = convert_gguf(tiny().write(tmp_path / "m.gguf"), tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("<|start|>the the<think>\u00e9<|end|>").input_ids
    expected = [START, TOKENS.index("t"), 256, 258, THINK, TOKENS.index("\u00c3"), TOKENS.index("\u00a9"), END]
    assert ids == expected
    assert tokenizer.decode(ids) == "<|start|>the the<think>\u00e9<|end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the the<think>\u00e9"  # user-defined, not control
    assert len(tokenizer) == V - 1  # without the place-holder
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|start|>", "<|end|>", "<|end|>")
    assert tokenizer.model_max_length == 512
    assert tokenizer.chat_template == TEMPLATE
    messages = [{"role": "user", "content": "the"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|start|>the<|end|>"


def test_tokens_put_around_every_text(tmp_path: Path) -> None:
    model = tiny()
    model.keys |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = AutoTokenizer.from_pretrained(convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "hf"))
    assert tokenizer("he").input_ids == [START, 256, END]
    assert tokenizer("he", add_special_tokens=False).input_ids == [256]


# What the published tokenizers of each name make of one text, worked out by hand.
SPLITS = {
    "gpt-2": ["I", "'", "LL", " pay", " 12345", " now", "!!", "\n ", " ok"],
    "smollm": ["I", "'", "LL", " pay", " ", "1", "2", "3", "4", "5", " now", "!!", "\n ", " ok"],
    "qwen2": ["I", "'LL", " pay", " ", "1", "2", "3", "4", "5", " now", "!!\n", " ", " ok"],
    "llama-bpe": ["I", "'LL", " pay", " ", "123", "45", " now", "!!\n", " ", " ok"],
    "default": ["I", "'", "LL", " pay", " ", "123", "45", " now", "!!", "\n ", " ok"],
}


@pytest.mark.parametrize("rule", SPLITS)
def test_splitting_rules(tmp_path: Path, rule: str) -> None:
    model = tiny()
    model.keys["tokenizer.ggml.pre"] = rule
    folder = convert_gguf(model.write(tmp_path / "m.gguf"), tmp_path / "hf")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str("I'LL pay 12345 now!!\n  ok")
    assert [piece.replace("\u0120", " ").replace("\u010a", "\n") for piece, _ in pieces] == SPLITS[rule]
    starts = tokenizer.encode("he").ids[0] == START
    assert starts is (rule == "llama-bpe")  # which begins every text where the file does not say
    decomposed = tokenizer.encode("e\u0301", add_special_tokens=False).ids
    assert (decomposed == tokenizer.encode("\u00e9", add_special_tokens=False).ids) is (rule == "qwen2")


def drop_key(name: str) -> Callable[[Tiny], None]:
    return lambda model: model.keys.pop(name) and None


def set_key(name: str, value: object) -> Callable[[Tiny], None]:
    return lambda model: model.keys.update({name: value})


def drop_tensor(name: str) -> Callable[[Tiny], None]:
    return lambda model: model.tensors.pop(name) and None


def set_tensor(name: str, values: np.ndarray, kind: GGMLQuantizationType) -> Callable[[Tiny], None]:
    return lambda model: model.tensors.update({name: (values, kind)})


def rename(name: str) -> Callable[[Tiny], None]:
    def change(model: Tiny) -> None:
        model.architecture = name

    return change


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


WRONG = {
    "architecture": (rename("qwen2"), r"general\.architecture = 'qwen2'; this can convert llama, qwen3, qwen3moe"),
    "missing key": (drop_key("llama.embedding_length"), r"llama\.embedding_length is missing"),
    "missing tokens": (drop_key("tokenizer.ggml.tokens"), r"tokenizer\.ggml\.tokens is missing"),
    "key type": (set_key("llama.block_count", "two"), r"llama\.block_count holds a str; a single int is needed"),
    "key per layer": (set_key("llama.attention.head_count_kv", [2, 2]), r"head_count_kv holds a list; a single int"),
    "item type": (set_key("tokenizer.ggml.tokens", [1, 2]), r"tokenizer\.ggml\.tokens is no array of str"),
    "zero": (set_key("llama.attention.head_count", 0), r"head_count = 0; it must be between 1 and"),
    "too many layers": (set_key("llama.block_count", 2**31 - 1), r"has 20 tensors for 2147483647 layers"),
    "kv heads": (set_key("llama.attention.head_count_kv", 3), r"head_count_kv = 3 does not divide .*head_count = 4"),
    "heads": (set_key("llama.attention.head_count", 6), r"embedding_length = 64 is not divided by 6 heads"),
    "odd heads": (set_key("llama.attention.key_length", 15), r"rope\.dimension_count differs from the size of a head"),
    "epsilon": (set_key("llama.attention.layer_norm_rms_epsilon", float("nan")), r"rms_epsilon = nan; it must be pos"),
    "unknown key": (set_key("llama.attention.sliding_window", 64), r"sliding_window is not understood"),
    "experts": (set_key("llama.expert_count", 8), r"llama\.expert_count is not understood"),
    "rope": (set_key("llama.rope.scaling.type", "longrope"), r"scaling\.type = 'longrope'; none, linear and yarn"),
    "vocabulary": (set_key("llama.vocab_size", 7), r"vocab_size differs from the 263 items"),
    "split": (set_key("split.count", 3), r"is one of 3 parts"),
    "sentencepiece": (set_key("tokenizer.ggml.model", "llama"), r"tokenizer\.ggml\.model = 'llama'; only byte-level"),
    "rule": (set_key("tokenizer.ggml.pre", "tekken"), r"tokenizer\.ggml\.pre = 'tekken' names no splitting rule"),
    "types": (set_key("tokenizer.ggml.token_type", [1]), r"have 263 and 1 items"),
    "twice": (set_key("tokenizer.ggml.tokens", [*TOKENS[:-2], "a", "b"]), r"holds the same token twice"),
    "merge": (set_key("tokenizer.ggml.merges", ["h e", "q q"]), r"tokenizer\.ggml\.merges, item 1"),
    "end": (set_key("tokenizer.ggml.eos_token_id", V), r"eos_token_id = 263; the vocabulary has 263 tokens"),
    "start": (set_key("tokenizer.ggml.add_eos_token", 1), r"add_eos_token holds a int; a single bool"),
    "missing tensor": (drop_tensor("blk.1.ffn_up.weight"), r"tensor blk\.1\.ffn_up\.weight is missing"),
    "extra tensor": (set_tensor("../x", floats(4), KINDS["F32"]), r"tensor \.\./x has no place in a llama model"),
    "frequencies": (
        set_tensor("rope_freqs.weight", floats(8), KINDS["F32"]),
        r"tensor rope_freqs\.weight has no place",
    ),
    "shape": (
        set_tensor("output_norm.weight", floats(32), KINDS["F32"]),
        r"tensor output_norm\.weight has shape \(32,\) and its keys ask for \(64,\)",
    ),
    "transposed": (
        set_tensor("token_embd.weight", floats(D, V), KINDS["F32"]),
        r"token_embd\.weight has shape \(64, 263\)",
    ),
    "quantisation": (
        set_tensor("blk.0.attn_v.weight", np.zeros((32, 64), np.int8), GGMLQuantizationType.I8),
        r"tensor blk\.0\.attn_v\.weight has quantisation type I8, which the gguf package cannot dequantise",
    ),
    "byte order": (lambda model: setattr(model, "endian", GGUFEndian.BIG), r"is a big-endian GGUF file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, case: str) -> None:
    change, message = WRONG[case]
    model = tiny()
    change(model)
    file = model.write(tmp_path / "m.gguf")
    with pytest.raises(InputError, match=message) as caught:
        convert_gguf(file, tmp_path / "hf")
    assert caught.value.path == str(file)
    assert not (tmp_path / "hf").exists()


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = tiny(kind="Q8_0").write(tmp_path / "m.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    for size in [*range(0, 64, 5), *range(64, len(whole), len(whole) // 40), len(whole) - 1]:
        file.write_bytes(whole[:size])
        with pytest.raises(InputError) as caught:
            convert_gguf(file, tmp_path / "hf")
        assert caught.value.path == str(file)
    # Cut within the data of the last tensor, the message names it.
    assert "tensor blk.1.ffn_down.weight ends at byte" in str(caught.value)
    assert not (tmp_path / "hf").exists()


def patched(whole: bytes, after: bytes, skip: int, new: bytes) -> bytes:
    at = whole.index(after) + len(after) + skip
    return whole[:at] + new + whole[at + len(new) :]


def test_false_numbers_in_the_header(tmp_path: Path) -> None:
    whole = tiny().write(tmp_path / "m.gguf").read_bytes()
    huge = (2**60).to_bytes(8, "little")
    one = b"blk.0.attn_norm.weight"  # then: dimensions u32, size u64, type u32, offset u64
    cases = {
        "is truncated": patched(whole, b"tokenizer.ggml.token_type", 4 + 4, huge),
        "is truncated: ": patched(whole, b"tokenizer.chat_template", 4, huge),
        "tensor blk.0.attn_norm.weight has quantisation type 999": patched(whole, one, 12, (999).to_bytes(4, "little")),
        "tensor blk.0.attn_norm.weight has dimensions": patched(whole, one, 4, huge),
        "tensor blk.0.attn_norm.weight ends at byte": patched(whole, one, 16, huge),
        "is no readable GGUF file": patched(whole, b"tokenizer.chat_template", 0, (77).to_bytes(4, "little")),
        "tokenizer.chat_template is not UTF-8": patched(whole, b"tokenizer.chat_template", 12, b"\xff\xfe"),
        "GGUF magic invalid": b"<!DOCTYPE html>" + whole,
    }
    file = tmp_path / "bad.gguf"
    for message, content in cases.items():
        file.write_bytes(content)
        with pytest.raises(InputError) as caught:
            convert_gguf(file, tmp_path / "hf")
        assert str(caught.value).startswith(f"{file}: ")
        assert message in str(caught.value)
    with pytest.raises(InputError, match=r"absent\.gguf: cannot be read"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "hf")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tiny().write(tmp_path / "m.gguf")
    folder = convert_gguf(file, tmp_path / "hf")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        convert_gguf(file, folder, dtype="float32")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_nothing_outside_the_folder_is_written(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").symlink_to(outside)
    convert_gguf(tiny().write(tmp_path / "m.gguf"), folder)
    assert outside.read_text() == "{}"
    assert not (folder / "config.json").is_symlink()


def test_bad_arguments(tmp_path: Path) -> None:
    file = tiny().write(tmp_path / "m.gguf")
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(ValueError, match=r"holds other weights \(model-00001-of-00002\.safetensors\)"):
        convert_gguf(file, folder)
