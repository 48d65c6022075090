"""Checks and times the library on one GPU or TPU, in under eight minutes: python tests/benchmarks/accelerator.py

Needs jax, flax, optax, orbax-checkpoint and numpy, and nothing else; not the network, and no files but this repository.

1. Actor: logits in bfloat16 against float32 on the CPU with the same weights, whole and in two calls through the cache,
   for every attention that the device has, and for layers of each kind.
2. Reverse KL: value and gradient in bfloat16 against NumPy in float64.
3. Ledger: the actor is trained, then the memory network, as in configs/ledger_cpu.py, and the gap table is printed.
4. Step: a training step of a memory network for an actor of Qwen3-8B's shape (random weights; fewer layers where it
   does not fit), with model FLOPs utilisation by costmodel_jax's account.

Ends with 1 if a check failed. ``--tiny`` runs all of it in small, for a machine that has no accelerator.
"""

# ruff: noqa: E402 - the stand-ins come before what imports the packages that they stand in for

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import standins

standins.install()

import jax
import jax.numpy as jnp
import numpy as np
from batches import TEMPLATE, random_batch

from configs.ledger_cpu import get_config as ledger_experiment
from configs.qwen3_8b import get_config as qwen_experiment
from remory_jax.actor import Actor, ActorConfig, init_actor
from remory_jax.actor.attention import IMPLEMENTATIONS
from remory_jax.evaluation import evaluate, gap_table
from remory_jax.ledger.actor import train_ledger_actor
from remory_jax.ledger.episodes import draw_episodes
from remory_jax.objective import reverse_kl
from remory_jax.training.experiment import Experiment, OptimizerConfig, Request
from remory_jax.training.flops import peak_flops, step_cost
from remory_jax.training.network import Network, create_network, embedding_scale
from remory_jax.training.optimizer import make_optimizer
from remory_jax.training.step import Setting, TrainState, make_step

DENSE = {"model_type": "qwen3", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 2048,
}
EXPERTS = DENSE | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
HYBRID = (
    DENSE
    | {"model_type": "qwen3_5_text", "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
    | {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
    }
)
BOUND_LOGITS = 0.05  # root mean square of the difference, of that of the logits
BOUND_KL = 0.02
ONLY = {"cudnn": "gpu", "splash": "tpu"}


@dataclass
class Report:
    """Lines as they are printed, and what `--json` writes."""

    until: float
    failed: int = 0
    results: dict[str, Any] = field(default_factory=dict)

    def line(self, name: str, text: str, *, good: bool | None = None, **values: Any) -> None:
        """One measurement; ``good`` is None where there is nothing to judge."""
        self.failed += good is False
        self.results[name] = values | ({} if good is None else {"good": good})
        print(f"{name:<44}{text}{'' if good is None else '  ok' if good else '  FAILED'}", flush=True)

    @property
    def late(self) -> bool:
        """Whether time is up: parts that have not begun are left out, and said to be."""
        return time.perf_counter() > self.until


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes and few steps, for a CPU")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="only these")
    parser.add_argument("--seconds", type=float, default=420.0, help="after which no further part is begun")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    options = parser.parse_args()
    device = jax.local_devices()[0]
    start = time.perf_counter()
    report = Report(until=start + options.seconds)
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}, Python {sys.version.split()[0]}")
    for name in options.parts:
        began = time.perf_counter()
        if report.late:
            report.line(name, "left out: time was up", good=False)
            continue
        PARTS[name](report, options.tiny)
        print(f"{'':<44}{time.perf_counter() - began:.0f} s for this part", flush=True)
    report.line("whole", f"{time.perf_counter() - start:.0f} s", seconds=round(time.perf_counter() - start, 1))
    if options.json:
        found = {"device": device.device_kind, "jax": jax.__version__, "tiny": options.tiny, **report.results}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if report.failed else 0)


def actor_parity(report: Report, tiny: bool) -> None:
    """Logits on this device in bfloat16, against float32 on the CPU."""
    length = 96 if tiny else 1024
    cpu = jax.devices("cpu")[0]
    here = [name for name in IMPLEMENTATIONS if ONLY.get(name, jax.default_backend()) == jax.default_backend()]
    for family in (DENSE, EXPERTS, HYBRID):
        actor = init_actor(ActorConfig.from_hf(family), dtype="bfloat16")
        ids = np.random.default_rng(0).integers(0, 2048, (2, length)).astype(np.int32)
        exact = jax.tree.map(lambda leaf: jax.device_put(leaf, cpu).astype(jnp.float32), actor)
        with jax.default_device(cpu), jax.default_matmul_precision("highest"):
            right = _logits(exact, ids, attention="reference", delta="recurrent")
        for name in here if family is DENSE else (None,):
            whole = _logits(actor, ids, attention=name)
            title = f"actor {family['model_type']}" + (f", {name}" if name else "")
            _parity(report, title, whole, right, BOUND_LOGITS)
        cached = _logits(actor, ids, cut=length - 32)
        _parity(report, f"actor {family['model_type']}, cached", cached, right, BOUND_LOGITS)


def _logits(actor: Actor, ids: np.ndarray, *, cut: int | None = None, **choice: Any) -> np.ndarray:
    """Of all positions, in one call or in two."""
    if cut is None:
        return np.asarray(actor.logits(actor(ids, **choice).hidden))
    first = actor(ids[:, :cut], capacity=ids.shape[1])
    second = actor(ids[:, cut:], cache=first.cache)
    return np.concatenate([np.asarray(actor.logits(out.hidden)) for out in (first, second)], axis=1)


def _parity(report: Report, name: str, found: np.ndarray, right: np.ndarray, bound: float) -> None:
    difference = found.astype(np.float64) - right
    error = float(np.sqrt(np.mean(difference**2) / np.mean(right.astype(np.float64) ** 2)))
    report.line(name, f"relative error {error:.1e} (bound {bound:g})", good=error <= bound, error=error)


def kl_parity(report: Report, tiny: bool) -> None:
    """The op on bfloat16 inputs against the dense formula in float64."""
    positions, width, vocabulary = (64, 64, 1000) if tiny else (512, 1024, 32_000)
    random = np.random.default_rng(0)
    teacher = random.normal(size=(1, positions, width))
    student = teacher + 0.3 * random.normal(size=teacher.shape)
    head = random.normal(size=(width, vocabulary)) * 3 / np.sqrt(width)
    weights = random.uniform(0, 1, (1, positions)).astype(np.float32)
    low = [jnp.asarray(x, jnp.bfloat16) for x in (student, teacher, head)]
    value, gradient = jax.jit(jax.value_and_grad(reverse_kl))(*low, jnp.asarray(weights))
    student, teacher, head = (np.asarray(x.astype(jnp.float32)).astype(np.float64) for x in low)
    log_q, log_p = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (student @ head, teacher @ head))
    q = np.exp(log_q)
    kl = np.sum(q * (log_q - log_p), axis=-1, keepdims=True)
    share = weights[..., None] / weights.sum(dtype=np.float64)
    right = share * ((q * (log_q - log_p - kl)) @ head.T)
    _parity(report, "reverse KL, value", np.asarray(value), np.sum(share * kl), BOUND_KL)
    _parity(report, "reverse KL, gradient", np.asarray(gradient.astype(jnp.float32)), right, BOUND_KL)


def ledger(report: Report, tiny: bool) -> None:
    """Train the actor and the memory network of configs/ledger_cpu.py; its bounds are judged."""
    experiment = ledger_experiment()
    recipe = experiment.actor.config
    (stage,) = experiment.stages
    if tiny:
        recipe = replace(recipe, level=9.0, text_level=9.0, noisy_level=9.0, min_steps=1, check_episodes=16)
        stage = replace(stage, steps=4)
    began = time.perf_counter()
    actor, trained = train_ledger_actor(recipe, experiment.actor.seed)
    took = time.perf_counter() - began
    report.line("ledger, actor", f"{trained.steps} steps, {took:.0f} s", steps=trained.steps, seconds=round(took, 1))

    began = time.perf_counter()
    network, setting = _network(experiment, actor)
    optimizer = make_optimizer(experiment.optimizer, stage.steps)
    run = make_step(setting, optimizer, lambda _: jnp.ones(()))
    state = _fresh(network, optimizer)
    for number in range(stage.steps):
        batch = draw_episodes(stage.data.task, experiment.seed, "train", number * stage.batch, stage.batch).batch()
        state, _ = run(state, actor, jax.device_put(batch))
    jax.block_until_ready(state.params)
    took = time.perf_counter() - began
    report.line("ledger, network", f"{stage.steps} steps, {took:.0f} s", steps=stage.steps, seconds=round(took, 1))

    request = Request(batch=256, seed=0, template=experiment.template, objective=experiment.objective)
    held_out = stage.data.held_out(request, 1 if tiny else 8)
    table = {gap.condition: gap for gap in gap_table(evaluate(setting, state.params, state.buffers, actor, held_out))}
    plus = table["summary++"].closed
    bounds: dict[str, Callable[[float], bool]] = {
        "summary + memory": lambda closed: closed >= max(0.65, plus + 0.25),
        "shuffled memory": lambda closed: closed <= 0.02,
        "zero memory": lambda closed: abs(closed) <= 0.05,
    }
    for name, gap in table.items():
        good = bounds[name](gap.closed) if name in bounds and not tiny else None
        text = f"closes {gap.closed:.3f} of the gap ({gap.low:.3f} to {gap.high:.3f})"
        report.line(f"ledger, {name}", text, good=good, closed=gap.closed, low=gap.low, high=gap.high)


def sizes(tiny: bool) -> tuple[Experiment, ActorConfig, dict[str, int]]:
    """Qwen3-8B's shape with the most layers that should fit this device, a network for it, and widths of a batch."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 8e9)
    source = json.loads((ROOT / "costmodel_jax" / "architectures" / "Qwen3-8B.json").read_text())["config"]
    experiment = qwen_experiment()
    widths = {"rows": 1, "prefix": 512, "history": 8192, "summary": 512, "response": 512}
    for layers, encoder in ((36, 5), (24, 3), (16, 2), (8, 1), (4, 1), (2, 1)):
        taps = tuple(sorted({round(1 + i * (layers - 2) / 4) for i in range(5)})) if layers > 5 else (0, 1)
        memory = replace(experiment.memory, num_hidden_layers=encoder, target_layer_ids=taps)
        model = source | {"num_hidden_layers": layers}
        if tiny:
            small = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
            model |= small | {"intermediate_size": 128, "vocab_size": 512, "num_hidden_layers": 2}
            memory = replace(memory, **small, intermediate_size=128, num_hidden_layers=1, target_layer_ids=(0, 1))
            memory = replace(memory, block_tokens=64)
            widths = {"rows": 2, "prefix": 16, "history": 128, "summary": 16, "response": 16}
        config = ActorConfig.from_hf(model)
        # bfloat16 weights; parameters, two moments and gradients in float32; a quarter for activations.
        if tiny or 1.25 * (2 * config.parameter_count + 16 * memory.parameter_count) < limit:
            break
    return replace(experiment, memory=memory, template=TEMPLATE), config, widths


def step(report: Report, tiny: bool) -> None:
    """Time a step of `sizes`."""
    experiment, config, widths = sizes(tiny)
    memory = experiment.memory
    actor = init_actor(config, dtype="bfloat16")
    network, setting = _network(experiment, actor)
    optimizer = make_optimizer(OptimizerConfig(), 1000)
    run = make_step(setting, optimizer, lambda _: jnp.ones(()))
    state = _fresh(network, optimizer)
    batch = random_batch(**widths, vocabulary=config.vocabulary)
    placed = jax.device_put(batch)
    began = time.perf_counter()
    compiled = run.lower(state, actor, placed).compile()
    compilation = time.perf_counter() - began
    needed = compiled.memory_analysis().temp_size_in_bytes
    times: list[float] = []
    for _ in range(3 if tiny else 12):
        began = time.perf_counter()
        state, metrics = compiled(state, actor, placed)
        jax.block_until_ready((state.params, metrics))
        times.append(time.perf_counter() - began)
    seconds = float(np.median(times[2:]))
    cost = step_cost(experiment, config, batch)
    peak, measured = peak_flops(), ""
    if peak is None:
        peak, measured = _matmul_flops(tiny), " of what a matrix product reaches"
    positions = sum(cost.positions.values())
    shape = f"{len(config.layers)} layers, network {memory.num_hidden_layers}, " + ", ".join(
        f"{name} {width:,}" for name, width in widths.items()
    )
    print(f"step of {config.parameter_count / 1e9:.2f}e9 parameters and {memory.parameter_count / 1e9:.2f}e9: {shape}")
    good = bool(np.isfinite(float(metrics["loss"][0]))) and not float(metrics["skipped"][0])
    report.line("step, seconds", f"{seconds:.4f} ({compilation:.0f} s of compilation)", good=good, seconds=seconds)
    report.line("step, actor positions", f"{positions:,} ({positions / seconds:,.0f} a second)", positions=positions)
    report.line("step, temporaries", f"{needed / 2**30:.2f} GiB", bytes=needed)
    share = cost.total / seconds / peak
    text = f"{cost.total / 1e12:.3f} TFLOP, {cost.total / seconds / 1e12:.1f} TFLOP/s, {share:.1%}{measured}"
    report.line("step, model FLOPs utilisation", text, flops=cost.total, utilisation=share)


def _network(experiment: Experiment, actor: Actor) -> tuple[Network, Setting]:
    network = create_network(
        experiment.memory,
        None,
        actor.rules,
        seed=experiment.seed,
        scale=embedding_scale(actor),
        dtype=experiment.dtype,
    )
    return network, Setting.of(experiment, network.graph)


def _fresh(network: Network, optimizer: Any) -> TrainState:
    state = TrainState(
        step=jnp.int32(0),
        params=network.params,
        buffers=network.buffers,
        opt_state=jax.jit(optimizer.init)(network.params),
    )
    placed: TrainState = jax.device_put(state, jax.local_devices()[0])  # committed, as what a step returns is
    return placed


def _matmul_flops(tiny: bool) -> float:
    """FLOP/s of a large bfloat16 product, where the device's peak is not known."""
    n = 512 if tiny else 4096
    a = jnp.ones((n, n), jnp.bfloat16)
    product = jax.jit(partial(jnp.matmul, a))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(product(a))
        times.append(time.perf_counter() - began)
    return 2.0 * n**3 / min(times)


PARTS = {"actor": actor_parity, "kl": kl_parity, "ledger": ledger, "step": step}

if __name__ == "__main__":
    main()
