"""`train`: an experiment from its first step, or from its last good checkpoint, to its end.

Read from top to bottom: mesh, actor, network; then each stage with its data, optimizer, compiled step and loop.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from costmodel_jax.errors import InputError
from remory_jax.actor import Actor
from remory_jax.data.batch import Batch
from remory_jax.objective import reverse_share
from remory_jax.training.checkpointing import Checkpoints
from remory_jax.training.experiment import Experiment, Request, Stage
from remory_jax.training.flops import peak_flops, step_flops
from remory_jax.training.metrics import MetricsWriter
from remory_jax.training.network import Network, create_network, embedding_scale
from remory_jax.training.optimizer import make_optimizer, opt_state_shardings
from remory_jax.training.placement import mesh_of, place, place_held_out
from remory_jax.training.probe import probe
from remory_jax.training.step import Setting, TrainState, make_step
from remory_jax.training.watchdog import Watchdog

__all__ = ["Trained", "share_at", "train"]

_LOG = logging.getLogger(__name__)
_FREE = {"folder", "mesh", "display", "log_every", "save_every", "probe_every", "keep", "watchdog"}
"""Fields that a resumed run may change: it may move, to another mesh too."""

_LIMIT = 20  # consecutive updates that may be skipped before a run gives up


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run leaves: the actor it used, and the network as it ended."""

    experiment: Experiment
    setting: Setting
    actor: Actor
    state: TrainState
    folder: Path


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What the stages of a run share."""

    experiment: Experiment
    setting: Setting
    network: Network
    actor: Actor
    checkpoints: Checkpoints
    writer: MetricsWriter
    metadata: dict[str, Any]
    done: int  # steps of the checkpoint the run goes on from; 0 for none


def train(experiment: Experiment, *, resume: bool = True) -> Trained:
    """Train a memory network on a frozen actor, through all stages of an experiment.

    Every process of a pod calls this with the same arguments. A run that was killed goes on after its last good
    checkpoint, and its metrics then read as if it had never stopped.

    Args:
      resume: go on from what the folder holds; else refuse a folder that holds a checkpoint.

    Raises:
      ValueError: an experiment that contradicts itself, before anything is loaded.
      InputError: data or checkpoints that cannot be read or belong to another experiment; batches that cannot be
        trained on.
      CheckpointError: a checkpoint could not be written.
    """
    check(experiment)
    folder = Path(experiment.folder) / experiment.name
    mesh = mesh_of(experiment.mesh)
    actor = experiment.actor.load(mesh)
    network = create_network(
        experiment.memory,
        mesh,
        actor.rules,
        seed=experiment.seed,
        scale=embedding_scale(actor),
        dtype=experiment.dtype,
    )
    setting = Setting.of(experiment, network.graph)
    metadata = {
        "experiment": {
            field.name: getattr(experiment, field.name) for field in fields(experiment) if field.name not in _FREE
        },
        "data": [stage.data.manifest() for stage in experiment.stages],
    }
    state: TrainState | None = None
    with Checkpoints(folder / "checkpoints", keep=experiment.keep) as checkpoints:
        found = checkpoints.latest()
        if found is not None and not resume:
            raise InputError(f"there is a checkpoint of step {found[0]}: resume, or give another folder", path=folder)
        peak = peak_flops()
        done, saved = (0, {}) if found is None else found
        with MetricsWriter(
            folder,
            total_steps=sum(stage.steps for stage in experiment.stages),
            every=experiment.log_every,
            step=done,
            partial=saved.get("partial"),
            peak_flops=None if peak is None else peak * jax.device_count(),
            display=experiment.display,
        ) as writer:
            run = _Run(
                experiment=experiment,
                setting=setting,
                network=network,
                actor=actor,
                checkpoints=checkpoints,
                writer=writer,
                metadata=metadata,
                done=done,
            )
            start = 0
            for number, stage in enumerate(experiment.stages):
                if done < start + stage.steps or number == len(experiment.stages) - 1:
                    state = _stage(run, stage, start, state)
                start += stage.steps
    assert state is not None
    return Trained(experiment=experiment, setting=setting, actor=actor, state=state, folder=folder)


def check(experiment: Experiment) -> None:
    """Refuse an experiment that contradicts itself.

    Raises:
      ValueError: naming the field, its value and the rule.
    """
    if not experiment.stages:
        raise ValueError("stages is empty; an experiment needs one")
    for name in ("log_every", "save_every"):
        if getattr(experiment, name) < 1:
            raise ValueError(f"{name} = {getattr(experiment, name)}; it is a number of steps, at least 1")
    for stage in experiment.stages:
        if stage.steps < 1 or stage.batch < 1 or stage.microbatches < 1 or stage.batch % stage.microbatches:
            raise ValueError(
                f"stage {stage.name}: steps = {stage.steps}, batch = {stage.batch}, microbatches = "
                f"{stage.microbatches}; each at least 1, and the last divides the batch"
            )


def share_at(experiment: Experiment, start: int, steps: int, step: Int[Array, ""]) -> Float[Array, ""]:
    """The share of reverse KL at a step of a stage that began at step ``start``."""
    turn = round(experiment.objective.turn * steps)
    return reverse_share(step, begin=start, end=start + turn)


def _stage(run: _Run, stage: Stage, start: int, state: TrainState | None) -> TrainState:
    """Run a stage whose first step is number ``start``, from its beginning or from the checkpoint."""
    experiment, stop = run.experiment, start + stage.steps
    optimizer = make_optimizer(experiment.optimizer, stage.steps, scale=stage.lr)
    request = Request(
        batch=stage.batch,
        seed=experiment.seed,
        template=experiment.template,
        objective=experiment.objective,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )
    network = run.network
    moments = opt_state_shardings(optimizer, network.params, network.shardings)
    fresh = jax.jit(optimizer.init, out_shardings=moments)
    whole = jax.tree.leaves(network.buffers)[0].sharding  # of scalars: where a step returns them
    iterator = iter(stage.data.batches(request))
    try:
        if state is not None:  # the stage before ran in this process
            state = replace(state, opt_state=fresh(state.params))
        elif run.done == 0:
            state = TrainState(
                step=jax.device_put(np.int32(0), whole),
                params=network.params,
                buffers=network.buffers,
                opt_state=fresh(network.params),
            )
        else:
            state = _restored(run, fresh, moments, iterator if run.done > start else None)
            if run.done == start:  # it was saved at the end of the stage before
                state = replace(state, opt_state=fresh(state.params))
        state = _steps(run, stage, start, stop, state, optimizer, iterator, request)
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
    return state


def _restored(run: _Run, fresh: Any, moments: Any, iterator: Any) -> TrainState:
    network = run.network
    shapes = jax.eval_shape(fresh, network.params)
    state = TrainState(
        step=jax.device_put(np.int32(0), jax.tree.leaves(network.buffers)[0].sharding),
        params=network.params,
        buffers=network.buffers,
        opt_state=jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, moments
        ),
    )
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    restored: TrainState = run.checkpoints.restore(run.done, abstract, iterator, metadata=run.metadata).state
    return restored


def _steps(
    run: _Run,
    stage: Stage,
    start: int,
    stop: int,
    state: TrainState,
    optimizer: Any,
    iterator: Any,
    request: Request,
) -> TrainState:
    """The loop. It never waits for a step's values: metrics are fetched a line later."""
    experiment, actor, writer = run.experiment, run.actor, run.writer
    share = functools.partial(share_at, experiment, start, stage.steps)
    step = make_step(run.setting, optimizer, share, microbatches=stage.microbatches)
    held_out = None
    if experiment.probe_every:
        item = next(stage.data.held_out(request, 1), None)
        held_out = None if item is None else place_held_out(item, actor.mesh)
    late = _Late()
    with Watchdog(experiment.watchdog) as watchdog:
        for number in range(max(start, run.done) + 1, stop + 1):
            batch = next(iterator)
            flops = step_flops(experiment, actor.config, batch) * jax.process_count()
            placed = place(batch, actor.mesh)
            state, metrics = step(state, actor, placed)
            late.look()
            late.keep(number, metrics.pop("unsound"), metrics, batch)
            writer.add(number, metrics, tokens=_tokens(batch) * jax.process_count(), flops=flops)
            if held_out is not None and number % experiment.probe_every == 0:
                with writer.outside("probe"):
                    found = probe(run.setting, state, actor, held_out)
                    writer.scalars(number, {name: float(a) / float(b) for name, (a, b) in found.items()}, kind="probe")
            if number % experiment.save_every == 0 or number == stop:
                late.look()
                with writer.outside("save"):
                    metadata = run.metadata | {"partial": writer.flush()}
                    run.checkpoints.save(number, state, iterator, metadata)
            run.checkpoints.check()
            watchdog.beat(number)
    return state


def _tokens(batch: Batch) -> int:
    lengths = (batch.prefix_length, *batch.history_lengths, *batch.summary_lengths, batch.response_length)
    return int(sum(np.sum(length) for length in lengths))


class _Late:
    """Looks at what a step found wrong once the next one was dispatched, so that no device waits."""

    def __init__(self) -> None:
        self._kept: tuple[int, Array, dict[str, Any], Batch] | None = None
        self._skipped = 0

    def keep(self, step: int, unsound: Array, metrics: dict[str, Any], batch: Batch) -> None:
        """Remember what to look at."""
        self._kept = (step, unsound, metrics, batch)

    def look(self) -> None:
        """Name unsound examples of the step that was kept. Every process of a pod comes to the same end.

        Raises:
          InputError: no example of it was sound, or too many updates in a row were not made.
        """
        if self._kept is None:
            return
        step, unsound, metrics, batch = self._kept
        self._kept = None
        count, examples = (int(metrics[name][0]) for name in ("unsound_examples", "examples"))
        if count:
            here = {shard.index[0].start or 0: np.asarray(shard.data) for shard in unsound.addressable_shards}
            flags = np.concatenate([here[start] for start in sorted(here)])  # in the order of this process's rows
            names = np.asarray(batch.index)[flags].tolist()[:20]
            _LOG.warning(
                "step %d: %d of %d examples left out, features not finite: index %s", step, count, examples, names
            )
            if count == examples:
                raise InputError(
                    f"step {step}: no example of the batch has finite features (index {names}); the actor overflows on "
                    f"them: check its weights and its dtype"
                )
        self._skipped = self._skipped + 1 if float(metrics["skipped"][0]) else 0
        if self._skipped >= _LIMIT:
            raise InputError(
                f"step {step}: the last {_LIMIT} gradients were not finite and no update was made; lower "
                f"optimizer.peak_lr, or go back to an earlier checkpoint"
            )
