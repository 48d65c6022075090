"""The ledger's actor: two layers, trained from scratch until it answers from its context, then frozen."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from costmodel_jax.pytree import pytree
from remory_jax.actor import Actor, load_actor, save_actor
from remory_jax.actor.call import begin
from remory_jax.actor.decoder import run_layers
from remory_jax.actor.norms import rms_norm
from remory_jax.actor.sharding import DEFAULT_RULES, Sharding
from remory_jax.ledger.actor_config import LedgerActorConfig, initial_weights
from remory_jax.ledger.episodes import draw_episodes
from remory_jax.ledger.forms import Lines, draw_lines, full_lines, stated_lines

__all__ = ["LedgerActorConfig", "LedgerActorReport", "LevelNotReachedError", "train_ledger_actor"]


class LevelNotReachedError(RuntimeError):
    """Training ended at its limit of steps or seconds; the message says how far it came."""


@dataclass(frozen=True, kw_only=True)
class LedgerActorReport:
    """How training went. Levels are mean nats of a value over fresh episodes in which every fact is in the context.

    Attributes:
      seconds: of training, compilation included; those of the original training where the actor was kept.
      floor: nats of one who knows all answers but not which of them are random; clean contexts can be below.
      full: the histories themselves; summary: all facts as text; terse: without filler; noisy: the histories with the
        mean noise on their embeddings.
      kept: whether the actor was found trained.
    """

    seed: int
    steps: int
    seconds: float
    floor: float
    full: float
    summary: float
    terse: float
    noisy: float
    kept: bool = False

    def reaches(self, config: LedgerActorConfig) -> bool:
        """Whether training may end here."""
        texts = max(self.summary, self.terse) <= config.text_level
        return self.full <= config.level and texts and self.noisy <= config.noisy_level


@pytree()
@dataclass(frozen=True, kw_only=True)
class _State:
    step: Int[Array, ""]
    weights: Mapping[str, Any]
    mean: Mapping[str, Any]  # running, of the weights
    optimizer: Any
    key: Array


def train_ledger_actor(
    config: LedgerActorConfig,
    seed: int,
    *,
    folder: str | PathLike[str] | None = None,
    on_check: Callable[[LedgerActorReport], None] | None = None,
) -> tuple[Actor, LedgerActorReport]:
    """Train an actor in float32 on one device, to its config's levels and not for a number of steps.

    Args:
      seed: of initial weights, episodes and noise.
      folder: where actors are kept, each under the hash of its config and seed: one that is there is loaded, and one
        that is trained is saved. None keeps nothing.
      on_check: is given the level every ``config.check_every`` steps.

    Raises:
      LevelNotReachedError: the levels were not reached within ``max_steps`` and ``max_seconds``; nothing is kept then.
    """
    if folder is None:
        return _train(config, seed, on_check)
    place = Path(folder) / config.key(seed)
    file = place.with_suffix(".json")
    if place.is_dir() and file.is_file():
        report = msgspec.json.decode(file.read_bytes(), type=LedgerActorReport)
        return load_actor(place), replace(report, kept=True)
    actor, report = _train(config, seed, on_check)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))  # first: the folder appears whole or not at all
    save_actor(actor, place)
    return actor, report


def _train(
    config: LedgerActorConfig, seed: int, on_check: Callable[[LedgerActorReport], None] | None
) -> tuple[Actor, LedgerActorReport]:
    start = time.perf_counter()
    weights = initial_weights(config, seed)
    state = _State(
        step=jnp.int32(0),
        weights=weights,
        mean=jax.tree.map(jnp.copy, weights),
        optimizer=_optimizer(config).init(weights),
        key=jax.random.key(seed),
    )
    # All of it committed, as what a step returns is: else the second step would be compiled anew.
    state = jax.device_put(state, jax.local_devices()[0])
    program = config.program
    forms = _check_forms(config, seed)
    random = np.random.Generator(np.random.Philox(seed))
    for step in range(1, config.max_steps + 1):
        episodes = draw_episodes(config.task, seed, "actor", (step - 1) * config.batch, config.batch)
        lines = draw_lines(episodes, config.width, config.rows, config.wrong, config.alike, random)
        state = _step(state, lines, config=program)
        if step % config.check_every and step != config.max_steps:
            continue
        clean, noisy = jnp.float32(0), jnp.float32(config.noise)
        levels = {name: float(_level(state.mean, line, clean, config=program)) for name, line in forms.items()}
        report = LedgerActorReport(
            seed=seed,
            steps=step,
            seconds=time.perf_counter() - start,
            floor=config.floor,
            full=levels["full"],
            summary=levels["summary"],
            terse=levels["terse"],
            noisy=float(_level(state.mean, forms["full"], noisy, config=program)),
        )
        if on_check is not None:
            on_check(report)
        if report.reaches(config) and step >= config.min_steps:
            return Actor(config=config.actor, weights=state.mean), report
        if step == config.max_steps or report.seconds > config.max_seconds:
            raise LevelNotReachedError(
                f"the ledger's actor of seed {seed} is after {step} steps and {report.seconds:.0f} s at "
                f"{report.full:.3f} nats a value of histories (level = {config.level:g}), {report.summary:.3f} of "
                f"summaries and {report.terse:.3f} of terse ones (text_level = {config.text_level:g}), and "
                f"{report.noisy:.3f} of noisy histories (noisy_level = {config.noisy_level:g}). Raise max_steps = "
                f"{config.max_steps} or max_seconds = {config.max_seconds:g}, or change peak_lr or noise"
            )
    raise AssertionError("the last step is always checked")


def _check_forms(config: LedgerActorConfig, seed: int) -> dict[str, Lines]:
    """Fresh episodes whose facts are all in the context: as histories, as a summary, as a terse one."""
    episodes = draw_episodes(config.task, seed, "actor_check", 0, config.check_episodes)
    response, count = episodes.response, config.task.facts
    return {
        "full": full_lines(episodes, response, config.width),
        "summary": stated_lines(episodes, response, config.width, count=count, terse=False),
        "terse": stated_lines(episodes, response, config.width, count=count, terse=True),
    }


def _optimizer(config: LedgerActorConfig) -> optax.GradientTransformation:
    def decays(weights: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: "norm" not in path[-1].key, weights)

    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            optax.schedules.linear_schedule(0.0, config.peak_lr, config.warmup),
            b1=0.9,
            b2=0.95,
            weight_decay=config.weight_decay,
            mask=decays,
        ),
    )


@functools.partial(jax.jit, static_argnames="config", donate_argnames="state")
def _step(state: _State, lines: Lines, *, config: LedgerActorConfig) -> _State:
    size_key, noise_key = jax.random.split(jax.random.fold_in(state.key, state.step))
    size = 2 * config.noise * jax.random.uniform(size_key, (len(lines.tokens), 1))
    gradient = jax.grad(_nats)(state.weights, lines, size, noise_key, config)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the step's power
        updates, optimizer = _optimizer(config).update(gradient, state.optimizer, state.weights)
    weights = optax.apply_updates(state.weights, updates)
    step = state.step.astype(jnp.float32)
    decay = jnp.minimum(config.average, (1 + step) / (10 + step))
    mean = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state.mean, weights)
    return _State(step=state.step + 1, weights=weights, mean=mean, optimizer=optimizer, key=state.key)


@functools.partial(jax.jit, static_argnames="config")
def _level(weights: Any, lines: Lines, noise: Float[Array, ""], *, config: LedgerActorConfig) -> Float[Array, ""]:
    return _nats(weights, lines, jnp.full((len(lines.tokens), 1), noise), jax.random.key(0), config)


def _nats(
    weights: Any, lines: Lines, noise: Float[Array, "batch 1"], key: Array, config: LedgerActorConfig
) -> Float[Array, ""]:
    """Mean cross-entropy of the response's values.

    It runs the actor's own layers, but not through `Actor`, which lets no gradient reach its weights.
    """
    task, model = config.task, config.actor
    batch, width = lines.tokens.shape
    table = weights["embed"]
    x = jnp.where(lines.soft[..., None], 0, table[jnp.asarray(lines.tokens)])  # [B, W, D]
    rms = jax.lax.stop_gradient(jnp.sqrt(jnp.mean(table * table)))
    size = jnp.where(lines.soft, lines.scale, noise) * rms
    x = x + size[..., None] * jax.random.normal(key, x.shape, x.dtype)

    sharding = Sharding(mesh=None, rules=DEFAULT_RULES, batch=batch)
    call, _ = begin(model, jnp.asarray(lines.real).astype(jnp.int32), None, None, sharding=sharding, capacity=width)
    x, _, _ = run_layers(model, weights, x, call, None, taps=(), depth=config.layers, keep=False, remat=False)
    hidden = rms_norm(x[:, -task.response - 1 : -1], weights["norm"], model.norm)  # each predicts the token after it
    logits = jnp.einsum("bsd,vd->bsv", hidden, table)

    targets = lines.tokens[:, -task.response :]
    judged = (targets >= task.first_value) & (targets < task.first_filler)
    nats = optax.losses.softmax_cross_entropy_with_integer_labels(logits, targets)
    return jnp.sum(jnp.where(judged, nats, 0)) / jnp.sum(judged).astype(jnp.float32)
