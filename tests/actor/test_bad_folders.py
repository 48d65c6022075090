"""Folders that are no model: an error that names file and tensor, and nothing left in memory."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from actor_checks import GOLDEN
from folders import copy, edit_config, stored, write

from costmodel_jax.errors import InputError
from remory_jax.actor import load_actor
from remory_jax.actor.loading import load, pieces

Q = "model.layers.1.self_attn.q_proj.weight"
WEIGHTS = "model.safetensors"
Spoil = Callable[[Path], object]


def header(folder: Path) -> tuple[dict[str, dict[str, object]], bytes]:
    raw = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def change(**entries: object) -> Spoil:
    """Replace fields of one tensor's header entry."""

    def spoil(folder: Path) -> None:
        found, _ = header(folder)
        write(folder / WEIGHTS, stored(folder), **{Q: found[Q] | entries})

    return spoil


def shift(folder: Path) -> None:
    """Let a tensor begin inside the one before it."""
    found, _ = header(folder)
    start, stop = found[Q]["data_offsets"]  # type: ignore[misc]
    write(folder / WEIGHTS, stored(folder), **{Q: found[Q] | {"data_offsets": [start - 4, stop - 4]}})


def without(name: str) -> Spoil:
    return lambda folder: write(folder / WEIGHTS, {n: v for n, v in stored(folder).items() if n != name})


def with_one_more(name: str, values: np.ndarray) -> Spoil:
    return lambda folder: write(folder / "extra.safetensors", {name: values})


def cut(count: int) -> Spoil:
    """Drop bytes at the end."""
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-count])


def begin(data: bytes) -> Spoil:
    """Replace the first bytes."""
    return lambda folder: (folder / WEIGHTS).write_bytes(data + (folder / WEIGHTS).read_bytes()[len(data) :])


def raw_header(text: bytes) -> Spoil:
    return lambda folder: (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))


def index(**places: str) -> Spoil:
    def spoil(folder: Path) -> None:
        listed = dict.fromkeys(stored(folder), WEIGHTS) | places
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))

    return spoil


def rename(name: str) -> Spoil:
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


def quantised(method: str) -> Spoil:
    return lambda folder: edit_config(folder, quantization_config={"quant_method": method})


HUGE = (2**40).to_bytes(8, "little")
CASES: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "truncated": (cut(1000), (WEIGHTS, "truncated", "tensor model.", "fetch")),
    "no header": (lambda f: (f / WEIGHTS).write_bytes(b"abc"), (WEIGHTS, "truncated", "3 bytes")),
    "empty": (lambda f: (f / WEIGHTS).write_bytes(b""), (WEIGHTS, "truncated")),
    "absurd header length": (begin(HUGE), (WEIGHTS, str(2**40))),
    "pointer": (
        lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\n"),
        (WEIGHTS, "git lfs pull"),
    ),
    "not JSON": (raw_header(b"{nonsense"), (WEIGHTS, "not JSON")),
    "no object": (raw_header(b"[1]"), (WEIGHTS, "not a JSON object")),
    "tensor twice in a header": (raw_header(b'{"a": {}, "a": {}}'), (WEIGHTS, "a stands twice")),
    "entry without offsets": (
        raw_header(b'{"a": {"dtype": "F32", "shape": [1]}}'),
        (WEIGHTS, "tensor a", "data_offsets"),
    ),
    "negative shape": (change(shape=[-1, 4]), (WEIGHTS, Q, "data_offsets")),
    "offsets beyond the file": (change(data_offsets=[0, 2**50]), (WEIGHTS, Q, "truncated")),
    "offsets the wrong way round": (change(data_offsets=[64, 0]), (WEIGHTS, Q)),
    "offsets of another size": (change(data_offsets=[0, 4]), (WEIGHTS, Q, "[0, 4]", "(64, 32)")),
    "overlap": (shift, (WEIGHTS, Q, "overlaps")),
    "other shape": (change(shape=[32, 64]), (WEIGHTS, Q, "(32, 64)", "(64, 32)", "config.json")),
    "missing tensor": (without(Q), (Q, "missing tensors (1)")),
    "unexpected tensor": (
        with_one_more("model.layers.9.mlp.up_proj.weight", np.zeros((2, 2), np.float32)),
        ("extra.safetensors", "model.layers.9.mlp.up_proj.weight", "unexpected tensors (1)"),
    ),
    "tensor in two files": (with_one_more(Q, np.zeros((2, 2), np.float32)), (WEIGHTS, "extra.safetensors", Q)),
    "missing shard": (index(**{Q: "model-00002-of-00002.safetensors"}), ("index.json", "model-00002-of-00002", Q)),
    "index of another model": (index(other=WEIGHTS), ("index.json", "other", WEIGHTS)),
    "index not JSON": (lambda f: (f / "model.safetensors.index.json").write_text("{"), ("index.json", "fetch")),
    "index without map": (lambda f: (f / "model.safetensors.index.json").write_text("[]"), ("index.json", "fetch")),
    "pickle": (rename("pytorch_model.bin"), ("pytorch_model.bin", "pickle", "save_pretrained")),
    "no weights": (rename("weights.tmp"), ("no *.safetensors",)),
    "no config": (lambda f: (f / "config.json").unlink(), ("config.json", "cannot be read")),
    "unknown architecture": (
        lambda f: edit_config(f, model_type="mamba"),
        ("config.json", "model_type", "'mamba'", "llama"),
    ),
    "fp8": (quantised("fp8"), ("config.json", "'fp8'", "bfloat16 release")),
    "gptq": (quantised("gptq"), ("config.json", "'gptq'", "save_pretrained")),
    "integers": (change(dtype="I16"), (WEIGHTS, Q, "I16", "quantised")),
    "unknown dtype": (change(dtype="F4"), (WEIGHTS, Q, "F4")),
}


def held() -> int:
    """Bytes on all devices."""
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.parametrize("case", CASES)
def test_bad_folder(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, words = CASES[case]
    folder = copy(GOLDEN / "qwen3", tmp_path / "model")
    spoil(folder)
    monkeypatch.setattr(load, "_filled", None)  # nothing may be allocated
    with pytest.raises(InputError) as caught:
        load_actor(folder)
    for word in (*words, str(tmp_path)):
        assert word in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_every_problem_is_listed_and_long_lists_are_counted(tmp_path: Path) -> None:
    folder = copy(GOLDEN / "qwen3_moe", tmp_path / "model")
    tensors = {name: v for name, v in stored(folder).items() if ".mlp.experts." not in name}
    tensors["model.norm.weight"] = np.zeros(3, np.float32)
    tensors["model.norm.bias"] = np.zeros(3, np.float32)
    write(folder / WEIGHTS, tensors)
    with pytest.raises(InputError) as caught:
        load_actor(folder)
    text = str(caught.value)
    assert "wrong shape" in text and "model.norm.weight in model.safetensors has shape (3,)" in text
    assert "unexpected tensors (1)" in text and "model.norm.bias in model.safetensors" in text
    count = len(stored(GOLDEN / "qwen3_moe")) - len(tensors) + 1
    assert f"missing tensors ({count})" in text and f"and {count - 20} more" in text
    assert text.count(".mlp.experts.") == 20


def test_half_of_mxfp4_is_not_enough(tmp_path: Path) -> None:
    folder = copy(GOLDEN / "gpt_oss_mxfp4", tmp_path / "model")
    scales = "model.layers.0.mlp.experts.down_proj_scales"
    without(scales)(folder)
    with pytest.raises(InputError, match=r"missing tensors \(1\).*\n.*down_proj_scales"):
        load_actor(folder)


@pytest.mark.parametrize("small", [True, False])
def test_a_fault_while_reading_leaves_nothing_behind(
    small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(GOLDEN / "qwen3", tmp_path / "model")
    if not small:
        monkeypatch.setattr(load, "_LEAST", 1)
    before, left, take = held(), [20], pieces.TensorView.take

    def failing(self: pieces.TensorView, index: tuple[slice, ...]) -> tuple[np.ndarray, ...]:
        left[0] -= 1
        if left[0] == 0:
            (folder / WEIGHTS).unlink()
        return take(self, index)

    monkeypatch.setattr(pieces.TensorView, "take", failing)
    with pytest.raises(InputError, match=r"model\.safetensors: tensor model\..* cannot be read") as caught:
        load_actor(folder)
    assert held() - before < 4096, caught  # while the error is held; the piece it interrupts is some hundred bytes
    del caught
    assert held() == before
