"""The mesh of a run, and batches on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from remory_jax.data.batch import Batch
from remory_jax.mesh import make_mesh
from remory_jax.training.experiment import HeldOut, MeshConfig

__all__ = ["ROWS", "mesh_of", "place", "place_held_out"]

ROWS = ("data", "fsdp")
"""Mesh axes over which the examples of a batch are spread."""


def mesh_of(config: MeshConfig) -> Mesh | None:
    """The mesh over all devices; None for a single one."""
    if jax.device_count() == 1 and max(config.data, config.fsdp, config.tensor) <= 1:
        return None
    return make_mesh(data=config.data, fsdp=config.fsdp, tensor=config.tensor)


def place(batch: Batch, mesh: Mesh | None) -> Batch:
    """A process's part of the batch as the global batch on the mesh.

    Raises:
      ValueError: examples that the mesh does not divide.
    """
    if mesh is None:
        return jax.tree.map(jax.numpy.asarray, batch)
    extent = mesh.shape["data"] * mesh.shape["fsdp"]
    rows = len(batch.index) * jax.process_count()
    if rows % extent:
        raise ValueError(
            f"a batch of {rows} examples is not divided by the mesh's data x fsdp = {extent}; change the stage's batch"
        )
    sharding = NamedSharding(mesh, PartitionSpec(ROWS))

    def put(values: Any) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, np.asarray(values))

    placed: Batch = jax.tree.map(put, batch)
    return placed


def place_held_out(item: HeldOut, mesh: Mesh | None) -> HeldOut:
    """A held-out batch on the mesh."""
    if mesh is None:
        return item
    sharding = NamedSharding(mesh, PartitionSpec(ROWS))

    def put(values: Any) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, np.asarray(values))

    longer, records = jax.tree.map(put, (item.longer, item.records))
    return replace(item, batch=place(item.batch, mesh), longer=longer, records=records)
