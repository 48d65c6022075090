"""Actors without a checkpoint: abstract ones for compilation, and random ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from remory_jax.actor.config import ActorConfig
from remory_jax.actor.decoder import parameters
from remory_jax.actor.model import Actor
from remory_jax.actor.parameters import abstract, random_values
from remory_jax.actor.sharding import DEFAULT_RULES, Rules, shardings

__all__ = ["abstract_actor", "abstract_weights", "checked_dtype", "init_actor"]

_DTYPES = ("float32", "bfloat16", "float16")


def checked_dtype(dtype: Any) -> jnp.dtype:
    """``dtype`` as one that weights can have.

    Raises:
      ValueError: it is none of float32, bfloat16 and float16.
    """
    try:
        found: jnp.dtype | None = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in _DTYPES:
        raise ValueError(f"dtype = {dtype!r}: weights are {', '.join(_DTYPES)}")
    return found


def abstract_weights(config: ActorConfig, dtype: Any, mesh: Mesh | None, rules: Rules) -> Any:
    """The weights as `jax.ShapeDtypeStruct` with shardings."""
    tree = parameters(config)

    def placed(shape: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    return jax.tree.map(placed, abstract(tree, checked_dtype(dtype)), shardings(tree, mesh, rules))


def abstract_actor(
    config: ActorConfig, dtype: Any = "bfloat16", mesh: Mesh | None = None, *, rules: Rules = DEFAULT_RULES
) -> Actor:
    """An actor whose weights are shapes, dtypes and shardings without memory: to lower and compile ahead of time.

    Raises:
      ValueError: an unknown dtype, or a mesh that does not divide the model.
    """
    weights = abstract_weights(config, dtype, mesh, rules)
    return Actor(config=config, weights=weights, mesh=mesh, rules=rules)


def init_actor(
    config: ActorConfig,
    seed: int = 0,
    dtype: Any = "float32",
    mesh: Mesh | None = None,
    *,
    rules: Rules = DEFAULT_RULES,
) -> Actor:
    """An actor with random weights of unit gain, made where they lie; the same values on every mesh.

    Raises:
      ValueError: an unknown dtype, or a mesh that does not divide the model.
    """
    weights = _random(config, seed, checked_dtype(dtype), mesh, rules)()
    return Actor(config=config, weights=weights, mesh=mesh, rules=rules)


@functools.lru_cache(maxsize=16)
def _random(config: ActorConfig, seed: int, dtype: np.dtype[Any], mesh: Mesh | None, rules: Rules) -> Callable[[], Any]:
    target = abstract_weights(config, dtype, mesh, rules)

    def make() -> Any:
        return random_values(parameters(config), seed, dtype)

    return jax.jit(make, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, target))
