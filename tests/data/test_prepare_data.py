"""The command line: from local files to prepared folders, with an actor small enough for a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launch_script import script
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toy import lines
from transformers import PreTrainedTokenizerFast

from remory_jax.actor import ActorConfig, init_actor, save_actor
from remory_jax.data import Prepared

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random actor of one layer and a tokenizer of bytes."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=TEMPLATE)
    fast.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>", "<system>", "<tool>"]})
    config = ActorConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": len(fast),
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "eos_token_id": fast.eos_token_id,
            "tie_word_embeddings": True,
        }
    )
    save_actor(init_actor(config, seed=0, dtype="float32"), folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def command() -> ModuleType:
    return script("prepare_data")


def run(command: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["prepare_data", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "80")
    command.main()


def test_from_text_to_summaries(
    command: ModuleType,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.txt").write_text("secret words " * 30)
    (tmp_path / "b.txt").write_text("short")
    out = tmp_path / "docs"
    monkeypatch.setattr(command.CONSOLE, "width", 80)
    arguments = ["--text", tmp_path / "a.txt", tmp_path / "b.txt", "--model", model]
    run(command, monkeypatch, "continue", *arguments, "--out", out, "--history", 64, "--response", 32)
    shown = capsys.readouterr().out
    assert "docs: 4 examples" in " ".join(shown.split())
    assert "passed over: 2 too_short" in shown
    assert "4 have no summary yet" in shown
    assert "secret" not in shown
    manifest = json.loads((out / "manifest.json").read_text())
    assert [entry["name"] for entry in manifest["sources"]] == ["a.txt", "b.txt"]
    assert manifest["settings"]["history"] == 64

    run(command, monkeypatch, "summaries", out, "--model", model, "--tokens", 5, "--batch", 4, "--limit", 2)
    assert "2 written to" in capsys.readouterr().out
    run(command, monkeypatch, "summaries", out, "--model", model, "--tokens", 5, "--batch", 4)
    assert "2 written to" in capsys.readouterr().out
    prepared = Prepared(out)
    assert not any(prepared[i].wants_summaries for i in range(4))
    assert all(0 <= len(prepared[i].summaries[0]) <= 5 for i in range(4))

    run(command, monkeypatch, "show", out, "--text", 0, "--model", model)
    assert "secret words" in capsys.readouterr().out  # only when asked for
    with pytest.raises(SystemExit, match="examples 0 to 3"):
        run(command, monkeypatch, "show", out, "--text", 9, "--model", model)
    with pytest.raises(SystemExit, match="exists already"):
        run(command, monkeypatch, "continue", *arguments, "--out", out)


def test_texts_to_repeat_and_chats_and_runs(
    command: ModuleType,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = lines(tmp_path / "rows.jsonl", [{"question": "what is it?", "answer": "a long enough answer"}, {"x": 1}])
    run(command, monkeypatch, "repeat", "--rows", rows, "--model", model, "--out", tmp_path / "repeat")
    assert len(Prepared(tmp_path / "repeat")) == 1
    assert "passed over: 1 empty_text" in capsys.readouterr().out

    turns = [{"from": who, "value": f"{who} {i} and more"} for i in range(4) for who in ("human", "gpt")]
    chats = lines(tmp_path / "chats.jsonl", [{"conversations": turns}, {"conversations": 3}])
    options = ["--model", model, "--trigger", 60, "--summary", 8, "--response", 64]
    run(command, monkeypatch, "chats", chats, *options, "--out", tmp_path / "chats")
    assert len(Prepared(tmp_path / "chats")) >= 1
    assert "passed over: 1 wrong_shape" in capsys.readouterr().out

    call = {"input": [{"kind": "tool", "text": "a result"}], "output": [{"kind": "assistant", "text": "an answer"}]}
    edit = {"start": 0, "stop": 2, "cause": "compaction", "segment": {"kind": "summary", "text": "so far"}}
    runs = lines(tmp_path / "runs.jsonl", [{"id": "r", "calls": [call, {**call, "edits": [edit]}]}])
    run(command, monkeypatch, "runs", runs, "--recorded", "--model", model, "--out", tmp_path / "runs")
    example = Prepared(tmp_path / "runs")[0]
    assert len(example.summaries[0]) == len("so far")
    with pytest.raises(SystemExit, match="no text named"):
        run(command, monkeypatch, "repeat", "--model", model, "--out", tmp_path / "none")
    with pytest.raises(SystemExit, match=r"wrong_shape\]"):
        run(command, monkeypatch, "chats", chats, *options, "--on-problem", "fatal", "--out", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_help_fits_a_terminal(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["repeat"], ["continue"], ["chats"], ["runs"], ["summaries"], ["show"]):
        with pytest.raises(SystemExit):
            run(command, monkeypatch, *arguments, "--help")
        shown = capsys.readouterr().out
        assert "usage: prepare_data" in shown
        assert max(map(len, shown.splitlines())) <= 80
