"""Which stored tensors fill which parameter, for a configuration and a folder: strictly, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from costmodel_jax.errors import InputError
from remory_jax.actor.config import ActorConfig
from remory_jax.actor.decoder import parameters
from remory_jax.actor.loading.folder import Tensor
from remory_jax.actor.loading.mxfp4 import stored_shapes
from remory_jax.actor.parameters import Parameter, Stored, leaves

__all__ = ["PREFIXES", "Source", "first_sources", "plan", "shapes"]

PREFIXES = ("model.", "model.language_model.")
"""Of the names of everything but the head: text models, and language models inside a multimodal one."""

_FLOATS = ("F64", "F32", "F16", "BF16")
_OTHER_PARTS = re.compile(r"(model\.)?(visual|mtp)\.|.*\.rotary_emb\.inv_freq$")
_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class Source:
    """What fills one layer of a parameter.

    Args:
      leaf: the parameter's place among the leaves of the tree.
      row: the layer's place on the stacked dimension; None for what the model has once.
      stored: the layout.
      names: the tensor's name; or every expert's; or those of MXFP4 blocks and scales.
    """

    leaf: int
    parameter: Parameter
    row: int | None
    stored: Stored
    names: tuple[str, ...]


def shapes(source: Source) -> tuple[tuple[int, ...], ...]:
    """Of the stored tensors, in the order of their names."""
    if source.stored.mxfp4:
        return stored_shapes(source.stored.shape)
    return (source.stored.shape,) * len(source.names)


def _names(parameter: Parameter, stored: Stored, layer: int | None, prefix: str) -> tuple[str, ...]:
    name = stored.name
    if layer is not None:
        name = f"{prefix}layers.{layer}.{name}"
    elif not name.startswith("lm_head."):
        name = prefix + name
    if stored.mxfp4:
        return f"{name}_blocks", f"{name}_scales"
    if stored.per_expert:
        experts = parameter.shape[parameter.axes.index("expert")]
        return tuple(name.replace("{expert}", str(expert)) for expert in range(experts))
    return (name,)


def _options(config: ActorConfig, prefix: str) -> Iterator[list[Source]]:
    """The alternative sources of each layer of each parameter."""
    for leaf, parameter in enumerate(leaves(parameters(config))):
        for row, layer in enumerate(parameter.layers or (None,)):
            yield [
                Source(
                    leaf=leaf,
                    parameter=parameter,
                    row=None if layer is None else row,
                    stored=stored,
                    names=_names(parameter, stored, layer, prefix),
                )
                for stored in parameter.stored
            ]


def first_sources(config: ActorConfig) -> list[Source]:
    """Every source in the layout that is written: the first one of each parameter."""
    return [options[0] for options in _options(config, PREFIXES[config.nested])]


def plan(config: ActorConfig, tensors: Mapping[str, Tensor], folder: Path) -> list[Source]:
    """The sources that ``tensors`` have for every parameter.

    Raises:
      InputError: listing what is missing, of another shape, quantised in an unknown way, or not part of the model.
    """
    _check_quantisation(config, folder)
    prefix = next((p for p in PREFIXES if f"{p}embed_tokens.weight" in tensors), PREFIXES[config.nested])
    sources = [
        next((option for option in options if any(name in tensors for name in option.names)), options[0])
        for options in _options(config, prefix)
    ]
    missing: dict[str, None] = {}
    wrong: dict[str, None] = {}
    wanted: set[str] = set()
    for source in sources:
        kinds = ("U8",) if source.stored.mxfp4 else _FLOATS
        for name, shape in zip(source.names, shapes(source), strict=True):
            wanted.add(name)
            tensor = tensors.get(name)
            if tensor is None:
                missing[name] = None
            elif tensor.shape != shape:
                wrong[f"{name} in {tensor.file.name} has shape {tensor.shape}; config.json asks for {shape}"] = None
            elif tensor.dtype not in kinds:
                wrong[f"{name} in {tensor.file.name} is {tensor.dtype}; only {', '.join(kinds)} is known there"] = None
    unexpected = [
        f"{name} in {tensor.file.name}"
        for name, tensor in tensors.items()
        if name not in wanted and not _ignored(config, prefix, name)
    ]
    problems = [
        f"{title} ({len(found)}):" + "".join(f"\n  {line}" for line in found[:_LISTED]) + _more(found)
        for title, found in (
            ("missing tensors", list(missing)),
            ("tensors of a wrong shape or type", list(wrong)),
            ("unexpected tensors", unexpected),
        )
        if found
    ]
    if problems:
        raise InputError(
            "config.json and the safetensors files do not belong together, or the weights are quantised in a way that "
            "is not supported:\n" + "\n".join(problems),
            path=folder,
        )
    return sources


def _more(found: list[str]) -> str:
    return f"\n  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""


def _ignored(config: ActorConfig, prefix: str, name: str) -> bool:
    """Vision towers, heads that predict several tokens, tied heads and constants: no part of the language model."""
    if _OTHER_PARTS.match(name) or (config.tied and name == "lm_head.weight"):
        return True
    extra = re.match(rf"{re.escape(prefix)}layers\.(\d+)\.", name)  # GLM keeps its multi-token head there
    return extra is not None and config.family.startswith("glm") and int(extra[1]) >= len(config.layers)


def _check_quantisation(config: ActorConfig, folder: Path) -> None:
    whole = json.loads(config.source) if config.source else {}
    for where, fields in (("", whole), ("text_config.", whole.get("text_config") or {})):
        method = (fields.get("quantization_config") or {}).get("quant_method")
        if method not in (None, "mxfp4"):
            raise InputError(
                f"{where}quantization_config.quant_method = {method!r} is not supported, only mxfp4 is; get the "
                "bfloat16 release of this model, or dequantise it with transformers and save_pretrained",
                path=folder / "config.json",
            )
