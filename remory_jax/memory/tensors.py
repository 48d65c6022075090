"""Between a network's arrays and the tensors of a released checkpoint: `memory_from_tensors` and its inverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from costmodel_jax.errors import InputError
from remory_jax.actor.parameters import Parameter, map_leaves
from remory_jax.actor.sharding import DEFAULT_RULES, Rules, shardings
from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.network import Buffer, MemoryNetwork, abstract_network
from remory_jax.memory.parameters import OUTPUT_RMS, parameters, stored_name, stored_shapes

__all__ = ["check_names", "memory_from_tensors", "network_from_values", "tensors_of"]

Host = np.ndarray


def memory_from_tensors(
    config: MemoryConfig,
    tensors: Mapping[str, Any],
    *,
    dtype: Any = jnp.float32,
    param_dtype: Any = None,
    mesh: Mesh | None = None,
    rules: Rules = DEFAULT_RULES,
) -> MemoryNetwork:
    """A network with the values of a released checkpoint.

    Args:
      config: its geometry; ``output_rms`` gives way to the checkpoint's ``output_embedding_rms``.
      tensors: arrays by released name: these names, no more and no fewer.
      dtype: of the computation.
      param_dtype: of the parameters; by default that of ``dtype``.
      mesh, rules: where the parameters lie; None for one device.

    Raises:
      InputError: a tensor that is missing, unknown, of another shape, or not of floating point.
    """
    shapes = {name: tuple(np.shape(value)) for name, value in tensors.items()}
    check_names(config, shapes, None)
    return network_from_values(
        config,
        lambda name: np.asarray(tensors[name]),
        dtype=dtype,
        param_dtype=dtype if param_dtype is None else param_dtype,
        mesh=mesh,
        rules=rules,
    )


def check_names(config: MemoryConfig, shapes: Mapping[str, tuple[int, ...]], path: str | PathLike[str] | None) -> None:
    """Refuse tensors that are not exactly the network's.

    Raises:
      InputError: naming a tensor and what to do.
    """
    file = None if path is None else str(path)
    wanted = stored_shapes(config)
    mend = "the config and the tensors belong to different networks"
    missing = [name for name in wanted if name not in shapes]
    if missing:
        raise InputError(f"lacks {len(missing)} of {len(wanted)} tensors, {missing[0]} among them; {mend}", path=file)
    unknown = [name for name in shapes if name not in wanted]
    if unknown:
        raise InputError(
            f"holds {len(unknown)} tensors that the network has not, {unknown[0]} among them; {mend}", path=file
        )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise InputError(
                f"tensor {name} has shape {shapes[name]} and the config makes it {shape}; {mend}", path=file
            )


def network_from_values(
    config: MemoryConfig,
    read: Callable[[str], Host],
    *,
    dtype: Any,
    param_dtype: Any,
    mesh: Mesh | None,
    rules: Rules,
) -> MemoryNetwork:
    """A network from a function that gives each checked tensor; the host holds one stack of them at a time."""
    kind = jnp.dtype(param_dtype)
    places = shardings(parameters(config), mesh, rules)

    def value(parameter: Parameter, place: jax.sharding.Sharding) -> Array:
        (stored,) = parameter.stored
        layers = [
            _as(read(stored_name(parameter, layer)), kind, stored_name(parameter, layer))
            for layer in parameter.layers or (None,)
        ]
        read_layers = [np.asarray(stored.read(layer, parameter.shape)) for layer in layers]
        whole = np.stack(read_layers) if parameter.layers else read_layers[0]
        return jax.make_array_from_callback(whole.shape, place, lambda index: np.ascontiguousarray(whole[index]))

    weights = map_leaves(value, parameters(config), places)
    scale = float(np.asarray(read(OUTPUT_RMS), np.float32))
    config = replace(config, output_rms=scale)
    network = abstract_network(config, dtype=dtype, param_dtype=kind)
    _fill(network, weights)
    rms = jnp.asarray(scale, jnp.float32)
    if mesh is not None:
        rms = jax.device_put(rms, NamedSharding(mesh, PartitionSpec()))
    network.output_embedding_rms = Buffer(rms)
    return network


def _as(tensor: Host, dtype: Any, name: str) -> Host:
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise InputError(f"tensor {name} is of {tensor.dtype}; weights are floating-point numbers")
    return tensor.astype(dtype)


def _fill(node: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _fill(getattr(node, name), value)
        else:
            setattr(node, name, nnx.Param(value))


def tensors_of(network: MemoryNetwork) -> Iterator[tuple[str, Host]]:
    """The tensors of a released checkpoint, one by one, in the dtype of the parameters."""
    pairs: list[tuple[Parameter, Array]] = []
    map_leaves(lambda parameter, value: pairs.append((parameter, value)), parameters(network.config), network.weights())
    for parameter, value in pairs:
        whole = on_host(value)
        for index, layer in enumerate(parameter.layers or (None,)):
            part = whole if layer is None else whole[index]
            tensor = np.empty(parameter.stored[0].shape, part.dtype)
            parameter.stored[0].write(tensor, part)
            yield stored_name(parameter, layer), tensor
    yield OUTPUT_RMS, np.asarray(on_host(network.output_embedding_rms[...]), np.float32)


def on_host(value: Array) -> Host:
    """All of an array, also one that several processes share; then all of them must ask."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        assert isinstance(value.sharding, NamedSharding)
        everywhere = NamedSharding(value.sharding.mesh, PartitionSpec())
        value = jax.jit(lambda x: x, out_shardings=everywhere)(value)
    return np.asarray(value)
