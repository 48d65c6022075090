"""A toy run that saves as it goes, to be killed: ``python save_in_a_loop.py FOLDER STEPS EVERY [pause]``.

Its state is a function of the steps and of the items its shuffled Grain iterator gave, so a resumed run that repeats or
skips anything ends elsewhere. Each step's loss goes to the metrics. Prints ``ready START`` after its first step, and
``done STEP CHECKSUM`` at the end.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import grain
import jax
import jax.numpy as jnp

from remory_jax.training.checkpointing import Checkpoints
from remory_jax.training.metrics import MetricsWriter

SIZE = 200_000


def data() -> grain.DatasetIterator:
    return iter(grain.MapDataset.range(1000).shuffle(seed=3).repeat().batch(4).to_iter_dataset())


@jax.jit
def advance(state, items):
    key, sub = jax.random.split(state["key"])
    moved = state["params"]["w"] * 0.9 + jnp.sum(items).astype(jnp.float32) * jax.random.normal(sub, (SIZE,))
    loss = jnp.sum(jnp.abs(moved))
    return {"params": {"w": moved}, "step": state["step"] + 1, "key": key}, {"loss": (loss, jnp.float32(SIZE))}


def fresh():
    return {"params": {"w": jnp.zeros(SIZE)}, "step": jnp.zeros((), jnp.int32), "key": jax.random.key(0)}


def main(folder: str, steps: int, every: int, pause: float) -> None:
    metadata = {"config": {"size": SIZE}}
    iterator = data()
    with Checkpoints(f"{folder}/checkpoints", keep=2) as checkpoints:
        state = fresh()
        restored = checkpoints.restore_latest(jax.eval_shape(fresh), iterator, metadata=metadata)
        start, partial = 0, None
        if restored is not None:
            start, state, partial = restored.step, restored.state, restored.metadata["metrics"]
        with MetricsWriter(folder, total_steps=steps, every=3, step=start, partial=partial, display="off") as writer:
            for step in range(start + 1, steps + 1):
                state, metrics = advance(state, next(iterator))
                writer.add(step, metrics)
                if step == start + 1:
                    jax.block_until_ready(state)
                    print("ready", start, flush=True)
                if step % every == 0:
                    checkpoints.save(step, state, iterator, {**metadata, "metrics": writer.flush()})
                time.sleep(pause)
    print("done", int(state["step"]), float(jnp.sum(state["params"]["w"])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 0.0)
