"""A trained network out of a run: in the released format, with the fingerprint of its actor, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from costmodel_jax.errors import InputError
from remory_jax.actor import Actor
from remory_jax.data.template import Template
from remory_jax.memory import load_memory, save_memory
from remory_jax.memory.fingerprint import Fingerprint, fingerprint
from remory_jax.memory.released import Released
from remory_jax.training.experiment import Experiment
from remory_jax.training.loop import Trained
from remory_jax.training.network import split
from remory_jax.training.step import Setting

__all__ = ["export_memory", "load_trained", "run_folder"]


def run_folder(experiment: Experiment) -> Path:
    """Where a run's files are."""
    return Path(experiment.folder) / experiment.name


def export_memory(trained: Trained) -> Path:
    """Write the network as a released folder, ``memory/STEP`` in the run's folder, unless it is there."""
    folder = trained.folder / "memory" / f"{int(trained.state.step):08d}"
    if (folder / "manifest.json").is_file():
        return folder
    network = trained.setting.network(trained.state.params, trained.state.buffers)
    released = Released(config=network.config, template=trained.experiment.template)
    return save_memory(
        folder, network, released=released, actor=_of(trained.experiment, trained.actor, trained.experiment.template)
    )


def load_trained(
    experiment: Experiment, actor: Actor, mesh: Mesh | None, folder: Path | None = None
) -> tuple[Setting, Any, Any]:
    """A network that `export_memory` wrote, for evaluation: setting, parameters and buffers.

    Args:
      folder: a released folder; by default the run's newest.

    Raises:
      InputError: there is none, it was trained for another actor, or its tensors are not the experiment's network's.
    """
    if folder is None:
        found = sorted((run_folder(experiment) / "memory").glob("*/manifest.json"))
        if not found:
            raise InputError(
                "no trained network yet; train one with python -m launch.train", path=run_folder(experiment) / "memory"
            )
        folder = found[-1].parent
    network = load_memory(
        folder,
        dtype=jnp.dtype(experiment.dtype),
        param_dtype=jnp.float32,
        mesh=mesh,
        rules=actor.rules,
        actor=_of(experiment, actor, experiment.template),
    )
    graph, params, buffers = split(network)
    return Setting.of(experiment, graph), params, buffers


def _of(experiment: Experiment, actor: Actor, template: Template) -> Fingerprint:
    tokenizer = getattr(experiment.actor, "tokenizer", None)
    return fingerprint(actor, tokenizer=None if tokenizer is None else tokenizer(), template=template)
