"""Tiny GGUF files of known weights, written with the gguf package's own writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

LAYERS, D, F, HEADS, KV, HEAD_DIM, EXPERTS, EXPERT_F = 2, 64, 96, 4, 2, 32, 4, 32
# 256 bytes, three merged tokens, two control tokens, one user-defined, one place-holder.
ALPHABET = sorted(ByteLevel.alphabet())
TOKENS = [*ALPHABET, "he", "\u0120t", "\u0120the", "<|start|>", "<|end|>", "<think>", "[PAD262]"]
TYPES = [*[1] * 259, 3, 3, 4, 5]
MERGES = ["h e", "\u0120 t", "\u0120t he"]
V, START, END, THINK = len(TOKENS), 259, 260, 261
TEMPLATE = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"
KINDS = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
    "Q8_0": GGMLQuantizationType.Q8_0,
    "Q4_1": GGMLQuantizationType.Q4_1,
}


@dataclass
class Tiny:
    """What goes into the file; change anything, then ``write``."""

    architecture: str
    keys: dict[str, Any]
    weights: dict[str, np.ndarray]  # Hugging Face names -> values that the chosen quantisation can hold
    tensors: dict[str, tuple[np.ndarray, GGMLQuantizationType]]  # GGUF names -> values as the file orders them
    endian: GGUFEndian = field(default=GGUFEndian.LITTLE)

    def write(self, path: Path) -> Path:
        writer = GGUFWriter(path, self.architecture, endianess=self.endian)
        for key, value in self.keys.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)
        for name, (values, kind) in self.tensors.items():
            integers = values.dtype.kind in "iu"
            writer.add_tensor(name, values if integers else quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k: row 2i + s of a head is row i + s d/2 of Hugging Face's."""
    size = weight.shape[0] // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for i in range(size // 2):
            for side in range(2):
                out[head * size + 2 * i + side] = weight[head * size + i + side * size // 2]
    return out


def holdable(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Random values that the quantisation holds without loss: in each block a power-of-two scale and the extremes."""
    if kind in ("F32", "F16", "BF16"):
        return rng.integers(-255, 256, shape).astype(np.float32) / 256
    low, high = (-127, 127) if kind == "Q8_0" else (0, 15)
    codes = rng.integers(low, high + 1, (int(np.prod(shape)) // 32, 32))
    codes[:, 0], codes[:, 1] = low, high
    scale = 2.0 ** rng.integers(-9, -6, (len(codes), 1))
    offset = 0.0 if kind == "Q8_0" else rng.integers(-8, 8, (len(codes), 1)) / 64
    return (codes * scale + offset).reshape(shape).astype(np.float32)


def tiny(architecture: str = "llama", *, kind: str = "F32", tied: bool = True, seed: int = 0) -> Tiny:
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    tensors: dict[str, tuple[np.ndarray, GGMLQuantizationType]] = {}
    head_dim = D // HEADS if architecture == "llama" else HEAD_DIM

    def add(name: str, target: str, *shape: int, order: Callable[[np.ndarray], np.ndarray] = lambda w: w) -> None:
        # Converters leave one-dimensional tensors in float32.
        used = "F32" if len(shape) == 1 else kind
        values = holdable(rng, shape, used)
        if "{}" in target:
            weights.update({f"{target.format(e)}.weight": values[e] for e in range(shape[0])})
        else:
            weights[f"{target}.weight"] = values
        tensors[f"{name}.weight"] = (order(values), KINDS[used])

    def permuted(heads: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda w: interleaved(w, heads) if architecture == "llama" else w

    add("token_embd", "model.embed_tokens", V, D)
    add("output_norm", "model.norm", D)
    if not tied:
        add("output", "lm_head", V, D)
    for i in range(LAYERS):
        b, m = f"blk.{i}", f"model.layers.{i}"
        add(f"{b}.attn_norm", f"{m}.input_layernorm", D)
        add(f"{b}.attn_q", f"{m}.self_attn.q_proj", HEADS * head_dim, D, order=permuted(HEADS))
        add(f"{b}.attn_k", f"{m}.self_attn.k_proj", KV * head_dim, D, order=permuted(KV))
        add(f"{b}.attn_v", f"{m}.self_attn.v_proj", KV * head_dim, D)
        add(f"{b}.attn_output", f"{m}.self_attn.o_proj", D, HEADS * head_dim)
        if architecture != "llama":
            add(f"{b}.attn_q_norm", f"{m}.self_attn.q_norm", head_dim)
            add(f"{b}.attn_k_norm", f"{m}.self_attn.k_norm", head_dim)
        add(f"{b}.ffn_norm", f"{m}.post_attention_layernorm", D)
        if architecture == "qwen3moe":
            add(f"{b}.ffn_gate_inp", f"{m}.mlp.gate", EXPERTS, D)
            add(f"{b}.ffn_gate_exps", f"{m}.mlp.experts.{{}}.gate_proj", EXPERTS, EXPERT_F, D)
            add(f"{b}.ffn_up_exps", f"{m}.mlp.experts.{{}}.up_proj", EXPERTS, EXPERT_F, D)
            add(f"{b}.ffn_down_exps", f"{m}.mlp.experts.{{}}.down_proj", EXPERTS, D, EXPERT_F)
        else:
            add(f"{b}.ffn_gate", f"{m}.mlp.gate_proj", F, D)
            add(f"{b}.ffn_up", f"{m}.mlp.up_proj", F, D)
            add(f"{b}.ffn_down", f"{m}.mlp.down_proj", D, F)
    return Tiny(architecture=architecture, keys=_keys(architecture, head_dim), weights=weights, tensors=tensors)


def _keys(a: str, head_dim: int) -> dict[str, Any]:
    own: Mapping[str, Any] = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": D,
        "feed_forward_length": F,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1e5,
        **({} if a == "llama" else {"attention.key_length": head_dim, "attention.value_length": head_dim}),
        **({"rope.dimension_count": head_dim, "vocab_size": V} if a == "llama" else {}),
        **(
            {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": EXPERT_F}
            if a == "qwen3moe"
            else {}
        ),
    }
    return {
        **{f"{a}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if a == "llama" else "qwen2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": START,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.padding_token_id": END,
        "tokenizer.chat_template": TEMPLATE,
    }
