"""Reading Hugging Face configs: every spelling, every default, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from costmodel_jax.architecture import Architecture
from costmodel_jax.architecture.families import FAMILIES
from costmodel_jax.errors import InputError

GOLDEN = Path(__file__).parent / "golden" / "architectures"


# Where a config may come from


def test_file_folder_and_dict(tmp_path: Path) -> None:
    config = json.loads((GOLDEN / "qwen3.json").read_text())["config"]
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    models = [Architecture.from_hf(source) for source in (folder, str(folder / "config.json"), config)]
    assert models[0].layers == models[1].layers == models[2].layers
    assert [model.name for model in models] == ["my-model", "my-model", "qwen3"]
    assert Architecture.from_hf(config, name="mine").name == "mine"
    assert Architecture.from_hf(config | {"_name_or_path": "somebody/their-model"}).name == "their-model"


def test_nested_text_config_equals_flat() -> None:
    nested = json.loads((GOLDEN / "qwen3_5_moe_vl.json").read_text())["config"]
    flat = json.loads((GOLDEN / "qwen3_5_moe.json").read_text())["config"]
    assert Architecture.from_hf(nested).layers == Architecture.from_hf(flat).layers
    bare = copy.deepcopy(nested)
    del bare["text_config"]["model_type"]  # older wrappers name the type only outside
    assert Architecture.from_hf(bare).layers == Architecture.from_hf(flat).layers


# Eras and defaults


def fixture_config(family: str, **changes: object) -> dict[str, Any]:
    """A fixture's config with fields changed, or removed where the value is ``...``."""
    config: dict[str, Any] = json.loads((GOLDEN / f"{family}.json").read_text())["config"]
    target = config.get("text_config", config)
    for key, value in changes.items():
        target.pop(key, None)
        if value is not ...:
            target[key] = value
    return config


SAME = [
    ("llama", {"head_dim": ...}),
    ("llama", {"head_dim": None}),
    ("qwen3", {"layer_types": ..., "sliding_window": ..., "use_sliding_window": ...}),
    ("qwen3_moe", {"num_local_experts": ..., "num_experts": 8}),
    ("qwen3_moe", {"mlp_only_layers": ..., "decoder_sparse_step": ..., "intermediate_size": ...}),
    ("qwen3_next", {"layer_types": ...}),
    ("qwen3_next", {"layer_types": ..., "full_attention_interval": 4}),
    ("qwen3_5", {"layer_types": None}),
    ("qwen3_5_moe", {"num_experts": ..., "num_local_experts": 8}),
    ("glm4_moe_lite", {"mlp_layer_types": ...}),
    ("glm4_moe_lite", {"mlp_layer_types": ..., "first_k_dense_replace": 1}),
    ("glm_moe_dsa", {"mlp_layer_types": ..., "layer_types": ...}),
    ("glm_moe_dsa", {"layer_types": ["full_attention"] * 4}),
    ("glm_moe_dsa", {"indexer_types": ..., "index_topk_pattern": "FFSF"}),
    ("glm_moe_dsa", {"indexer_types": ..., "index_topk_pattern": ["full", "full", "shared", "full"]}),
    ("glm5_next", {"layer_types": ..., "indexer_types": ...}),
    ("glm5_next", {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}),
    (
        "glm5_next",
        {
            "linear_num_heads": ...,
            "linear_head_dim": ...,
            "linear_attn_config": {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4},
        },
    ),
    ("gpt_oss", {"layer_types": ..., "num_local_experts": ..., "num_experts": 8}),
    ("gpt_oss", {"num_experts_per_tok": ..., "experts_per_token": 2}),
]


@pytest.mark.parametrize(("family", "changes"), SAME, ids=lambda value: value if isinstance(value, str) else None)
def test_other_spellings_of_the_same_model(family: str, changes: dict[str, object]) -> None:
    assert (
        Architecture.from_hf(fixture_config(family, **changes)).layers
        == Architecture.from_hf(fixture_config(family)).layers
    )


def kinds(config: dict[str, Any]) -> list[str]:
    return [layer.kind for layer in Architecture.from_hf(config).layers]


def test_schedules() -> None:
    assert kinds(fixture_config("qwen3_moe", mlp_only_layers=[1])) == [
        "attention + moe",
        "attention + swiglu",
        "attention + moe",
    ]
    assert kinds(fixture_config("qwen3_moe", decoder_sparse_step=2))[1] == "attention + moe"
    assert kinds(fixture_config("qwen3_moe", decoder_sparse_step=2))[::2] == ["attention + swiglu"] * 2
    assert (
        kinds(fixture_config("glm4_moe_lite", mlp_layer_types=..., first_k_dense_replace=2))[:2] == ["mla + swiglu"] * 2
    )
    # the selection is shared from the layer after `index_skip_topk_offset` on, but every third
    sparse = fixture_config("glm_moe_dsa", indexer_types=..., index_topk_freq=2, index_skip_topk_offset=1)
    assert [layer.mixer.kind for layer in Architecture.from_hf(sparse).layers] == [
        "mla + dsa",
        "mla + shared dsa",
        "mla + dsa",
        "mla + shared dsa",
    ]


def test_qwen3_sliding_window() -> None:
    slides = {"layer_types": ..., "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    model = Architecture.from_hf(fixture_config("qwen3", **slides))
    assert [layer.mixer.window for layer in model.layers] == [None, 8, 8]
    assert model.prices().pair == 4 * 4 * 32
    (capped,) = model.prices(windowed=True).windows
    assert (capped.window, capped.pair) == (8, 2 * 4 * 4 * 32.0)
    every = Architecture.from_hf(fixture_config("qwen3_moe", use_sliding_window=True, sliding_window=8))
    assert [layer.mixer.window for layer in every.layers] == [8, 8, 8]


def test_queries_without_a_latent() -> None:
    model = Architecture.from_hf(fixture_config("glm4_moe_lite", q_lora_rank=None))
    first, *_ = model.layers[0].mixer.weights
    assert (first.name, first.size) == ("q_proj", 64 * 4 * 32)


def test_shared_selection_has_no_indexer() -> None:
    model = Architecture.from_hf(fixture_config("glm_moe_dsa"))
    assert [layer.mixer.pair for layer in model.layers] == [2 * 16 * 32, 2 * 16 * 32, 0, 2 * 16 * 32]
    assert {layer.mixer.window for layer in model.layers} == {24}


def test_defaults_are_those_of_transformers() -> None:
    """A config with only the required sizes gives the layers of the class's own, fully spelled-out config."""
    from transformers import AutoConfig

    sizes = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 32, "vocab_size": 1000}
    widths = {"intermediate_size": 640, "moe_intermediate_size": 96}
    for model_type in FAMILIES:
        if model_type in ("qwen3_5", "qwen3_5_moe", "glm5_next"):
            continue  # wrappers of several modalities; their *_text types follow
        if model_type == "conv_llama":
            continue  # ours
        given = sizes | widths
        if model_type.startswith(("glm_moe", "glm5")):
            given |= {"num_key_value_heads": 32}
        spelled = AutoConfig.for_model(model_type, **given).to_dict()
        assert len(spelled) > len(given) + 5
        ours = Architecture.from_hf({"model_type": model_type, **sizes, **widths})
        assert ours.layers == Architecture.from_hf(spelled).layers, model_type
        schedule = spelled.get("layer_types")
        if schedule is not None:
            linear = ["deltanet" in layer.mixer.kind or layer.mixer.kind == "kda" for layer in ours.layers]
            assert linear == [kind == "linear_attention" for kind in schedule]
        if "mlp_layer_types" in spelled:
            assert ["moe" in layer.kind for layer in ours.layers] == [
                kind == "sparse" for kind in spelled["mlp_layer_types"]
            ]


# Refusals


REFUSED = [
    ("llama", {"model_type": "mamba"}, r"model_type = 'mamba' is not supported.*qwen3_5_text"),
    ("llama", {"model_type": ...}, r"model_type = None"),
    ("llama", {"hidden_size": ...}, r"hidden_size: missing"),
    ("llama", {"intermediate_size": ...}, r"intermediate_size: missing"),
    ("qwen3_5", {"vocab_size": ...}, r"vocab_size: missing"),
    ("glm5_next", {"vocab_size": ...}, r"text_config\.vocab_size: missing"),
    ("llama", {"hidden_size": "64"}, r"hidden_size = '64': must be an integer"),
    ("llama", {"hidden_size": True}, r"hidden_size = True"),
    ("llama", {"num_hidden_layers": 0}, r"num_hidden_layers = 0: must be an integer of at least 1"),
    ("llama", {"num_key_value_heads": 3}, r"num_key_value_heads = 3: 3 does not divide num_attention_heads = 4"),
    ("llama", {"head_dim": ..., "hidden_size": 66}, r"does not divide hidden_size = 66"),
    ("qwen3", {"layer_types": ["full_attention"]}, r"layer_types has 1 entries but num_hidden_layers = 3"),
    ("qwen3", {"layer_types": ["full_attention", "mamba", "x"]}, r"layer_types\[1\] = 'mamba': .*full_attention"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3}, r"use_sliding_window is not true"),
    ("qwen3", {"layer_types": "full_attention"}, r"must be a list"),
    ("qwen3", {"use_sliding_window": "no"}, r"must be true or false"),
    ("qwen3_moe", {"num_experts_per_tok": 9}, r"9 experts per token of 8"),
    ("qwen3_moe", {"num_experts": 16}, r"contradicts"),
    ("qwen3_moe", {"mlp_only_layers": 3}, r"mlp_only_layers = 3: must be a list"),
    ("qwen3_5", {"linear_num_key_heads": 3}, r"does not divide linear_num_value_heads = 4"),
    ("gpt_oss", {"sliding_window": None}, r"sliding_window = None: sliding layers need a window"),
    ("glm4_moe_lite", {"qk_head_dim": 64}, r"qk_head_dim = 64: contradicts .*16 \+ 16"),
    ("glm_moe_dsa", {"q_lora_rank": None}, r"q_lora_rank = None: the DSA indexer"),
    ("glm_moe_dsa", {"indexer_types": ["shared"] + ["full"] * 3}, r"layer 0 shares a selection"),
    ("glm_moe_dsa", {"indexer_types": ..., "index_topk_pattern": "FFXF"}, r"index_topk_pattern\[2\] = 'X'"),
    ("glm5_next", {"index_kpool": 5}, r"text_config\.index_kpool = 5: 5 does not divide index_topk"),
    ("glm5_next", {"linear_attn_config": 3}, r"linear_attn_config = 3: must be an object"),
]


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_refusals_name_field_value_and_rule(
    family: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fixture_config(family, **changes)))
    with pytest.raises(InputError, match=message) as refused:
        Architecture.from_hf(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_unreadable_configs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: cannot be read"):
        Architecture.from_hf(tmp_path)
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        Architecture.from_hf(path)
    path.write_text("[]")
    with pytest.raises(InputError, match="JSON object"):
        Architecture.from_hf(path)
    with pytest.raises(InputError, match="text_config must be an object"):
        Architecture.from_hf({"model_type": "qwen3_5", "text_config": 3})
