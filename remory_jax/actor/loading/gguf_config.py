"""``config.json`` from the keys of a GGUF file, in transformers' field names."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np

from remory_jax.actor.loading.gguf_reader import GGUFFile

__all__ = ["config_of"]

_ARCHITECTURES = MappingProxyType(
    {
        "llama": ("llama", "LlamaForCausalLM"),
        "qwen3": ("qwen3", "Qwen3ForCausalLM"),
        "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    }
)

_UNDERSTOOD = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "vocab_size",
    }
)
_EXPERTS = frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"})


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The model's dimensions and constants.

    Raises:
      InputError: an architecture not supported, a key that is missing or out of range, or a key of the architecture
        that is not understood (it could change what the model computes).
    """
    architecture = file.require("general.architecture", str)
    if architecture not in _ARCHITECTURES:
        raise file.error(
            f"key general.architecture = {architecture!r}; this can convert {', '.join(_ARCHITECTURES)}. "
            "For any other model use its Hugging Face folder"
        )
    a = f"{architecture}."
    experts = architecture == "qwen3moe"
    for key in file.fields:
        if key.startswith(a) and key.removeprefix(a) not in (_UNDERSTOOD | _EXPERTS if experts else _UNDERSTOOD):
            raise file.error(f"key {key} is not understood and may change what the model computes")
    model_type, name = _ARCHITECTURES[architecture]
    width, heads = file.size(f"{a}embedding_length"), file.size(f"{a}attention.head_count")
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "hidden_act": "silu",
        "attention_bias": False,
        "hidden_size": width,
        "intermediate_size": file.size(f"{a}feed_forward_length"),
        "num_hidden_layers": file.size(f"{a}block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(file, a, heads),
        "head_dim": _head_dim(file, a, width, heads),
        "rms_norm_eps": _positive(file, f"{a}attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(file, a),
        "max_position_embeddings": file.size(f"{a}context_length"),
        "vocab_size": _vocabulary(file, a),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if experts:
        config |= {
            "num_experts": file.size(f"{a}expert_count"),
            "num_experts_per_tok": file.size(f"{a}expert_used_count"),
            "moe_intermediate_size": file.size(f"{a}expert_feed_forward_length"),
            # The format has no key for these: its qwen3moe always renormalises, and every layer has experts.
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
        if config["num_experts_per_tok"] > config["num_experts"]:
            raise file.error(f"key {a}expert_used_count is more than {a}expert_count = {config['num_experts']}")
    return config


def _kv_heads(file: GGUFFile, a: str, heads: int) -> int:
    key = f"{a}attention.head_count_kv"
    kv = file.size(key) if key in file.fields else heads
    if heads % kv:
        raise file.error(f"key {key} = {kv} does not divide {a}attention.head_count = {heads}")
    return kv


def _head_dim(file: GGUFFile, a: str, width: int, heads: int) -> int:
    key = f"{a}attention.key_length"
    if key in file.fields:
        head_dim = file.size(key)
    elif width % heads:
        raise file.error(f"key {a}embedding_length = {width} is not divided by {heads} heads and {key} is missing")
    else:
        head_dim = width // heads
    for name in ("attention.value_length", "rope.dimension_count"):
        if f"{a}{name}" in file.fields and file.size(f"{a}{name}") != head_dim:
            raise file.error(f"key {a}{name} differs from the size of a head, {head_dim}; that is not supported")
    if head_dim % 2:
        raise file.error(f"a head has {head_dim} dimensions; rotary pairs need an even number")
    return head_dim


def _vocabulary(file: GGUFFile, a: str) -> int:
    count = len(file.listed("tokenizer.ggml.tokens", str))
    if f"{a}vocab_size" in file.fields and file.size(f"{a}vocab_size") != count:
        raise file.error(f"key {a}vocab_size differs from the {count} items of tokenizer.ggml.tokens")
    return count


def _rope(file: GGUFFile, a: str) -> dict[str, Any]:
    theta = _positive(file, f"{a}rope.freq_base") if f"{a}rope.freq_base" in file.fields else 1e4
    kind = file.get(f"{a}rope.scaling.type", str) or "none"
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind not in ("linear", "yarn"):
        raise file.error(f"key {a}rope.scaling.type = {kind!r}; none, linear and yarn are supported")
    rope: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": theta,
        "factor": _positive(file, f"{a}rope.scaling.factor"),
    }
    if kind == "yarn":
        rope["original_max_position_embeddings"] = file.size(f"{a}rope.scaling.original_context_length")
    return rope


def _positive(file: GGUFFile, key: str) -> float:
    value = file.require(key, float)
    if not (math.isfinite(value) and value > 0):
        raise file.error(f"key {key} = {value}; it must be positive and finite")
    # Stored as float32: the shortest decimal that rounds to it is the number the model's authors wrote.
    return float(str(np.float32(value)))
