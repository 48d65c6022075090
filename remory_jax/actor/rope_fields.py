"""Rotary fields of a Hugging Face config, in the spelling of transformers 4 (flat) and 5 (``rope_parameters``)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodel_jax.architecture.config import Fields
from remory_jax.actor.config import Rotary, Scaling

__all__ = ["magnitude", "number", "rotary_of", "scaling_of"]


def number(f: Fields, name: str, *, default: float, minimum: float = 0.0) -> float:
    """A real field of at least ``minimum``; null counts as absent.

    Raises:
      InputError: not a number, or below the minimum.
    """
    value = f.values.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < minimum:
        f.fail(name, f"must be a finite number of at least {minimum}" if math.isfinite(minimum) else "must be a number")
    return float(value)


def _rope(f: Fields) -> Fields:
    """The rotary fields: ``rope_parameters``, else ``rope_scaling``, with the flat fields below either."""
    name = "rope_parameters" if f.values.get("rope_parameters") is not None else "rope_scaling"
    nested = f.values.get(name)
    if nested is None:
        nested = {}
    if not isinstance(nested, Mapping):
        f.fail(name, "must be an object with rope_type and its parameters")
    flat = {key: f.values[key] for key in ("rope_theta", "partial_rotary_factor") if f.values.get(key) is not None}
    return Fields(
        {**flat, **{key: value for key, value in nested.items() if value is not None}}, f.path, f"{f.prefix}{name}."
    )


def scaling_of(f: Fields) -> Scaling | None:
    """How frequencies are stretched, or None for the plain ones.

    Raises:
      InputError: a rope_type that is not supported, or a parameter of it that is missing or malformed.
    """
    rope = _rope(f)
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind in ("default", "mrope"):  # for text alone multimodal positions are the plain ones
        return None
    limit = f.integer("max_position_embeddings", default=0, minimum=0)
    original = rope.integer("original_max_position_embeddings", default=limit, minimum=0)
    if kind == "linear":
        return Scaling(kind="linear", factor=number(rope, "factor", default=1.0))
    if kind not in ("yarn", "llama3"):
        rope.fail("rope_type", "is not supported. Supported: default, linear, llama3, yarn")
    if original < 1:
        rope.fail("original_max_position_embeddings", f"rope_type {kind} needs it, or max_position_embeddings")
    if kind == "llama3":
        return Scaling(
            kind="llama3",
            factor=number(rope, "factor", default=8.0),
            original=original,
            fast=number(rope, "high_freq_factor", default=4.0),
            slow=number(rope, "low_freq_factor", default=1.0),
        )
    factor = number(rope, "factor", default=limit / original or 1.0)
    spread, all_dims = number(rope, "mscale", default=0.0), number(rope, "mscale_all_dim", default=0.0)
    plain = _mscale(factor, spread) / _mscale(factor, all_dims) if spread and all_dims else _mscale(factor, 1.0)
    return Scaling(
        kind="yarn",
        factor=factor,
        original=original,
        fast=number(rope, "beta_fast", default=32.0) or 32.0,
        slow=number(rope, "beta_slow", default=1.0) or 1.0,
        truncate=rope.flag("truncate", default=True),
        magnitude=number(rope, "attention_factor", default=plain),
    )


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def magnitude(f: Fields) -> float:
    """YaRN's factor on the softmax scale of latent attention, for which mscale_all_dim asks; squared by the caller."""
    rope = _rope(f)
    scaling = scaling_of(f)
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    all_dims = number(rope, "mscale_all_dim", default=0.0)
    return _mscale(scaling.factor, all_dims) if all_dims else 1.0


def rotary_of(
    f: Fields, width: int, *, theta: float = 1e4, partial: float | None = 1.0, interleaved: bool = False
) -> Rotary:
    """Rotation of the first ``partial`` of ``width`` dimensions (None: all of them, whatever the config says)."""
    rope = _rope(f)
    share = 1.0 if partial is None else number(rope, "partial_rotary_factor", default=partial)
    dim = int(width * share)
    if dim < 2 or dim % 2 or dim > width:
        rope.fail("partial_rotary_factor", f"rotates {dim} of {width} dimensions; that must be an even number of them")
    return Rotary(
        dim=dim, theta=number(rope, "rope_theta", default=theta), interleaved=interleaved, scaling=scaling_of(f)
    )
