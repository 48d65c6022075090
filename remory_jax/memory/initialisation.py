"""Values of a fresh memory network.

"standard": projections are normal with variance 1 / inputs, norms are one, the query and the depth table are small, and
what writes to the residual stream is scaled down by the root of the number of sublayers that do.

"copier" (ours): the network starts out copying. The fused features are one tap, as it is; values and outputs of every
attention are the identity plus a little noise; the MLPs start quiet. So a slot's row starts as an average of that tap
over the positions it attends to, and training has to find out only where to look and what to change. Without this,
small networks stay for long on a plateau where they know what occurs in a history and not where.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from remory_jax.actor.parameters import Parameter
from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.parameters import parameters

__all__ = ["initial_values"]

_SMALL = 0.02  # of the query and the depth table, whose direction alone matters at the start
_WRITERS = ("o", "down")


def initial_values(config: MemoryConfig, key: Key[Array, ""], dtype: Any) -> dict[str, Any]:
    """Arrays in the structure of `remory_jax.memory.parameters.parameters`.

    Each leaf draws from a key of its own, made of ``key`` and its name, so a value does not depend on which options
    other leaves come from.
    """

    def value(path: tuple[Any, ...], parameter: Parameter) -> Array:
        names = tuple(part.key for part in path)
        own = jax.random.fold_in(key, zlib.crc32("/".join(names).encode()))
        return _value(config, names, parameter, own).astype(dtype)

    found: dict[str, Any] = jax.tree_util.tree_map_with_path(
        value, parameters(config), is_leaf=lambda node: isinstance(node, Parameter)
    )
    return found


def _value(config: MemoryConfig, names: tuple[str, ...], parameter: Parameter, key: Key[Array, ""]) -> Array:
    shape, kind, group = parameter.full_shape, names[-1], names[-2] if len(names) > 1 else ""
    if kind == "gate" and group == "summary":
        return jnp.full(shape, config.gate_init, jnp.float32)
    if group.endswith("_conv"):
        identity: Array = jnp.zeros(shape, jnp.float32)
        if kind == "base":
            identity = identity.at[..., 0, :].set(1.0)
        return identity
    if parameter.init != "normal":
        return (jnp.zeros if parameter.init == "zeros" else jnp.ones)(shape, jnp.float32)
    noise = jax.random.normal(key, shape, jnp.float32)
    if kind in ("query", "depth"):
        return noise * _SMALL
    inputs = math.prod(parameter.shape[: len(parameter.shape) - parameter.outputs])
    noise = noise / math.sqrt(inputs)
    if config.init == "standard":
        sublayers = 3 * config.num_hidden_layers - 1 if config.summary_attention else 2 * config.num_hidden_layers
        return noise / math.sqrt(sublayers) if kind in _WRITERS else noise
    return _copier(config, kind, parameter, noise)


def _copier(config: MemoryConfig, kind: str, parameter: Parameter, noise: Array) -> Array:
    d = config.hidden_size
    quiet = noise * config.copier_noise
    if kind == "fc":
        taps = len(config.target_layer_ids)
        return jnp.zeros(parameter.shape, jnp.float32).at[config.copier_tap % taps].set(jnp.eye(d))
    if kind == "pool":
        return jnp.eye(d)
    if kind == "v":  # [D, G, e]: head g takes its own share of the channels
        return quiet + jnp.broadcast_to(_value_channels(config), noise.shape)
    if kind == "o":  # [H, e, D]: the query heads of a group bring back the mean of what they read
        share = config.num_attention_heads // config.num_key_value_heads
        back = jnp.repeat(jnp.moveaxis(_value_channels(config), 0, 2), share, axis=0) / share
        return quiet + jnp.broadcast_to(back, noise.shape)
    return quiet if kind == "down" else noise


def _value_channels(config: MemoryConfig) -> Float[Array, "d kv_heads dim"]:
    """The identity from channels to value heads; where heads are narrower together, the last channels are left out."""
    d, heads, dim = config.hidden_size, config.num_key_value_heads, config.head_dim
    return jnp.eye(d, heads * dim).reshape(d, heads, dim)
