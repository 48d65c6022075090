"""A memory network on a mesh: made there, shard by shard, and split into what is trained and what is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from jaxtyping import Array, Float

from remory_jax.actor import Actor
from remory_jax.actor.sharding import Rules, check
from remory_jax.memory import MemoryConfig, MemoryNetwork
from remory_jax.memory.network import abstract_network, memory_axes
from remory_jax.memory.parameters import parameters

__all__ = ["Network", "create_network", "embedding_scale", "network_shapes", "split"]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A memory network, split.

    Attributes:
      graph: its structure, hashable.
      params: what is trained, float32: arrays, or `jax.ShapeDtypeStruct` with shardings.
      buffers: what is not.
      shardings: of ``params``.
    """

    graph: nnx.GraphDef[MemoryNetwork]
    params: Any
    buffers: Any
    shardings: Any

    def merge(self) -> MemoryNetwork:
        """The module again."""
        return nnx.merge(self.graph, self.params, self.buffers)


def split(network: MemoryNetwork) -> tuple[nnx.GraphDef[MemoryNetwork], Any, Any]:
    """A network's structure, what is trained, and what is not."""
    graph, params, *rest = nnx.split(network, nnx.Param, ...)
    return graph, params, rest[0]


def network_shapes(
    config: MemoryConfig, mesh: Mesh | None, rules: Rules, *, dtype: Literal["float32", "bfloat16"] = "float32"
) -> Network:
    """The network as shapes with shardings: nothing is allocated.

    Raises:
      ValueError: sizes that the mesh does not divide, each by name.
    """
    graph, params, buffers = split(abstract_network(config, dtype=jnp.dtype(dtype)))
    if mesh is None:
        replicated: Sharding = SingleDeviceSharding(jax.local_devices()[0])
        shardings = jax.tree.map(lambda _: replicated, params)
    else:
        check(parameters(config), mesh, rules)
        axes = memory_axes(config)
        shardings = jax.tree.map(
            lambda _, names: NamedSharding(mesh, rules.spec(names)),
            params,
            axes,
            is_leaf=lambda x: isinstance(x, tuple),
        )
        replicated = NamedSharding(mesh, PartitionSpec())

    def placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return Network(
        graph=graph,
        params=jax.tree.map(placed, params, shardings),
        buffers=jax.tree.map(lambda leaf: placed(leaf, replicated), buffers),
        shardings=shardings,
    )


def create_network(
    config: MemoryConfig,
    mesh: Mesh | None,
    rules: Rules,
    *,
    seed: int,
    scale: Array,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Network:
    """A fresh network; every device makes its own shards.

    Values depend on the seed alone, not on the mesh.

    Args:
      scale: root mean square of the rows, see `embedding_scale`.
    """
    shapes = network_shapes(config, mesh, rules, dtype=dtype)

    def make(key: Any, scale: Any) -> tuple[Any, Any]:
        _, params, buffers = split(MemoryNetwork(config, rngs=nnx.Rngs(params=key), dtype=jnp.dtype(dtype)))
        return params, jax.tree.map(lambda leaf: scale.astype(leaf.dtype), buffers)

    out = jax.tree.map(lambda leaf: leaf.sharding, (shapes.params, shapes.buffers))
    params, buffers = jax.jit(make, out_shardings=out)(jax.random.key(seed), scale)
    return Network(graph=shapes.graph, params=params, buffers=buffers, shardings=shapes.shardings)


@jax.jit
def embedding_scale(actor: Actor) -> Float[Array, ""]:
    """Root mean square of the actor's input embeddings: the scale that memory rows have."""
    return jnp.sqrt(jnp.mean(jnp.square(actor.weights["embed"].astype(jnp.float32))))
