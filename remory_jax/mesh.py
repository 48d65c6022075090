"""The device mesh: axis names, their meaning, and a constructor that checks divisibility before anything compiles.

Axis types are Auto, with ``with_sharding_constraint`` at the few places that matter: Explicit types stop at stock
embedding look-ups and at gathers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

__all__ = ["AXES", "make_mesh", "platform"]

AXES = ("data", "fsdp", "tensor")
"""``data``: batch. ``fsdp``: batch, and parameters and optimizer state at rest. ``tensor``: heads, FFN, vocabulary."""


def make_mesh(*, data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Arrange devices into a mesh with axes ``AXES``.

    Args:
      data, fsdp, tensor: axis sizes; at most one may be -1 and takes what the others leave.
      devices: global list of devices; all of them by default. Call ``jax.distributed.initialize()`` before on pods.

    Raises:
      ValueError: if the sizes do not multiply to the number of devices, saying which sizes would.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    for name, size in sizes.items():
        if size < 1 and size != -1:
            raise ValueError(f"mesh axis {name} = {size}; use a positive size, or -1 for what the others leave")
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise ValueError(f"mesh axes {' and '.join(free)} are both -1; at most one can take what is left")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if len(devices) % fixed or (not free and fixed != len(devices)):
        shape = " x ".join(f"{name}={size}" for name, size in sizes.items() if size != -1)
        raise ValueError(
            f"mesh {shape} needs {'a multiple of ' if free else ''}{fixed} devices and there are {len(devices)}; "
            f"set one axis to -1, or choose sizes whose product divides {len(devices)}"
        )
    if free:
        sizes[free[0]] = len(devices) // fixed
    shape_of = tuple(sizes[name] for name in AXES)
    if devices == jax.devices():
        return jax.make_mesh(shape_of, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    return Mesh(np.asarray(devices).reshape(shape_of), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def platform() -> str:
    """What is being traced for: the platform of the mesh in context, which need not be here, or the default backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else str(device.platform)
