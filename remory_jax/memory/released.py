"""The released format's ``config.json``: two shapes that are in use, read into one description and written back.

Shape "summary" (Qwen3.8-27B) has ``compressor``, ``residual`` and ``summary_contract``; shape "plain" (GLM-5.3-Flash,
no summary attention) has ``schema``, ``compressor`` and ``token_contract``, and leaves block, budget and placeholder to
the program. What the format has no field for (rotary base, options of ours) is written beside its own fields, and only
where it is not the default, so a released folder keeps its ``config.json`` on the way through.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from costmodel_jax.errors import InputError
from remory_jax.data.template import Template
from remory_jax.memory.config import MemoryConfig

__all__ = ["Released", "canonical_sha256", "described", "parse"]

PLAIN_SCHEMA = "remory_glm53_local_evaluation_v1"
_PLAIN_RESIDUAL = {"block_tokens": 1024, "memory_budget": 4096}
_PLAIN_PLACEHOLDER = 154820

_GEOMETRY = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "compression_ratio",
)
_OWN = ("rope_theta", "rms_norm_eps", "dynamic_conv", "conv_kernel", "conv_group", "query_init", "rope_table_dtype")
"""Fields of `MemoryConfig` that the released configs lack and that change the function a checkpoint computes."""

_MARKERS = {
    "s_open": "student_summary_before_ids",
    "s_close": "student_summary_after_ids",
    "m_open": "student_memory_before_ids",
    "m_close": "student_memory_after_ids",
}


@dataclass(frozen=True, kw_only=True)
class Released:
    """What a checkpoint's ``config.json`` says.

    Args:
      config: the network's.
      template: markers around summary and memory; None where the config has none.
      placeholder: token id that stands for a memory row.
      target_model, target_revision: the actor's published name, for people; nothing is loaded by it.
      source: the JSON object it was read from; written back with what has changed.
    """

    config: MemoryConfig
    template: Template | None = None
    placeholder: int | None = None
    target_model: str | None = None
    target_revision: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def says_rope_table(self) -> bool:
        """Whether the checkpoint itself says how rotary frequencies are rounded."""
        return "rope_table_dtype" in self.source.get("compressor", {})


def canonical_sha256(config: Mapping[str, Any]) -> str:
    """The hash that ``manifest.json`` has of ``config.json``: of its canonical JSON, not of its bytes."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def parse(content: Mapping[str, Any], path: Path) -> Released:
    """Read either shape.

    Raises:
      InputError: a field that is missing, of another type, or out of range, naming it.
    """
    compressor = _section(content, "compressor", path)
    plain = content.get("schema") == PLAIN_SCHEMA
    residual = _section(content, "residual", path) if "residual" in content or not plain else _PLAIN_RESIDUAL
    geometry: dict[str, Any] = {name: _integer(compressor, "compressor", name, path) for name in _GEOMETRY}
    layers, taps = geometry["num_hidden_layers"], compressor.get("target_layer_ids")
    if not isinstance(taps, list) or not all(type(tap) is int for tap in taps):
        raise InputError(f"compressor.target_layer_ids = {taps!r}; it must be a list of decoder layers", path=path)
    width = compressor.get("target_hidden_size", geometry["hidden_size"])
    if width != geometry["hidden_size"]:
        raise InputError(
            f"compressor.target_hidden_size = {width} is not hidden_size = {geometry['hidden_size']}; "
            "rows live in the actor's embedding space",
            path=path,
        )
    kinds = ["sliding_attention"] * (layers - 1) + ["full_attention"]
    if compressor.get("layer_types", kinds) != kinds:
        raise InputError(f"compressor.layer_types must be {layers - 1} sliding layers and a full one", path=path)
    if residual.get("compression_ratio", geometry["compression_ratio"]) != geometry["compression_ratio"]:
        raise InputError("residual.compression_ratio and compressor.compression_ratio differ", path=path)
    optional = {"max_depth": "max_depth", "summary_gate_init": "gate_init", "output_embedding_rms": "output_rms"}
    given = {ours: compressor[theirs] for theirs, ours in optional.items() if theirs in compressor}
    given |= {name: compressor[name] for name in _OWN if name in compressor}
    try:
        config = MemoryConfig(
            **geometry,
            **given,
            target_layer_ids=tuple(taps),
            block_tokens=_integer(residual, "residual", "block_tokens", path),
            memory_budget=_integer(residual, "residual", "memory_budget", path),
            local_window=_integer(compressor, "compressor", "local_window", path),
            summary_attention=compressor.get("summary_attention", not plain),
        )
    except (ValueError, TypeError) as error:
        raise InputError(f"describes no network: {error}", path=path) from error
    contract = content.get("token_contract" if plain else "summary_contract")
    template, placeholder = _markers(contract, path)
    return Released(
        config=config,
        template=template,
        placeholder=_PLAIN_PLACEHOLDER if placeholder is None and plain else placeholder,
        target_model=content.get("target_model"),
        target_revision=content.get("target_revision"),
        source=content,
    )


def _section(content: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    value = content.get(name)
    if not isinstance(value, dict):
        raise InputError(f"has no object {name!r}; is this the folder of a memory network?", path=path)
    return value


def _integer(section: Mapping[str, Any], name: str, key: str, path: Path) -> int:
    value = section.get(key)
    if type(value) is not int:
        raise InputError(f"{name}.{key} = {value!r}; it must be a whole number", path=path)
    return value


def _markers(contract: Any, path: Path) -> tuple[Template | None, int | None]:
    if contract is None:
        return None, None
    markers = {ours: contract.get(theirs) for ours, theirs in _MARKERS.items()}
    for ours, ids in markers.items():
        if not isinstance(ids, list) or not all(type(value) is int and value >= 0 for value in ids):
            raise InputError(f"{_MARKERS[ours]} = {ids!r}; it must be a list of token ids", path=path)
    return Template(**{name: tuple(ids) for name, ids in markers.items()}), contract.get("end_token_id")


def described(released: Released, scale: float) -> dict[str, Any]:
    """The JSON object of ``config.json``; ``scale`` is the network's ``output_embedding_rms``."""
    config = released.config
    content: dict[str, Any] = copy.deepcopy(dict(released.source))
    plain = content.get("schema") == PLAIN_SCHEMA or (not content and not config.summary_attention)
    if plain:
        content["schema"] = PLAIN_SCHEMA
    compressor = content.setdefault("compressor", {})
    compressor |= {name: getattr(config, name) for name in _GEOMETRY}
    compressor |= {
        "target_hidden_size": config.hidden_size,
        "target_layer_ids": list(config.target_layer_ids),
        "layer_types": ["sliding_attention"] * (config.num_hidden_layers - 1) + ["full_attention"],
        "local_window": config.local_window,
    }
    _unless(compressor, "max_depth", config.max_depth, 8 if plain else None)
    _unless(compressor, "summary_gate_init", config.gate_init, 1e-3 if plain else None)
    _unless(compressor, "summary_attention", config.summary_attention, not plain)
    for name in _OWN:
        _unless(compressor, name, getattr(config, name), getattr(MemoryConfig, name))
    if np.float32(compressor.get("output_embedding_rms", np.nan)) != np.float32(scale):
        compressor["output_embedding_rms"] = scale
    residual = {"block_tokens": config.block_tokens, "memory_budget": config.memory_budget}
    if not plain or "residual" in content or residual != _PLAIN_RESIDUAL:
        content["residual"] = content.get("residual", {}) | residual | {"compression_ratio": config.compression_ratio}
    if released.template is not None:
        contract = content.setdefault("token_contract" if plain else "summary_contract", {})
        contract |= {theirs: list(getattr(released.template, ours)) for ours, theirs in _MARKERS.items()}
        if released.placeholder is not None:
            _unless(contract, "end_token_id", released.placeholder, _PLAIN_PLACEHOLDER if plain else None)
    for name in ("target_model", "target_revision"):
        if getattr(released, name) is not None:
            content[name] = getattr(released, name)
    return content


def _unless(section: dict[str, Any], name: str, value: Any, default: Any) -> None:
    """Set a field, unless it is absent and what its absence says."""
    if name in section or value != default:
        section[name] = value
