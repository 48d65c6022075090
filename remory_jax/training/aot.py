"""A training step compiled ahead of time, for devices that need not be there: does it compile, and does it fit?

`compile_step` lowers what `make_step` makes from shapes with shardings: actor, network, optimizer state and batch are
never allocated. The compiler for TPUs needs no TPU, only the package ``libtpu``; see `launch.compile_check`.
"""

from __future__ import annotations

import functools
import os
import re
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from costmodel_jax.errors import InputError
from remory_jax.actor import Actor
from remory_jax.actor.sharding import Rules
from remory_jax.data.batch import Batch
from remory_jax.data.buckets import Bucket
from remory_jax.training.experiment import Experiment, Request, Stage
from remory_jax.training.flops import step_flops
from remory_jax.training.loop import share_at
from remory_jax.training.network import network_shapes
from remory_jax.training.optimizer import make_optimizer, opt_state_shardings
from remory_jax.training.placement import ROWS
from remory_jax.training.step import Setting, Step, TrainState, make_step

__all__ = [
    "StepProgram",
    "abstract_batch",
    "abstract_step",
    "compile_step",
    "device_memory",
    "full_batch",
    "topology_devices",
    "widest",
]

# GiB of one JAX device that a program may use, as the compiler of libtpu 0.0.42 states it when it refuses one. The
# longest name that a device's kind begins with counts. One device of TPU7x is half a chip.
_MEMORY = {
    "TPU v2": 7.48,
    "TPU v3": 15.48,
    "TPU v4": 15.25,
    "TPU v5 lite": 15.75,
    "TPU v5": 95.74,
    "TPU v6 lite": 31.25,
    "TPU7x": 94.75,
}


def device_memory(kind: str) -> int | None:
    """Bytes of one device that a program may use; None where it is not known, as for a CPU.

    Args:
      kind: ``device_kind`` of a JAX device.
    """
    known = [name for name in _MEMORY if kind.startswith(name)]
    return round(_MEMORY[max(known, key=len)] * 2**30) if known else None


def topology_devices(name: str) -> list[jax.Device]:
    """Devices of a topology: ``cpu:8``, which are this process's own, or a TPU's such as ``v5e:4x8``, which need not be
    there.

    Raises:
      InputError: fewer CPU devices than asked for, no ``libtpu``, or a topology that it does not know.
    """
    kind, _, shape = name.partition(":")
    if kind == "cpu":
        devices = jax.devices("cpu")
        if not shape.isdigit() or not 0 < int(shape) <= len(devices):
            raise InputError(
                f"topology {name}: there are {len(devices)} CPU devices; ask for 1 to {len(devices)}, or make more "
                f"with XLA_FLAGS=--xla_force_host_platform_device_count=N"
            )
        return list(devices[: int(shape)])
    from jax.experimental import topologies

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else libtpu waits for a metadata server that only pods have
    try:
        found: list[jax.Device] = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except Exception as error:  # jaxlib and libtpu raise several kinds
        if "TPU support not installed" in str(error):
            raise InputError(f"topology {name}: the compiler for TPUs, libtpu, is not installed") from error
        raise InputError(f"topology {name}: {str(error).splitlines()[0]}; v5e:4x8 would be one") from error
    return found


def widest(stage: Stage, request: Request) -> Bucket:
    """The largest shape of a stage's batches: of its buckets, or, where its source has none, of its first batch."""
    buckets = getattr(stage.data, "buckets", None)
    if buckets is not None:
        bucket: Bucket = buckets.shapes()[-1]
        if getattr(stage.data, "summaries", "required") == "ignored":
            return replace(bucket, summaries=(0,) * len(bucket.histories))
        return bucket
    batch: Batch = next(iter(stage.data.batches(request)))
    return Bucket(
        prefix=batch.prefix.shape[1],
        histories=tuple(ids.shape[1] for ids in batch.histories),
        summaries=tuple(ids.shape[1] for ids in batch.summaries),
        response=batch.response.shape[1],
    )


def full_batch(bucket: Bucket, rows: int) -> Batch:
    """A batch on the host without any padding, for accounts of what it costs."""

    def ids(width: int) -> np.ndarray:
        return np.zeros((rows, width), np.int32)

    def length(width: int) -> np.ndarray:
        return np.full(rows, width, np.int32)

    return Batch(
        prefix=ids(bucket.prefix),
        prefix_length=length(bucket.prefix),
        histories=tuple(map(ids, bucket.histories)),
        history_lengths=tuple(map(length, bucket.histories)),
        summaries=tuple(map(ids, bucket.summaries)),
        summary_lengths=tuple(map(length, bucket.summaries)),
        response=ids(bucket.response),
        response_length=length(bucket.response),
        weights=np.ones((rows, bucket.response), np.float32),
        index=np.arange(rows, dtype=np.int32),
    )


def abstract_batch(bucket: Bucket, rows: int, mesh: Mesh | None) -> Batch:
    """The global batch as shapes with shardings.

    Raises:
      ValueError: rows that the mesh does not divide.
    """
    if mesh is not None and rows % (mesh.shape["data"] * mesh.shape["fsdp"]):
        extent = mesh.shape["data"] * mesh.shape["fsdp"]
        raise ValueError(
            f"a batch of {rows} examples is not divided by the mesh's data x fsdp = {extent}; change the stage's batch"
        )
    sharding = _sharding(mesh, PartitionSpec(ROWS))
    host = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, full_batch(bucket, rows)))
    return _placed(host, jax.tree.map(lambda _: sharding, host))


def abstract_step(experiment: Experiment, stage: Stage, mesh: Mesh | None, rules: Rules) -> tuple[Step, TrainState]:
    """The step of a stage as `remory_jax.training.loop.train` makes it, and its state as shapes with shardings."""
    network = network_shapes(experiment.memory, mesh, rules, dtype=experiment.dtype)
    optimizer = make_optimizer(experiment.optimizer, stage.steps, scale=stage.lr)
    setting = Setting.of(experiment, network.graph)
    names = [known.name for known in experiment.stages]
    start = sum(before.steps for before in experiment.stages[: names.index(stage.name)])
    share = functools.partial(share_at, experiment, start, stage.steps)
    step = make_step(setting, optimizer, share, microbatches=stage.microbatches)
    shapes = jax.eval_shape(
        lambda params, buffers: TrainState(
            step=jnp.zeros((), jnp.int32), params=params, buffers=buffers, opt_state=optimizer.init(params)
        ),
        network.params,
        network.buffers,
    )
    whole = _sharding(mesh, PartitionSpec())
    moments = opt_state_shardings(optimizer, network.params, network.shardings)
    buffers = jax.tree.map(lambda leaf: leaf.sharding, network.buffers)
    placed = jax.tree.leaves((whole, network.shardings, buffers, moments))  # in the order of the state's fields
    state = _placed(shapes, jax.tree.unflatten(jax.tree.structure(shapes), placed))
    return step, state


@dataclass(frozen=True, kw_only=True)
class StepProgram:
    """What the compiler says of one program; bytes are of one device.

    Attributes:
      bucket: widths of the batch that it was compiled for.
      rows: examples of the global batch.
      devices, kind: number of devices, and which.
      limit: bytes that a program may use on one of them; None where it is not known.
      arguments: actor, network, optimizer state and batch.
      outputs: what is not written over arguments.
      temporaries: the most that lives at a time in between.
      code: the program itself.
      refused: what the compiler said where it found no room; the sizes are None then, but for ``needed``.
      needed: arguments, outputs, temporaries and code together.
      seconds: of lowering, and of compiling.
      flops: of a full global batch by `remory_jax.training.flops`, not the compiler's; 0 for an actor without prices.
    """

    stage: str
    bucket: Bucket
    rows: int
    microbatches: int
    mesh: dict[str, int]
    devices: int
    kind: str
    limit: int | None
    arguments: int | None
    outputs: int | None
    temporaries: int | None
    code: int | None
    needed: int | None
    refused: str | None
    seconds: tuple[float, float]
    flops: float

    @property
    def fits(self) -> bool:
        """Whether it was compiled and stays within the limit, where there is one."""
        if self.refused is not None or self.needed is None:
            return False
        return self.limit is None or self.needed <= self.limit


def compile_step(
    experiment: Experiment,
    stage: Stage,
    actor: Actor,
    bucket: Bucket,
    *,
    limit: int | None = None,
    options: dict[str, Any] | None = None,
) -> StepProgram:
    """Lower and compile a stage's step for an abstract actor's mesh.

    Args:
      actor: of `remory_jax.actor.loading.create.abstract_actor`.
      bucket: widths of the batch.
      limit: bytes of a device; by default `device_memory` of the mesh's.
      options: of the compiler.

    Raises:
      ValueError: an experiment that does not fit the mesh, or shapes that contradict each other.
    """
    mesh = actor.mesh
    step, state = abstract_step(experiment, stage, mesh, actor.rules)
    batch = abstract_batch(bucket, stage.batch, mesh)
    first: Any = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    limit = device_memory(first.device_kind) if limit is None else limit
    begun = time.perf_counter()
    lowered: Any = step.lower(state, actor, batch)  # type: ignore[attr-defined]
    between = time.perf_counter()
    sizes: dict[str, int | None] = dict.fromkeys(("arguments", "outputs", "temporaries", "code", "needed"))
    refused = None
    try:
        found = lowered.compile(compiler_options=options).memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        refused = str(error)
        sizes["needed"] = _stated(refused)
    else:
        sizes["arguments"] = found.argument_size_in_bytes
        sizes["outputs"] = found.output_size_in_bytes - found.alias_size_in_bytes
        sizes["temporaries"] = found.temp_size_in_bytes
        sizes["code"] = found.generated_code_size_in_bytes
        sizes["needed"] = sum(size for size in sizes.values() if size is not None)
    return StepProgram(
        stage=stage.name,
        bucket=bucket,
        rows=stage.batch,
        microbatches=stage.microbatches,
        mesh={} if mesh is None else dict(mesh.shape),
        devices=1 if mesh is None else mesh.size,
        kind=first.device_kind,
        limit=limit,
        refused=refused,
        seconds=(between - begun, time.perf_counter() - between),
        flops=step_flops(experiment, actor.config, full_batch(bucket, stage.batch)),
        **sizes,
    )


def _stated(message: str) -> int | None:
    """Bytes that a refusal says are needed."""
    found = re.search(r"(?:Used|required for HLO temporaries \()\s*([\d.]+)([KMGT])", message)
    if found is None:
        return None
    return round(float(found[1]) * 2 ** (10 * ("KMGT".index(found[2]) + 1)))


def _sharding(mesh: Mesh | None, spec: PartitionSpec) -> jax.sharding.Sharding:
    return SingleDeviceSharding(jax.local_devices()[0]) if mesh is None else NamedSharding(mesh, spec)


def _placed(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )
