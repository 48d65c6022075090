"""Memory and time of the reverse-KL loss with its gradient, by chunks and dense, in one run on the same CPU.

    python tests/benchmarks/reverse_kl.py [--chunks 64 128 256 512 --repeats 5]

Memory is what XLA sets aside for temporaries of the compiled program at 4,096 positions, 151,936 tokens and width 2,048
(nothing of it is run), arguments and results not counted. Time is at a size where the dense form fits: 512 positions,
49,152 tokens, width 576, as of SmolLM2; with half of the weights 0 too, as where a bucket is half padding. The dense
form is `remory_jax.objective.reverse_kl.reference`: both log-softmaxes whole, and JAX's derivative. float32 throughout.
Times are the least of several runs, taken in turn, so that a disturbance hits all.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from remory_jax.objective import reverse_kl

LARGE = (4096, 151_936, 2048)  # positions, tokens, width
SMALL = (512, 49_152, 576)
ROWS = 4


def program(implementation: str, chunk: int) -> Any:
    """Loss and gradient, jitted."""
    return jax.jit(jax.value_and_grad(partial(reverse_kl, implementation=implementation, chunk=chunk)))


def temporary_bytes(implementation: str, chunk: int) -> int:
    positions, tokens, width = LARGE
    hidden = jax.ShapeDtypeStruct((ROWS, positions // ROWS, width), jnp.float32)
    head = jax.ShapeDtypeStruct((width, tokens), jnp.float32)
    weights = jax.ShapeDtypeStruct((ROWS, positions // ROWS), jnp.float32)
    compiled = program(implementation, chunk).lower(hidden, hidden, head, weights).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


def example() -> tuple[jax.Array, ...]:
    """Student, teacher, head, weights of 1, and weights of which every row's second half is 0."""
    positions, tokens, width = SMALL
    rng = np.random.default_rng(0)
    student = rng.normal(size=(ROWS, positions // ROWS, width)).astype(np.float32)
    teacher = student + 0.3 * rng.normal(size=student.shape).astype(np.float32)
    head = 0.05 * rng.normal(size=(width, tokens)).astype(np.float32)
    half = np.broadcast_to(np.arange(positions // ROWS) < positions // ROWS // 2, student.shape[:2])
    weights = np.ones(student.shape[:2], np.float32), half.astype(np.float32)
    return tuple(jnp.asarray(x) for x in (student, teacher, head, *weights))


def seconds(functions: dict[Any, Callable[[], object]], repeats: int) -> dict[Any, float]:
    """Least time of each function, run in turn; the first turn compiles and does not count."""
    best = dict.fromkeys(functions, float("inf"))
    for turn in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            if turn:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    forms = [("reference", 1), *(("chunked", chunk) for chunk in options.chunks)]
    memory = {form: temporary_bytes(*form) for form in forms}
    student, teacher, head, ones, half = example()
    jobs = {
        (form, name): partial(program(*form), student, teacher, head, weights)
        for form in forms
        for name, weights in (("ones", ones), ("half", half))
    }
    best = seconds(jobs, options.repeats)

    table = Table(
        "",
        "temporaries MiB, 4,096 x 151,936 x 2,048",
        "of dense",
        "ms, 512 x 49,152 x 576",
        "of dense",
        "ms, half padding",
        "of dense",
        title=f"reverse KL with its gradient, float32, {len(os.sched_getaffinity(0))} cores",
    )
    for form in forms:
        dense = forms[0]
        cells = [f"{memory[form] / 2**20:,.0f}", f"{memory[form] / memory[dense]:.3f}"]
        for name in ("ones", "half"):
            cells += [f"{best[form, name] * 1e3:,.0f}", f"{best[form, name] / best[dense, name]:.2f}"]
        table.add_row("dense" if form == dense else f"chunks of {form[1]}", *cells)
    console = Console(width=max(120, Console().width))
    console.print(table)
    console.print(f"jax {jax.__version__}, Python {platform.python_version()}, {platform.machine()}")


if __name__ == "__main__":
    main()
