"""One of two processes with two devices each that save together: ``python save_in_two.py RANK FOLDER ACTION``.

``write`` saves steps 1 to 3; ``go on`` restores the newest good one, checks its half, and saves the next; ``refuse``
meets the errors that process 0 finds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

RANK, FOLDER, ACTION = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


def connect() -> None:
    """Meet at a port that process 0 finds free."""
    import socket
    import time

    place = FOLDER / f"port-{ACTION.replace(' ', '-')}"
    if RANK == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place.with_suffix(".new").write_text(str(port))
        place.with_suffix(".new").rename(place)
    while not place.exists():
        time.sleep(0.02)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{place.read_text()}", 2, RANK, initialization_timeout=60)


def data() -> grain.DatasetIterator:
    """This process's part: even numbers or odd ones."""
    return iter(grain.MapDataset.range(1000)[RANK::2].shuffle(seed=2).to_iter_dataset())


def main() -> None:
    connect()
    from costmodel_jax.errors import InputError
    from remory_jax.mesh import make_mesh
    from remory_jax.training.checkpointing import Checkpoints

    mesh = make_mesh(data=1, fsdp=4)
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), ()))

    def state(step: int):
        values = np.arange(32, dtype=np.float32).reshape(8, 4) * step
        make = jax.make_array_from_callback
        return {
            "w": make(values.shape, split, lambda index: values[index]),
            "step": make((), whole, lambda index: np.asarray(step, np.int32)),
        }

    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state(1))
    iterator = data()
    with Checkpoints(FOLDER / "run", keep=3) as checkpoints:
        if ACTION == "write":
            for step in (1, 2, 3):
                next(iterator)
                checkpoints.save(step, state(step), iterator, {"config": 1})
            checkpoints.wait()
        elif ACTION == "go on":
            found = checkpoints.restore_latest(abstract, iterator, metadata={"config": 1})
            assert found is not None
            assert found.step == 2, found.step  # 3 was damaged meanwhile
            for mine, wanted in zip(jax.tree.leaves(found.state), jax.tree.leaves(state(2)), strict=True):
                for a, b in zip(mine.addressable_shards, wanted.addressable_shards, strict=True):
                    np.testing.assert_array_equal(a.data, b.data)
            again = data()
            assert next(iterator) == [next(again) for _ in range(3)][-1]
            checkpoints.save(3, state(3), iterator, {"config": 1})
        else:
            attempts = (
                lambda: checkpoints.save(2, state(2)),
                lambda: checkpoints.restore_latest(abstract, metadata={"config": 2}),
            )
            for attempt in attempts:
                try:
                    attempt()
                except InputError as error:
                    print(error)
                else:
                    raise AssertionError("not refused")


main()
