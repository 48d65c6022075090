"""Weights of the tiny models: drawn, and stored as the released checkpoints store them.

Weights are drawn so that a mistake shows. Linear maps have unit gain, norms are moved away from their neutral value,
biases, sinks and gates are not zero, untied embeddings are as small as in a fresh model (so ``rms_norm_eps`` matters),
and what only acts on extreme values is driven there: clamped MLPs beyond their limit, the latents of multi-head latent
attention and one delta-rule key head towards the eps of their norms.
"""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cases import HIDDEN, Case
from safetensors.torch import load_file, save_file

LOGIT_STD = 3.5
Arrays = dict[str, np.ndarray]
IMPLEMENTATIONS = {"attn_implementation": "eager", "experts_implementation": "eager"}
FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def rng(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for each named array, so that no draw depends on the order of others."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def build(case: Case, seed: int) -> tuple[torch.nn.Module, Arrays]:
    """The frozen float32 model with drawn weights, and the packed tensors of its MXFP4 experts (else empty)."""
    model_class = getattr(transformers, case.architecture)
    config = model_class.config_class(**case.config)
    config.architectures = [case.architecture]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class._from_config(config, **IMPLEMENTATIONS, dtype=torch.float32)
    packed: Arrays = {}
    tied = model.config.get_text_config().tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        if case.layout == "mxfp4" and re.search(r"experts\.(gate_up|down)_proj$", name):
            value = _draw_packed(case, name, tensor, seed, packed)
        else:
            value = _draw(case, name, tensor, seed, tied)
        tensor.copy_(torch.from_numpy(value.astype(np.float32)).to(torch.bfloat16))
    return model.eval().requires_grad_(False), packed


def _text(case: Case) -> dict[str, Any]:
    return case.config.get("text_config", case.config)


def _gain(case: Case, name: str) -> float:
    return next((gain for pattern, gain in case.gains.items() if re.search(pattern, name)), 1.0)


def _draw(case: Case, name: str, old: torch.Tensor, seed: int, tied: bool) -> np.ndarray:
    """New values for one parameter, by the first rule whose pattern its name matches."""
    kimi = "Glm5Next" in case.architecture  # decay bounded below, one value per channel
    centre, latents = old.numpy(), _text(case).get("kv_lora_rank")
    rules: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
        # Decays of a few to a few tens of tokens, so that a state crosses the border of a chunk.
        (r"A_log$", lambda z: 0.3 * z if kimi else z - 2),
        (r"dt_bias$", lambda z: z - 4 if kimi else 0.5 * z),
        (r"sinks$", lambda z: 1 + z),
        (r"e_score_correction_bias$", lambda z: 0.2 * z),
        (r"_hc\.scale$", lambda z: centre + 0.3 * z),
        (r"_hc\.base$", lambda z: 0.5 * z),
        (r"norm\d?\.weight$|layernorm\.weight$", lambda z: centre + 0.3 * z),  # centre: all 0 or all 1
        (r"bias$", lambda z: 0.3 * z),
        (r"index_kpool_compress_ape$", lambda z: z),
        (r"conv1d\.weight$", lambda z: 0.5 * z * _one_faint_head(case, len(z))),
        (r"embed_tokens\.weight$", lambda z: z * (LOGIT_STD / HIDDEN**0.5 if tied else 0.02)),
        (r"lm_head\.weight$", lambda z: z * LOGIT_STD / HIDDEN**0.5),
        # The latent rows are faint, the shared rotary key below them is not.
        (r"kv_a_proj_with_mqa", lambda z: z / HIDDEN**0.5 * np.where(np.arange(len(z)) < latents, 0.02, 1)[:, None]),
        (r"mlp\.(gate|router)\.weight$", lambda z: 1.5 * z / HIDDEN**0.5),
        # Experts of gpt-oss are stored inputs first.
        (r"experts\.\w+_proj$", lambda z: z / z.shape[1 if "GptOss" in case.architecture else 2] ** 0.5),
        (r"", lambda z: z / np.prod(z.shape[1:]) ** 0.5),
    ]
    draw = next(rule for pattern, rule in rules if re.search(pattern, name))
    return _gain(case, name) * draw(rng(seed, name).standard_normal(old.shape))


def _one_faint_head(case: Case, channels: int) -> np.ndarray:
    """[channels, 1, 1] factors on the taps of [queries | keys | values]: 0.01 on the first query and key head.

    There ``sum(x**2) + 1e-6`` is not ``sum(x**2)``: the eps of the delta rule's L2 norm counts.
    """
    config = _text(case)
    head = config.get("linear_key_head_dim") or config["linear_head_dim"]
    keys_start = head * (config.get("linear_num_key_heads") or config["linear_num_heads"])
    factors = np.ones((channels, 1, 1))
    factors[:head] = factors[keys_start : keys_start + head] = 0.01
    return factors


def _draw_packed(case: Case, name: str, old: torch.Tensor, seed: int, packed: Arrays) -> np.ndarray:
    """Random MXFP4 blocks and scales into ``packed``; returns what they mean, [experts, inputs, outputs].

    ``blocks`` [experts, outputs, inputs / 32, 16]: two values a byte, the low nibble first. ``scales``
    [experts, outputs, inputs / 32]: exponent of two, biased by 127.
    """
    experts, inputs, outputs = old.shape
    generator = rng(seed, name)
    blocks = generator.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
    # The sixteen values have root mean square 2.93: exponents around the one that gives the wanted gain.
    exponent = round(np.log2(_gain(case, name) / inputs**0.5 / 2.93))
    scales = (127 + exponent + generator.integers(-1, 2, (experts, outputs, inputs // 32))).astype(np.uint8)
    packed[name + "_blocks"], packed[name + "_scales"] = blocks, scales
    values = np.stack([FP4_VALUES[blocks & 15], FP4_VALUES[blocks >> 4]], -1).reshape(*scales.shape, 32)
    values = np.ldexp(values, scales.astype(np.int32)[..., None] - 127)
    return values.reshape(experts, outputs, inputs).swapaxes(1, 2)


def save(model: torch.nn.Module, packed: Arrays, case: Case, folder: Path) -> None:
    """Config and bfloat16 tensors in the layout of the released checkpoints."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        tensors = load_file(Path(scratch) / "model.safetensors")
        config = json.loads((Path(scratch) / "config.json").read_text())
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    config["dtype"] = "bfloat16"
    if case.layout == "fused_experts":
        tensors = fuse_experts(tensors)
    if case.layout == "mxfp4":
        tensors = {n: t for n, t in tensors.items() if n + "_blocks" not in packed}
        tensors |= {name: torch.from_numpy(array) for name, array in packed.items()}
        kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    if case.architecture.startswith("Qwen3_5") and "text_config" in config:
        # The released files carry a multi-token-prediction head that no loader of the language model wants.
        tensors["mtp.norm.weight"] = torch.zeros(HIDDEN, dtype=torch.bfloat16)
        tensors["mtp.fc.weight"] = torch.zeros(HIDDEN, 2 * HIDDEN, dtype=torch.bfloat16)

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if case.old_config:
        (folder / "config_old.json").write_text(json.dumps(in_old_style(config), indent=2, sort_keys=True) + "\n")
    tensors = {name: tensors[name].contiguous() for name in sorted(tensors)}
    if case.layout != "shards":
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, half in zip(files, halves, strict=True):
        save_file({name: tensors[name] for name in half}, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": {name: file for file, half in zip(files, halves, strict=True) for name in half},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def fuse_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All experts of a layer in one tensor, as Qwen3.5 is released; ``gate_up_proj`` has the gate rows first."""
    plain = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    stems = {name.split(".experts.")[0] + ".experts." for name in tensors if ".experts." in name}
    for stem in stems:
        count = len([name for name in tensors if name.startswith(stem) and name.endswith("down_proj.weight")])
        gate, up, down = (
            torch.stack([tensors[f"{stem}{expert}.{kind}_proj.weight"] for expert in range(count)])
            for kind in ("gate", "up", "down")
        )
        plain |= {stem + "gate_up_proj": torch.cat([gate, up], 1), stem + "down_proj": down}
    return plain


def in_old_style(config: dict[str, Any]) -> dict[str, Any]:
    """The same model in the fields of transformers 4: flat ``rope_theta``, ``rope_scaling``, ``torch_dtype``."""
    old = {name: value for name, value in config.items() if name not in {"rope_parameters", "dtype"}}
    scaling = dict(config["rope_parameters"])
    old["rope_theta"] = scaling.pop("rope_theta")
    old["rope_scaling"] = scaling if scaling["rope_type"] != "default" else None
    old["torch_dtype"] = config["dtype"]
    return old
