"""The layers of a memory network: slots that read the source, each other, and the summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor.config import Norm, Rotary
from remory_jax.actor.mlp import swiglu
from remory_jax.actor.norms import rms_norm
from remory_jax.actor.rotary import Rotation, frequencies, rotate
from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.dynamic_conv import around

__all__ = ["Summary", "global_layer", "local_layer", "rotary_table", "table_cast"]

_LOWEST = float(np.finfo(np.float32).min)

Slots = Float[Array, "batch slots d"]
Angles = tuple[Any, Any]
"""Rotations of the source's rows and of the slots; their lengths differ."""


@pytree()
@dataclass(frozen=True, kw_only=True)
class Summary:
    """What conditions the local layers: states [b, S, D] of b examples, whose blocks are consecutive batch rows."""

    states: Float[Array, "examples summary d"]
    mask: Bool[Array, "examples summary"]


def norm(config: MemoryConfig, weight: Float[Array, " d"], x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Root-mean-square norm: statistics in float32, cast, then the weight."""
    return rms_norm(x, weight, Norm(eps=float(config.rms_norm_eps)))


def table_cast(config: MemoryConfig, values: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Float32 values, rounded as ``config.rope_table_dtype`` says."""
    rounded: Array = values.astype(config.rope_table_dtype).astype(jnp.float32)
    return rounded


def _rotary(config: MemoryConfig) -> Rotary:
    return Rotary(dim=config.head_dim, theta=float(config.rope_theta))


def rotary_table(config: MemoryConfig, positions: Int[Array, "batch length"]) -> Rotation:
    """cos and sin [B, S, e / 2], the angles in float32."""
    radians = table_cast(config, jnp.asarray(frequencies(_rotary(config))))
    angles = positions.astype(jnp.float32)[..., None] * radians[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def _project(
    x: Float[Array, "batch length d"], kernel: Float[Array, "d heads dim"]
) -> Float[Array, "batch length heads dim"]:
    return jnp.einsum("bld,dhe->blhe", x, kernel)


def _attend(
    q: Float[Array, "batch queries heads dim"],
    k: Float[Array, "batch keys kv_heads dim"],
    v: Float[Array, "batch keys kv_heads dim"],
    mask: Bool[Array, "batch #queries keys"],
    output: Float[Array, "heads dim d"],
) -> Float[Array, "batch queries d"]:
    """Grouped attention with float32 scores, and its output projection. A query that may read nothing reads all."""
    batch, queries, heads, dim = q.shape
    groups = k.shape[2]
    grouped = q.reshape(batch, queries, groups, heads // groups, dim)
    scores = jnp.einsum("bngre,bkge->bgrnk", grouped, k, preferred_element_type=jnp.float32) / math.sqrt(dim)
    scores = jnp.where(mask[:, None, None], scores, _LOWEST)
    shares = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    read = jnp.einsum("bgrnk,bkge->bngre", shares, v).reshape(batch, queries, heads, dim)
    return jnp.einsum("bnhe,hed->bnd", read, output)


def _slot_attention(
    config: MemoryConfig,
    weights: Mapping[str, Array],
    x: Slots,
    source: Float[Array, "batch source d"] | None,
    angles: Angles,
    mask: Bool[Array, "batch slots keys"],
) -> Slots:
    """Slots read the source's rows, which are not normalised again, and slots; or slots alone."""
    rotary = _rotary(config)
    q, k, v = (_project(x, weights[name]) for name in ("q", "k", "v"))
    q, k = norm(config, weights["q_norm"], q), norm(config, weights["k_norm"], k)
    q, k = rotate(q, angles[1], rotary), rotate(k, angles[1], rotary)
    if source is not None:
        source_k = rotate(norm(config, weights["k_norm"], _project(source, weights["k"])), angles[0], rotary)
        k = jnp.concatenate([source_k, k], axis=1)
        v = jnp.concatenate([_project(source, weights["v"]), v], axis=1)
    return _attend(q, k, v, mask, weights["o"])


def _summary_step(config: MemoryConfig, weights: Mapping[str, Array], z: Slots, summary: Summary) -> Slots:
    """The gated reading of the summary; rows whose summary is empty keep what they have.

    Keys and values are made once per example, however many blocks it has.
    """
    examples, width, d = len(summary.states), z.shape[1], z.shape[2]
    x = norm(config, weights["query_norm"], z).reshape(examples, len(z) // examples * width, d)  # [b, blocks N, D]
    states = norm(config, weights["summary_norm"], summary.states)
    q, k, v = _project(x, weights["q"]), _project(states, weights["k"]), _project(states, weights["v"])
    q, k = norm(config, weights["q_norm"], q), norm(config, weights["k_norm"], k)
    read = _attend(q, k, v, summary.mask[:, None, :], weights["o"])
    read = jnp.where(jnp.any(summary.mask, axis=1)[:, None, None], read, 0)
    return z + jnp.tanh(weights["gate"])[None, None] * read.reshape(z.shape)


def _mlp(weights: Mapping[str, Array], x: Slots) -> Slots:
    return swiglu(x @ weights["gate"], x @ weights["up"], None) @ weights["down"]


def _finish(config: MemoryConfig, weights: Mapping[str, Any], z: Slots, real: Bool[Array, "batch slots"]) -> Slots:
    mlp = weights["mlp"]
    x = norm(config, weights["post_norm"], z)
    z = z + around(weights.get("mlp_conv"), lambda y: _mlp(mlp, y), x, real)
    return jnp.where(real[..., None], z, 0)


def local_layer(
    config: MemoryConfig,
    weights: Mapping[str, Any],
    z: Slots,
    source: Float[Array, "batch source d"],
    summary: Summary | None,
    angles: Angles,
    mask: Bool[Array, "batch slots keys"],
    real: Bool[Array, "batch slots"],
) -> tuple[Slots, tuple[Slots, Slots]]:
    """Attention over source and slots near by, the summary, the MLP.

    Returns:
      the slots; and, to compare with recordings, the attention's output and the slots after the summary step.
    """

    def attend(y: Slots) -> Slots:
        return _slot_attention(config, weights["attention"], y, source, angles, mask)

    read = around(weights.get("attention_conv"), attend, norm(config, weights["input_norm"], z), real)
    z = z + read
    if summary is not None:
        z = _summary_step(config, weights["summary"], z, summary)
    return _finish(config, weights, z, real), (read, z)


def global_layer(
    config: MemoryConfig,
    weights: Mapping[str, Any],
    z: Slots,
    angles: Rotation,
    mask: Bool[Array, "batch slots slots"],
    real: Bool[Array, "batch slots"],
) -> tuple[Slots, Slots]:
    """Attention among the slots, the MLP.

    Returns:
      the slots, and the attention's output.
    """

    def attend(y: Slots) -> Slots:
        return _slot_attention(config, weights["attention"], y, None, (None, angles), mask)

    read = around(weights.get("attention_conv"), attend, norm(config, weights["input_norm"], z), real)
    return _finish(config, weights, z + read, real), read
