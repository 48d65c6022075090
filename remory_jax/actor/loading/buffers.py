"""Parameters on their devices, every device with its own part and nothing else.

Small ones are put together on the host. Large ones are made as zeros and filled in place, a piece of the file at a
time, by programs without communication.

Orbax's safetensors layout (0.12.8) is not used. Measured on a tensor of 250 MiB, bfloat16: it is held twice on its way
to one CPU device; split by columns over 8 devices it is read in 200,000 runs at 35 MB/s; a cast to float32 on the host
takes 8 s. A part of a tensor, which would bound all three, cannot be asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array

from remory_jax.actor.loading.folder import Tensor
from remory_jax.actor.loading.mxfp4 import decode
from remory_jax.actor.loading.pieces import cuts, view
from remory_jax.actor.loading.plan import Source

__all__ = ["assemble", "fill", "zeros"]


@functools.lru_cache(maxsize=8)
def _zeros(shapes: tuple[jax.ShapeDtypeStruct, ...]) -> Callable[[], list[Array]]:
    def make() -> list[Array]:
        return [jnp.zeros(each.shape, each.dtype) for each in shapes]

    return jax.jit(make, out_shardings=[each.sharding for each in shapes])


def zeros(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Arrays of these shapes, dtypes and shardings, made where they are to lie."""
    return _zeros(tuple(shapes))() if shapes else []


def assemble(shape: jax.ShapeDtypeStruct, sources: Sequence[Source], tensors: Mapping[str, Tensor]) -> Array:
    """A whole parameter, small enough to be put together on the host: nothing is compiled."""
    stacked = sources[0].row is not None
    shards = _shards(shape.sharding, shape.shape, stacked)
    hosts = [np.empty(shape.sharding.shard_shape(shape.shape), shape.dtype) for _ in shards]
    for source in sources:
        seen = view(source, tensors)
        for host, bounds in zip(hosts, shards, strict=True):
            (values,) = seen.take(tuple(slice(start, stop) for start, stop in bounds))
            host[source.row if stacked else ...] = values.transpose(np.argsort(seen.order))
    arrays = [
        jax.device_put(host, device) for host, devices in zip(hosts, shards.values(), strict=True) for device in devices
    ]
    return jax.make_array_from_single_device_arrays(shape.shape, shape.sharding, arrays)


def fill(buffer: Array, source: Source, tensors: Mapping[str, Tensor], *, limit: int) -> Array:
    """Write one layer of a parameter into its ``buffer``, which is donated, and return what takes its place.

    Args:
      limit: bytes of the file that this process holds at a time.

    Raises:
      InputError: the file cannot be read any more. The buffer is gone then, too.
    """
    stacked = source.row is not None
    shards = _shards(buffer.sharding, buffer.shape, stacked)
    local = buffer.sharding.shard_shape(buffer.shape)[stacked:]
    seen = view(source, tensors)
    along = seen.order[0]
    row = len(shards) * math.prod(local) // local[along]
    width = 1 if source.stored.mxfp4 else tensors[source.names[0]].itemsize  # a byte and its exponent make two values
    insert = _inserter(buffer.sharding, seen.order, source.stored.mxfp4, stacked)
    starts = np.zeros(buffer.ndim, np.int32)
    starts[0] = source.row or 0
    try:
        for cut in cuts(local[along], row * width, limit):
            held: list[list[Array]] = []
            for bounds, devices in shards.items():
                part = [slice(start, stop) for start, stop in bounds]
                part[along] = slice(part[along].start + cut.start, part[along].start + cut.stop)
                host = seen.take(tuple(part))
                held += [[jax.device_put(values, device) for values in host] for device in devices]
            starts[along + stacked] = cut.start
            pieces = tuple(_joined(parts, buffer, seen.order, stacked) for parts in zip(*held, strict=True))
            buffer = insert(buffer, pieces, starts.copy())
            buffer.block_until_ready()  # else the host would run ahead and hold more than the limit
    except BaseException:
        buffer.delete()
        raise
    return buffer


def _shards(
    sharding: Sharding, shape: tuple[int, ...], stacked: bool
) -> dict[tuple[tuple[int, int], ...], list[jax.Device]]:
    """(start, stop) per dimension of each part of a layer that this process's devices hold, and its devices."""
    found: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = [part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True)]
        found.setdefault(tuple(bounds[stacked:]), []).append(device)
    return found


def _joined(parts: Sequence[Array], buffer: Array, order: tuple[int, ...], stacked: bool) -> Array:
    """One array out of what each of this process's devices holds: the piece of every shard, side by side."""
    sharding = buffer.sharding
    if not isinstance(sharding, NamedSharding):
        return parts[0]
    local = sharding.shard_shape(buffer.shape)
    shards = [whole // part for whole, part in zip(buffer.shape, local, strict=True)][stacked:]
    shape = tuple(size * shards[axis] for size, axis in zip(parts[0].shape, order, strict=True))
    spec = _piece_spec(sharding, order, stacked)
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(sharding.mesh, spec), list(parts))


def _piece_spec(sharding: NamedSharding, order: tuple[int, ...], stacked: bool) -> PartitionSpec:
    return PartitionSpec(*(sharding.spec[axis + stacked] for axis in order))


@functools.lru_cache(maxsize=256)
def _inserter(
    sharding: Sharding, order: tuple[int, ...], quantised: bool, stacked: bool
) -> Callable[[Array, tuple[Array, ...], np.ndarray], Array]:
    """``(buffer, pieces, starts) -> buffer``: transposed, cast and written in place at ``starts`` of every shard."""

    def insert(buffer: Array, pieces: tuple[Array, ...], starts: Array) -> Array:
        values = decode(*pieces) if quantised else pieces[0].transpose(np.argsort(order))
        values = values.astype(buffer.dtype)
        return jax.lax.dynamic_update_slice(buffer, values[None] if stacked else values, list(starts))

    if isinstance(sharding, NamedSharding):
        piece = _piece_spec(sharding, order, stacked)
        specs = (sharding.spec, (piece,) * (2 if quantised else 1), PartitionSpec())
        insert = jax.shard_map(insert, mesh=sharding.mesh, in_specs=specs, out_specs=sharding.spec)
    return jax.jit(insert, donate_argnums=0)
