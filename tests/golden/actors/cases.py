"""The sixteen tiny models of this folder: their configurations and seeds, a table read by ``make.py``.

Small, but every mechanism acts: windows, index budgets and pools are shorter than the sequence, experts outnumber those
chosen, delta-rule sequences are longer than a chunk of 64, layer patterns repeat or leave a remainder, sizes that could
be mixed up differ from each other. Seeds come from ``make.py --search``: no choice of experts or keys is close.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VOCAB, HIDDEN = 96, 32


@dataclass(frozen=True, kw_only=True)
class Case:
    """One folder: ``architecture`` built from ``config``, with weights and tokens drawn from ``seed``."""

    architecture: str  # class name in transformers
    config: dict[str, Any]
    seed: int
    length: int = 40
    layout: str = "plain"  # plain | shards | fused_experts | mxfp4
    old_config: bool = False  # also write config_old.json
    gains: dict[str, float] = field(default_factory=dict)  # regex on the parameter name -> gain; the first match holds


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta} | more


_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
# Half of the 16 dimensions turn: the class default is a quarter, so a field that is not read shows.
_MROPE = _rope(1e7, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)
_QWEN_EXPERTS = {
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
_GLM = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "n_routed_experts": 6,
    "moe_intermediate_size": 12,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.8,
}
_VISION = {
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_heads": 1,
    "out_hidden_size": HIDDEN,
    "patch_size": 2,
    "spatial_merge_size": 2,
}
_GPT_OSS = {
    **_TEXT,
    **_HEADS,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1.5e5,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}


def _layers(pattern: str) -> dict[str, Any]:
    kinds = {"d": "linear_attention", "f": "full_attention", "i": "indexed_attention"}
    return {"num_hidden_layers": len(pattern), "layer_types": [kinds[letter] for letter in pattern]}


# Clamps at 7 and 10 must act: activations of standard deviation 5, products brought back to about 1.
_CLAMPED = {r"\b(gate|up|gate_up)_proj(\.weight)?$": 5.0, r"\bdown_proj(\.weight)?$": 0.05}
_SMALL_LATENTS = {r"q_a_proj": 0.02}

CASES: dict[str, Case] = {
    "llama": Case(
        architecture="LlamaForCausalLM",
        config={
            **_TEXT,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": _rope(1e5),
        },
        seed=0,
        layout="shards",
        old_config=True,
    ),
    "qwen3": Case(
        architecture="Qwen3ForCausalLM",
        config={
            **_TEXT,
            **_HEADS,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
            "rope_parameters": _rope(1e6),
        },
        seed=0,
    ),
    "qwen3_untied_yarn": Case(
        architecture="Qwen3ForCausalLM",
        config={
            **_TEXT,
            **_HEADS,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        seed=0,
        old_config=True,
    ),
    "qwen3_moe": Case(
        architecture="Qwen3MoeForCausalLM",
        config={
            **_TEXT,
            **_HEADS,
            "intermediate_size": 48,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 3,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "rope_parameters": _rope(1e6),
        },
        seed=34,
    ),
    "qwen3_5": Case(
        architecture="Qwen3_5ForCausalLM",
        config={**_TEXT, **_HEADS, **_DELTA, **_layers("ddfddf"), "intermediate_size": 48, "rope_parameters": _MROPE},
        seed=4,
        length=72,
    ),
    "qwen3_5_tied": Case(
        architecture="Qwen3_5ForCausalLM",
        config={
            **_TEXT,
            **_HEADS,
            **_DELTA,
            **_layers("dfdf"),
            "intermediate_size": 48,
            "tie_word_embeddings": True,
            "rope_parameters": _MROPE,
        },
        seed=0,
        length=72,
    ),
    "qwen3_5_vl": Case(
        architecture="Qwen3_5ForConditionalGeneration",
        config={
            "text_config": {
                **_TEXT,
                **_HEADS,
                **_DELTA,
                **_layers("dddf"),
                "intermediate_size": 48,
                "rope_parameters": _MROPE,
            },
            "vision_config": _VISION | {"num_position_embeddings": 4},
        },
        seed=0,
        length=72,
    ),
    "qwen3_5_moe": Case(
        architecture="Qwen3_5MoeForCausalLM",
        config={**_TEXT, **_HEADS, **_DELTA, **_QWEN_EXPERTS, **_layers("dfdf"), "rope_parameters": _MROPE},
        seed=25,
        length=72,
    ),
    "qwen3_5_moe_vl": Case(
        architecture="Qwen3_5MoeForConditionalGeneration",
        config={
            "text_config": {
                **_TEXT,
                **_HEADS,
                **_DELTA,
                **_QWEN_EXPERTS,
                **_layers("dddf"),
                "rope_parameters": _MROPE,
            },
            "vision_config": _VISION | {"num_position_embeddings": 4},
        },
        seed=19,
        length=72,
        layout="fused_experts",
    ),
    "qwen3_next": Case(
        architecture="Qwen3NextForCausalLM",
        config={
            **_TEXT,
            **_HEADS,
            **_DELTA,
            **_QWEN_EXPERTS,
            **_layers("ddfdd"),
            "intermediate_size": 48,
            "norm_topk_prob": True,
            "rope_parameters": _rope(1e7, partial_rotary_factor=0.5),
        },
        seed=16,
        length=72,
    ),
    "glm4_moe_lite": Case(
        architecture="Glm4MoeLiteForCausalLM",
        config={
            **_TEXT,
            **_GLM,
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "rope_parameters": _rope(1e6),
        },
        seed=29,
        gains=_SMALL_LATENTS,
    ),
    "glm4_moe_lite_groups": Case(
        architecture="Glm4MoeLiteForCausalLM",
        config={
            **_TEXT,
            **_GLM,
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "v_head_dim": 16,
            "rope_parameters": _rope(1e6),
        },
        seed=39,
        gains=_SMALL_LATENTS,
    ),
    "glm_moe_dsa": Case(
        architecture="GlmMoeDsaForCausalLM",
        config={
            **_TEXT,
            **_GLM,
            "num_hidden_layers": 4,
            "first_k_dense_replace": 1,
            "index_topk": 12,
            "index_head_dim": 12,
            "index_n_heads": 12,  # so many that hardly any score is zero through every relu, hence a tie
            "indexer_types": ["full", "full", "shared", "full"],
            "rope_parameters": _rope(1e6),
        },
        seed=49,
        gains=_SMALL_LATENTS,
    ),
    "glm5_next": Case(
        architecture="Glm5NextForConditionalGeneration",
        config={
            "text_config": {
                **_TEXT,
                **_GLM,
                **_layers("didi"),
                "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
                "q_lora_rank": 16,
                "qk_rope_head_dim": 0,
                "v_head_dim": 12,
                "moe_intermediate_size": 8,
                "routed_scaling_factor": 2.5,
                "index_topk": 12,
                "index_kpool": 4,
                "index_head_dim": 12,
                "index_n_heads": 12,  # so many that hardly any score is zero through every relu, hence a tie
                "indexer_types": ["full"] * 4,
                "linear_head_dim": 8,
                "linear_num_heads": 4,
                "linear_lower_bound": -5.0,
                "hc_mult": 3,  # the released 4 costs space; 2 would make every mixing matrix symmetric
                "hc_sinkhorn_iters": 20,
                "swiglu_limit": 10.0,
            },
            "vision_config": _VISION | {"image_size": 4, "projection_intermediate_size": 8},
        },
        seed=40,
        length=71,  # not a multiple of index_kpool: the last query has an incomplete group
        gains=_CLAMPED | _SMALL_LATENTS,
    ),
    "gpt_oss": Case(
        architecture="GptOssForCausalLM", config={**_GPT_OSS, "intermediate_size": 24}, seed=40, gains=_CLAMPED
    ),
    "gpt_oss_mxfp4": Case(
        architecture="GptOssForCausalLM",
        config={**_GPT_OSS, "intermediate_size": 64},  # two blocks of 32 along the inputs of down_proj
        seed=4,
        layout="mxfp4",
        old_config=True,
        gains=_CLAMPED,
    ),
}
