"""Tokens per second of a SmolLM2-135M-sized actor, beside transformers on torch, in one run on the same CPU.

    python tests/benchmarks/actor.py [--batch 1 --length 1024 --repeats 5]

Random weights of the right shapes, the same on both sides: speed does not depend on their values. float32. Forward is
the hidden states of a prompt; backward goes to the input embeddings, the weights being frozen. Decoding feeds one token
a step from a cache. Where torch or transformers' models are absent their column says so. Times are the least of several
runs, taken in turn, so that a disturbance hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from remory_jax.actor import Actor, ActorConfig, init_actor, save_actor

CORES = len(os.sched_getaffinity(0))


def seconds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least time of each function, run in turn."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[[], Any], float]:
    """A call of the compiled function, and the seconds its compilation took."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    return lambda: program(*arguments), time.perf_counter() - start


def forward(actor: Actor, x: jax.Array) -> jax.Array:
    hidden: jax.Array = actor(embeddings=x, use_cache=False).hidden
    return hidden


def backward(actor: Actor, x: jax.Array) -> jax.Array:
    return jax.grad(lambda x: jnp.sum(jnp.sin(forward(actor, x))))(x)


def decode_seconds(actor: Actor, prompt: np.ndarray, steps: int) -> float:
    """Seconds per token after the prompt; compiled before."""
    times = []
    for _ in range(2):
        stream = actor.stream(prompt, max_new_tokens=steps + 1, stop_ids=())
        next(stream)
        start = time.perf_counter()
        for _ in stream:
            pass
        times.append((time.perf_counter() - start) / steps)
    return min(times)


def torch_functions(actor: Actor, x: np.ndarray, prompt: np.ndarray, steps: int) -> dict[str, Any] | str:
    """The same work by transformers, or why there is none."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        return f"not measured: {error.name} is not installed"
    torch.set_num_threads(CORES)
    with tempfile.TemporaryDirectory() as folder:
        save_actor(actor, Path(folder) / "model")
        model = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float32)
    model.requires_grad_(False)
    inputs, ids = torch.from_numpy(np.array(x)), torch.from_numpy(prompt.astype(np.int64))

    def forward() -> None:
        with torch.no_grad():
            model.model(inputs_embeds=inputs, use_cache=False)

    def backward() -> None:
        leaf = inputs.clone().requires_grad_(True)
        torch.sin(model.model(inputs_embeds=leaf, use_cache=False).last_hidden_state).sum().backward()

    def decode() -> float:
        with torch.no_grad():
            out = model(input_ids=ids, use_cache=True)
            start = time.perf_counter()
            for _ in range(steps):
                token = out.logits[:, -1:].argmax(-1)
                out = model(input_ids=token, use_cache=True, past_key_values=out.past_key_values)
            return (time.perf_counter() - start) / steps

    forward()
    return {"forward": forward, "backward": backward, "decode": decode}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=32, help="tokens decoded")
    options = parser.parse_args()

    preset = json.loads((files("costmodel_jax") / "architectures" / "SmolLM2-135M.json").read_text())
    config = ActorConfig.from_hf(preset["config"])
    actor = init_actor(config)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(options.batch, options.length, config.hidden)), jnp.float32)
    prompt = rng.integers(0, config.vocabulary, (options.batch, 256)).astype(np.int32)
    tokens = options.batch * options.length

    run_forward, compile_forward = compiled(forward, actor, x)
    run_backward, compile_backward = compiled(backward, actor, x)
    theirs = torch_functions(actor, np.asarray(x), prompt, options.steps)
    jobs: dict[str, Callable[[], object]] = {"forward": run_forward, "backward": run_backward}
    if isinstance(theirs, dict):
        jobs |= {"torch forward": theirs["forward"], "torch backward": theirs["backward"]}
    best = seconds(jobs, options.repeats)
    best["decode"] = decode_seconds(actor, prompt, options.steps)
    if isinstance(theirs, dict):
        best["torch decode"] = min(theirs["decode"]() for _ in range(2))

    table = Table(
        "", "jax tokens/s", "torch tokens/s", "jax / torch", "compile s", title=f"SmolLM2-135M, float32, {CORES} cores"
    )
    shape = f"{options.batch} x {options.length}"
    rows = (
        (f"forward, {shape}", "forward", tokens, f"{compile_forward:.1f}"),
        (f"forward + backward to embeddings, {shape}", "backward", tokens, f"{compile_backward:.1f}"),
        (f"decode, {options.batch} rows after 256 tokens", "decode", options.batch, ""),
    )
    for label, name, count, compile_time in rows:
        ours, other = count / best[name], count / best.get(f"torch {name}", float("nan"))
        shown = ("-", "-") if isinstance(theirs, str) else (f"{other:,.0f}", f"{ours / other:.2f}")
        table.add_row(label, f"{ours:,.0f}", *shown, compile_time)
    console = Console()
    console.print(table)
    if isinstance(theirs, str):
        console.print(f"torch: {theirs}")
    console.print(f"jax {jax.__version__}, Python {platform.python_version()}, {platform.machine()}")


if __name__ == "__main__":
    main()
