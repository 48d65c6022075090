"""A training step with its shared prefix beside four full passes, in one run: python tests/benchmarks/step.py

Both compute the same loss and the same gradients (tests/training/test_step.py); the naive one is that test's oracle.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))

from batches import TEMPLATE, random_batch
from naive import naive_sums

from remory_jax.actor import ActorConfig, init_actor
from remory_jax.data.batch import Batch
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import EncodingConfig, ObjectiveConfig
from remory_jax.training.network import create_network
from remory_jax.training.step import Setting, gradients


def timed(function: Callable[..., Any], *given: Any, repeats: int) -> tuple[float, float]:
    """Seconds of compilation and of the fastest of several runs."""
    start = time.perf_counter()
    compiled = function.lower(*given).compile()  # type: ignore[attr-defined]
    compilation = time.perf_counter() - start
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*given))
        seconds.append(time.perf_counter() - start)
    return compilation, min(seconds[1:])


def main(
    layers: int = 8,
    hidden: int = 256,
    rows: int = 2,
    prefix: int = 512,
    history: int = 1024,
    summary: int = 128,
    response: int = 128,
    repeats: int = 3,
) -> None:
    """Time both.

    Args:
      layers, hidden: of the actor.
      rows: examples of the batch.
      prefix, history, summary, response: tokens of each.
      repeats: the fastest of so many runs counts.
    """
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers}
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64, "vocab_size": 4096}
    actor = init_actor(ActorConfig.from_hf({"model_type": "llama", **sizes, **heads}))
    config = MemoryConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=3,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        head_dim=64,
        target_layer_ids=(1, layers // 2, layers - 2),
        block_tokens=history,
    )
    network = create_network(config, None, actor.rules, seed=0, scale=jnp.ones(()))
    batch = jax.tree.map(jnp.asarray, random_batch(rows, prefix, history, summary, response, 4096))
    setting = Setting(
        graph=network.graph,
        template=TEMPLATE,
        encoding=EncodingConfig(),
        objective=ObjectiveConfig(divergence="reverse"),
    )

    def shared(params: Any, actor: Any, batch: Batch) -> Any:
        return gradients(setting, params, network.buffers, actor, batch, jnp.ones(()))[0]

    def naive(params: Any, actor: Any, batch: Batch) -> Any:
        def loss(params: Any) -> Any:
            numerator, denominator = naive_sums(
                nnx.merge(network.graph, params, network.buffers), actor, batch, TEMPLATE
            )
            return numerator / denominator

        return jax.grad(loss)(params)

    memory, marks, around = history // config.compression_ratio, 3, 2
    positions = {
        "shared": prefix + history + response + summary + marks + memory + around + response,
        "naive": (prefix + history + response)
        + (prefix + history)
        + (prefix + summary + marks)
        + (prefix + summary + marks + memory + around + response),
    }
    table = Table(
        box=None, pad_edge=False, title=f"{layers} layers x {hidden}, {rows} examples, {jax.default_backend()}"
    )
    for name in ("step", "actor positions", "compilation s", "step s", "examples/s"):
        table.add_column(name, justify="left" if name == "step" else "right")
    seconds = {}
    for name, function in (("shared", shared), ("naive", naive)):
        compilation, seconds[name] = timed(jax.jit(function), network.params, actor, batch, repeats=repeats)
        table.add_row(
            name,
            f"{positions[name]:,}",
            f"{compilation:.1f}",
            f"{seconds[name]:.3f}",
            f"{rows / seconds[name]:.2f}",
        )
    Console(width=80, highlight=False).print(table)
    ratios = positions["naive"] / positions["shared"], seconds["naive"] / seconds["shared"]
    print(f"naive / shared: positions {ratios[0]:.2f}, time {ratios[1]:.2f}")


if __name__ == "__main__":
    tyro.cli(main)
