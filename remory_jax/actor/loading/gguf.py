"""GGUF files as a source of models: one file in, a Hugging Face folder out.

Two things in a GGUF file are not what Hugging Face's modules expect. Weights are quantised in blocks, which
``GGUFTensor.values`` undoes. And llama.cpp rotates the pairs (2i, 2i + 1) where Hugging Face rotates (i, i + d/2), so
for ``llama`` the rows of every q and k head are stored interleaved; they are put back here. Qwen3 is stored unchanged.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from remory_jax.actor.loading.gguf_config import config_of
from remory_jax.actor.loading.gguf_reader import GGUFFile, GGUFTensor, read_gguf
from remory_jax.actor.loading.gguf_tokenizer import special_ids, tokenizer_files

__all__ = ["convert_gguf"]

_BLOCK = 2**22  # values dequantised at a time
_STORED = {"bfloat16": "BF16", "float32": "F32"}


def convert_gguf(file: str | Path, folder: str | Path, *, dtype: Literal["bfloat16", "float32"] = "bfloat16") -> Path:
    """Convert a GGUF file (llama, qwen3 or qwen3moe) into a Hugging Face folder.

    Writes ``model.safetensors``, ``tokenizer.json``, ``tokenizer_config.json`` with the chat template,
    ``generation_config.json`` and, last, ``config.json``. Everything is checked before the first write; each file
    appears whole or not at all. Memory: the header, and some 16 MiB of weights at a time.

    Precision: float32 keeps what dequantising gives (for Q4_1 and Q8_0 exactly the file's d * q + m). bfloat16 halves
    the folder and rounds each weight by up to 2^-9 of itself.

    Args:
      file: the GGUF file.
      folder: made where it does not exist. Files of the names above are replaced; nothing outside it is written.
      dtype: of the stored weights.

    Returns:
      The folder.

    Raises:
      InputError: naming the file and the tensor or key: a truncated or damaged file, an unknown architecture or
        quantisation, a key or tensor that is missing, or one that this conversion does not understand and would lose.
      ValueError: an unknown ``dtype``, or a folder that holds other weights.
    """
    folder = Path(folder)
    if dtype not in _STORED:
        raise ValueError(f"dtype = {dtype!r}; choose one of {', '.join(_STORED)}")
    foreign = sorted(
        path.name
        for pattern in ("*.safetensors", "*.safetensors.index.json")
        for path in folder.glob(pattern)
        if path.name != "model.safetensors"
    )
    if foreign:
        raise ValueError(f"folder {folder} holds other weights ({foreign[0]}); choose an empty folder")

    source = read_gguf(Path(file))
    ids = special_ids(source)
    config = {**config_of(source), **ids, "dtype": dtype}
    stored = _stored(source, config)
    texts = tokenizer_files(source, max_length=config["max_position_embeddings"])
    texts["generation_config.json"] = _json({key: value for key, value in ids.items() if value is not None})
    # Last: a folder without it is no model yet.
    texts["config.json"] = _json(config)

    folder.mkdir(parents=True, exist_ok=True)
    with _whole(folder / "model.safetensors") as out:
        _write_safetensors(out, stored, dtype)
    for name, text in texts.items():
        with _whole(folder / name) as out:
            out.write(text.encode())
    return folder


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """One tensor of the file and what becomes of it.

    Args:
      tensor: its values, checked to have the shape the config asks for.
      names: Hugging Face's; more than one (of equal parts, along the first dimension) for a stack of experts.
      shape: of each of those.
      heads: how many heads' rows are interleaved; 0: none.
    """

    tensor: GGUFTensor
    names: tuple[str, ...]
    shape: tuple[int, ...]
    heads: int

    def values(self) -> Iterator[Float32[np.ndarray, "rows columns"]]:
        count = self.tensor.rows.shape[0]
        rows = np.arange(count)
        if self.heads:
            rows = rows.reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)
        step = max(1, _BLOCK // self.tensor.shape[-1])
        for start in range(0, count, step):
            yield self.tensor.values(rows[start : start + step])


def _stored(file: GGUFFile, config: dict[str, Any]) -> list[_Stored]:
    D, F = config["hidden_size"], config["intermediate_size"]
    q, k = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    experts, llama = config.get("num_experts", 0), config["model_type"] == "llama"
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd": ("model.embed_tokens", (config["vocab_size"], D)),
        "output_norm": ("model.norm", (D,)),
    }
    if not config["tie_word_embeddings"]:
        wanted["output"] = ("lm_head", (config["vocab_size"], D))
    layer: dict[str, tuple[str, tuple[int, ...]]] = {
        "attn_norm": ("input_layernorm", (D,)),
        "attn_q": ("self_attn.q_proj", (q, D)),
        "attn_k": ("self_attn.k_proj", (k, D)),
        "attn_v": ("self_attn.v_proj", (k, D)),
        "attn_output": ("self_attn.o_proj", (D, q)),
        "ffn_norm": ("post_attention_layernorm", (D,)),
    }
    if not llama:
        layer |= {f"attn_{name}_norm": (f"self_attn.{name}_norm", (config["head_dim"],)) for name in "qk"}
    if experts:
        F = config["moe_intermediate_size"]
        layer["ffn_gate_inp"] = ("mlp.gate", (experts, D))
    for name, rows, columns in (("gate", F, D), ("up", F, D), ("down", D, F)):
        if experts:
            layer[f"ffn_{name}_exps"] = (f"mlp.experts.{{}}.{name}_proj", (experts, rows, columns))
        else:
            layer[f"ffn_{name}"] = (f"mlp.{name}_proj", (rows, columns))
    # Every layer has a tensor, so a false count of layers stops here and not in the loop.
    if config["num_hidden_layers"] > len(file.tensors):
        raise file.error(f"has {len(file.tensors)} tensors for {config['num_hidden_layers']} layers; fetch it anew")
    for i in range(config["num_hidden_layers"]):
        wanted |= {f"blk.{i}.{name}": (f"model.layers.{i}.{target}", shape) for name, (target, shape) in layer.items()}

    wanted = {f"{name}.weight": (f"{target}.weight", shape) for name, (target, shape) in wanted.items()}
    for name in file.tensors:
        if name not in wanted:
            raise file.error(f"tensor {name[:80]} has no place in a {config['model_type']} model as it is known here")
    stored = []
    for name, (target, shape) in wanted.items():
        tensor = _checked(file, name, shape)
        stacked = "{}" in target
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        stored.append(
            _Stored(
                tensor=tensor,
                names=tuple(target.format(expert) for expert in range(experts)) if stacked else (target,),
                shape=shape[1:] if stacked else shape,
                heads=heads.get(name.split(".")[-2], 0) if llama else 0,
            )
        )
    return stored


def _checked(file: GGUFFile, name: str, shape: tuple[int, ...]) -> GGUFTensor:
    if name not in file.tensors:
        raise file.error(f"tensor {name} is missing; the file does not hold a whole model: convert or fetch it anew")
    tensor = file.tensors[name]
    if tensor.shape != shape:
        raise file.error(f"tensor {name} has shape {tensor.shape} and its keys ask for {shape}; fetch it anew")
    try:
        tensor.values(slice(1))
    except NotImplementedError:
        raise file.error(
            f"tensor {name} has quantisation type {tensor.kind.name}, which the gguf package cannot dequantise; "
            "choose a file of another quantisation, such as Q8_0 or Q4_K_M"
        ) from None
    return tensor


def _write_safetensors(out: BinaryIO, stored: Sequence[_Stored], dtype: str) -> None:
    number = jnp.dtype(dtype)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for item in stored:
        for name in item.names:
            start, end = end, end + int(np.prod(item.shape, dtype=np.int64)) * number.itemsize
            header[name] = {"dtype": _STORED[dtype], "shape": item.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)
    for item in stored:
        for values in item.values():
            out.write(values.astype(number.newbyteorder("<")).tobytes())


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
