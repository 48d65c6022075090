"""One of two processes with four devices each: loads its half of several models, and saves one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np

RANK, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "actors"


def connect() -> None:
    """Meet at a port that process 0 finds free."""
    import socket
    import time

    place = FOLDER / "port"
    if RANK == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place.with_suffix(".new").write_text(str(port))
        place.with_suffix(".new").rename(place)
    while not place.exists():
        time.sleep(0.05)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{place.read_text()}", 2, RANK, initialization_timeout=60)


def main() -> None:
    connect()
    from remory_jax import make_mesh
    from remory_jax.actor import load_actor, save_actor
    from remory_jax.actor.loading import export, load, pieces

    read = [0]
    for kind in (pieces.TensorView, pieces.ExpertView, pieces.MXFP4View):

        def counted(self, index, take=kind.take):  # type: ignore[no-untyped-def]
            found = take(self, index)
            read[0] += sum(part.nbytes for part in found)
            return found

        kind.take = counted  # type: ignore[method-assign]
    load._LEAST, export._WHOLE = 1, 0  # these models are small: no short cuts
    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    for family in ("llama", "qwen3_moe", "gpt_oss_mxfp4"):
        read[0] = 0
        actor = load_actor(GOLDEN / family, mesh=mesh)
        mine = read[0]
        read[0] = 0
        alone = load_actor(GOLDEN / family)
        assert mine < 0.55 * read[0], (family, mine, read[0])
        for ours, wanted in zip(jax.tree.leaves(actor.weights), jax.tree.leaves(alone.weights), strict=True):
            for shard in ours.addressable_shards:
                np.testing.assert_array_equal(shard.data, np.asarray(wanted)[shard.index])
    save_actor(actor, FOLDER / "saved")
    if RANK == 0:
        for ours, wanted in zip(
            jax.tree.leaves(load_actor(FOLDER / "saved").weights), jax.tree.leaves(alone.weights), strict=True
        ):
            np.testing.assert_array_equal(ours, wanted)


main()
