"""Logical axes of the actor and where they lie on the mesh ``data, fsdp, tensor``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from remory_jax.actor.parameters import Parameter, leaves, map_leaves
from remory_jax.mesh import AXES

__all__ = ["DEFAULT_RULES", "Rules", "Sharding", "check", "shardings"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Mesh axes of each logical axis; None replicates it. One parameter never uses a mesh axis twice.

    The defaults keep parameters sharded at rest over ``fsdp`` along the width of the residual stream, and split heads,
    MLP width, experts and vocabulary over ``tensor``. Where there are fewer key-value heads than tensor devices, set
    ``kv_heads=None``: they are small.
    """

    batch: str | tuple[str, ...] | None = ("data", "fsdp")
    layers: str | None = None
    embed: str | None = "fsdp"
    vocab: str | None = "tensor"
    heads: str | None = "tensor"
    kv_heads: str | None = "tensor"
    mlp: str | None = "tensor"
    expert: str | None = "tensor"
    rank: str | None = None  # low-rank latents
    features: str | None = "tensor"  # width of tapped layers, which are kept for the whole of a long sequence

    def __post_init__(self) -> None:
        for name, axis in vars(self).items():
            for part in (axis,) if isinstance(axis, str) else axis or ():
                if part not in AXES:
                    raise ValueError(f"Rules.{name} = {axis!r}: mesh axes are {', '.join(AXES)}, or None to replicate")

    def spec(self, axes: tuple[str | None, ...]) -> PartitionSpec:
        """Mesh axes of an array with these logical axes."""
        return PartitionSpec(*(None if axis is None else getattr(self, axis) for axis in axes))


DEFAULT_RULES = Rules()


def _extent(mesh: Mesh, axis: str | tuple[str, ...] | None) -> int:
    names = (axis,) if isinstance(axis, str) else axis or ()
    return math.prod(mesh.shape[name] for name in names)


def check(tree: Any, mesh: Mesh, rules: Rules) -> None:
    """Refuse a mesh that does not divide the model, before anything is compiled or loaded.

    Raises:
      ValueError: with every parameter dimension that a mesh axis does not divide, or that uses a mesh axis twice.
    """
    missing = [axis for axis in AXES if axis not in mesh.shape]
    if missing:
        raise ValueError(f"the mesh has axes {', '.join(mesh.shape)} and lacks {', '.join(missing)}; use make_mesh")
    problems: dict[str, None] = {}
    for parameter in leaves(tree):
        name, spec = parameter.stored[0].name, rules.spec(parameter.axes)
        used = [part for axis in spec if axis is not None for part in ((axis,) if isinstance(axis, str) else axis)]
        doubled = sorted({part for part in used if used.count(part) > 1 and mesh.shape[part] > 1})
        if doubled:
            problems[f"{name} {parameter.axes}: mesh axis {', '.join(doubled)} is used twice; change a rule"] = None
        for logical, size, axis in zip(parameter.axes, parameter.shape, spec, strict=True):
            if size % _extent(mesh, axis):
                problems[
                    f"{logical} = {size} ({name}) is not divided by mesh axis {axis} = {_extent(mesh, axis)}; "
                    f"choose another mesh, or replicate it with Rules({logical}=None)"
                ] = None
    if problems:
        raise ValueError("the mesh does not fit the model:\n  " + "\n  ".join(problems))


def shardings(tree: Any, mesh: Mesh | None, rules: Rules) -> Any:
    """The sharding of every parameter: by the rules on a mesh, else the default device."""
    if mesh is None:
        single = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return map_leaves(lambda parameter: single, tree)
    check(tree, mesh, rules)

    def named(parameter: Parameter) -> NamedSharding:
        return NamedSharding(mesh, rules.spec(parameter.full_axes))

    return map_leaves(named, tree)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Where the activations of one call lie; without a mesh every method is the identity."""

    mesh: Mesh | None
    rules: Rules
    batch: int  # global

    @property
    def rows(self) -> str | tuple[str, ...] | None:
        """Mesh axes of the batch; a batch they do not divide is replicated, as a single prompt is."""
        if self.mesh is None or self.batch % _extent(self.mesh, self.rules.batch):
            return None
        return self.rules.batch

    def constrain(self, x: Array, *axes: str | None) -> Array:
        """Pin [B, ...] to the mesh: the batch, then ``axes`` of the other dimensions; unnamed ones are whole."""
        if self.mesh is None:
            return x
        rest = (*axes, *(None,) * (x.ndim - 1 - len(axes)))
        spec = PartitionSpec(self.rows, *self.rules.spec(rest))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def whole(self, x: Array, *axes: str | None) -> Array:
        """Pin a weight to ``axes``, and every device to the whole of the other dimensions."""
        if self.mesh is None:
            return x
        spec = PartitionSpec(*self.rules.spec((*axes, *(None,) * (x.ndim - len(axes)))))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def constrain_taps(self, taps: Array) -> Array:
        """Pin [K, B, ..., D]: the batch, and the width where the mesh divides it."""
        if self.mesh is None:
            return taps
        features = self.rules.features
        width = None if taps.shape[-1] % _extent(self.mesh, features) else features
        spec = PartitionSpec(None, self.rows, *(None,) * (taps.ndim - 3), width)
        return jax.lax.with_sharding_constraint(taps, NamedSharding(self.mesh, spec))
