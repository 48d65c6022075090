"""Hugging Face config fields -> `ActorConfig`, one function per family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

from costmodel_jax.architecture.config import REQUIRED, Fields, read_config
from costmodel_jax.architecture.sizes import hidden_of
from costmodel_jax.errors import InputError
from remory_jax.actor.config import ActorConfig, Norm
from remory_jax.actor.families.glm import glm4_moe_lite, glm5_next, glm_moe_dsa, hyper_connections
from remory_jax.actor.families.parts import Layers
from remory_jax.actor.families.softmax import (
    conv_llama,
    gpt_oss,
    llama,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
)
from remory_jax.actor.rope_fields import number, scaling_of

__all__ = ["FAMILIES", "actor_config"]

FAMILIES: Mapping[str, Callable[[Fields], Layers]] = {
    "llama": llama,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
    "glm4_moe_lite": glm4_moe_lite,
    "glm_moe_dsa": glm_moe_dsa,
    "glm5_next": glm5_next,
    "gpt_oss": gpt_oss,
    "conv_llama": conv_llama,
}
"""transformers' ``model_type`` -> layers; with the suffix ``_text`` it is the language model inside a wrapper.

``conv_llama`` alone is ours and not in transformers.
"""

_NESTED = ("qwen3_5", "qwen3_5_moe", "glm5_next")
_ZERO_CENTRED = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
_NORM_EPS = {"gpt_oss": 1e-5, "glm4_moe_lite": 1e-5, "glm_moe_dsa": 1e-5, "glm5_next": 1e-5}


def actor_config(config: str | PathLike[str] | Mapping[str, object]) -> ActorConfig:
    """See `ActorConfig.from_hf`."""
    f, whole = read_config(config)
    model_type = f.values.get("model_type") or whole.get("model_type")
    family = str(model_type).removesuffix("_text")
    if family not in FAMILIES or (str(model_type) != family and family not in _NESTED):
        raise InputError(
            f"{f.prefix}model_type = {model_type!r} is not supported. Supported: {', '.join(FAMILIES)}", path=f.path
        )
    _refuse(f)
    return ActorConfig(
        family=family,
        hidden=hidden_of(f),
        vocabulary=f.integer("vocab_size", default=REQUIRED),
        tied=f.flag("tie_word_embeddings", default=bool(whole.get("tie_word_embeddings", False))),
        layers=FAMILIES[family](f),
        norm=Norm(
            eps=number(f, "rms_norm_eps", default=_NORM_EPS.get(family, 1e-6)),
            zero_centred=family in _ZERO_CENTRED,
            late_cast=family == "gpt_oss",
        ),
        hyper=hyper_connections(f) if family == "glm5_next" else None,
        stop_ids=_stop_ids(f, whole),
        nested=family in _NESTED and f.values is not whole,
        source=json.dumps(whole, default=str),
    )


def _refuse(f: Fields) -> None:
    """Variants a config can spell and no released model of these families has."""
    if f.values.get("hidden_act", "silu") not in ("silu", "swish"):
        f.fail("hidden_act", "only silu is supported; no released model of these families has another activation")
    if f.flag("mlp_bias", default=False):
        f.fail("mlp_bias", "biases in the MLP are not supported; no released model of these families has them")
    scaling_of(f)


def _stop_ids(f: Fields, whole: Mapping[str, object]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json beside the config where there is one, else the config's own."""
    sources: list[Mapping[str, object]] = []
    if f.path is not None:
        file = Path(f.path).parent / "generation_config.json"
        if file.is_file():
            sources.append(read_config(file)[1])
    for source in (*sources, f.values, whole):
        ids = source.get("eos_token_id")
        if ids is not None:
            listed = ids if isinstance(ids, list | tuple) else [ids]
            if not all(isinstance(item, int) and not isinstance(item, bool) for item in listed):
                raise InputError("eos_token_id must be an integer or a list of them", path=f.path)
            return tuple(listed)
    return ()
