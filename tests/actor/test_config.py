"""Configs: released models to the last parameter, old and new fields, prices that agree with the arrays, refusals."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from actor_checks import FAMILIES, GOLDEN

from costmodel_jax import InputError, architectures
from remory_jax.actor import ActorConfig, abstract_actor
from remory_jax.actor.config import Experts, Rotary, Scaling, SoftmaxAttention
from remory_jax.actor.decoder import groups, parameters
from remory_jax.actor.groups import repeating_groups
from remory_jax.actor.parameters import leaves
from remory_jax.actor.rotary import frequencies

# Parameters of the released language models, counted by instantiating transformers' classes without memory.
RELEASED = {
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3.6-27B": 26_895_998_464,
    "Qwen3.5-35B-A3B": 34_660_610_688,
    "gpt-oss-20b": 20_914_757_184,
    "GLM-4.7-Flash": 29_943_390_976,
    "SmolLM2-135M": 134_515_008,
}


def released(name: str) -> dict[str, Any]:
    preset = json.loads((files("costmodel_jax") / "architectures" / f"{name}.json").read_text())
    config: dict[str, Any] = preset["config"]
    return config


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_without_memory(name: str) -> None:
    config = ActorConfig.from_hf(released(name))
    assert config.parameter_count == RELEASED[name]
    actor = abstract_actor(config, dtype="bfloat16")
    head = jax.eval_shape(lambda actor: actor.head, actor)
    assert head.shape == (config.hidden, config.vocabulary)
    traced = sum(len(group.pattern) for group in groups(config))
    assert traced <= 4, "a deep model is traced a few layers at a time"


@pytest.mark.parametrize("name", RELEASED)
def test_prices_agree_with_the_arrays(name: str) -> None:
    """c is twice the weights a token is multiplied with, beta 2 H (d_qk + d_v) a full layer: read off the shapes."""
    config, architecture = ActorConfig.from_hf(released(name)), architectures[name]
    tree = parameters(config)
    linear = 0
    pairs = 0
    for group, layers in zip(groups(config), tree["groups"], strict=True):
        for layer, definitions in zip(group.pattern, layers, strict=True):
            for parameter in leaves(definitions):
                if parameter.init == "normal" and "conv" not in parameter.stored[0].name:
                    share = 1.0
                    if "expert" in parameter.axes:
                        assert isinstance(layer.feed_forward, Experts)
                        share = layer.feed_forward.active / layer.feed_forward.experts
                    linear += round(parameter.size * share)
            mixer, arrays = layer.mixer, definitions["mixer"]
            if isinstance(mixer, SoftmaxAttention) and mixer.window is None:
                heads, value = arrays["o"].shape[:2]
                pairs += group.repeats * 2 * heads * (arrays["k"].shape[2] + value)
            elif "k_up" in arrays:
                heads, query = arrays["q_up"].shape[1:]
                pairs += group.repeats * 2 * heads * (query + arrays["v_up"].shape[2])
    prices = architecture.prices()
    assert prices.linear == 2 * linear
    assert prices.pair == pairs


@pytest.mark.parametrize("family", FAMILIES)
def test_config_of_every_recorded_model(family: str) -> None:
    """Its count is that of the stored tensors: no name is missing and none is left over (see test_loading)."""
    config = ActorConfig.from_hf(GOLDEN / family)
    assert hash(config) == hash(ActorConfig.from_hf(json.loads((GOLDEN / family / "config.json").read_text())))
    assert config.parameter_count > 0


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*/config_old.json")), ids=lambda path: path.parent.name)
def test_old_fields_mean_the_same(file: Path) -> None:
    assert ActorConfig.from_hf(file) == ActorConfig.from_hf(file.parent)


def test_llama3_and_linear_scaling() -> None:
    base = released("SmolLM2-135M") | {"max_position_embeddings": 131072, "rope_parameters": None}
    rope = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    mixer = (
        ActorConfig.from_hf(base | {"rope_scaling": rope | {"original_max_position_embeddings": 8192}}).layers[0].mixer
    )
    assert isinstance(mixer, SoftmaxAttention)
    assert mixer.rotary.scaling is not None
    assert (mixer.rotary.scaling.kind, mixer.rotary.scaling.original) == ("llama3", 8192)
    mixer = ActorConfig.from_hf(base | {"rope_scaling": {"type": "linear", "factor": 4}}).layers[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    assert mixer.rotary.scaling is not None
    assert mixer.rotary.scaling.kind == "linear"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma3"}, ("model_type", "gemma3", "llama")),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, ("rope_type", "longrope", "yarn")),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, ("rope_theta", "'x'")),
        ({"hidden_act": "gelu"}, ("hidden_act", "gelu", "silu")),
        ({"mlp_bias": True}, ("mlp_bias",)),
        ({"num_key_value_heads": 2}, ("num_key_value_heads", "9")),
        ({"vocab_size": None}, ("vocab_size",)),
        ({"rms_norm_eps": -1}, ("rms_norm_eps", "-1")),
        ({"eos_token_id": "</s>"}, ("eos_token_id",)),
    ],
)
def test_refusals_name_field_and_value(changes: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        ActorConfig.from_hf(released("SmolLM2-135M") | changes)
    for word in words:
        assert word in str(error.value)


def test_groups_cover_every_layer_once() -> None:
    a, b, c = (ActorConfig.from_hf(released(name)).layers[0] for name in ("Qwen3-0.6B", "Qwen3-8B", "SmolLM2-135M"))
    for layers in ([a], [a, b], [a, a, b, a, a, b, c], [c, *([a, a, a, b] * 6)], [a, b, c] * 3 + [a]):
        found = repeating_groups(layers)
        spelled = [layer for group in found for layer in group.pattern * group.repeats]
        assert spelled == list(layers)
        indices = [i for group in found for position in range(len(group.pattern)) for i in group.layers(position)]
        assert sorted(indices) == list(range(len(layers)))
    assert [(len(g.pattern), g.repeats) for g in repeating_groups([c, *([a, a, a, b] * 6)])] == [(1, 1), (4, 6)]


def test_yarn_of_gpt_oss() -> None:
    """Factor 32 gives cos and sin a magnitude of 0.1 ln 32 + 1."""
    rope = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
    rope |= {"truncate": False, "original_max_position_embeddings": 4096}
    mixer = ActorConfig.from_hf(released("gpt-oss-20b") | {"rope_parameters": rope}).layers[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    assert mixer.rotary.scaling is not None
    assert math.isclose(mixer.rotary.scaling.magnitude, 0.1 * math.log(32) + 1)
    assert mixer.window == 128
    assert mixer.sinks


def test_scaled_frequencies() -> None:
    """Against transformers' own for 32 rotated dimensions; YaRN's are proved by the recordings."""
    llama3 = Scaling(kind="llama3", factor=32.0, original=8192, fast=4.0, slow=1.0)
    wanted = [1.0, 0.44036662, 0.19392276, 0.0853971, 0.03760603, 0.01656044, 0.00729267, 0.00321145]
    wanted += [
        4.295567e-4,
        1.9461639e-5,
        8.570256e-6,
        3.7740545e-6,
        1.6619674e-6,
        7.3187493e-7,
        3.222933e-7,
        1.419272e-7,
    ]
    np.testing.assert_allclose(frequencies(Rotary(dim=32, theta=5e5, scaling=llama3)), wanted, rtol=1e-5)
    linear = frequencies(Rotary(dim=32, theta=1e4, scaling=Scaling(kind="linear", factor=4.0)))
    np.testing.assert_allclose(linear[[0, 1, 2, 15]], [0.25, 0.14058533, 0.07905694, 4.4456986e-5], rtol=1e-6)
