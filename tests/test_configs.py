"""Every configuration: it agrees with itself, with its actor and with the mesh it is for, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from launch.configs import load_experiment, read_experiment
from remory_jax import make_mesh
from remory_jax.actor.loading.create import abstract_actor
from remory_jax.memory import MemoryConfig, plan_frontier
from remory_jax.memory.encoding import slots_of
from remory_jax.training.experiment import Experiment, Stage
from remory_jax.training.flops import architecture_of
from remory_jax.training.loop import check
from remory_jax.training.network import network_shapes
from remory_jax.training.pretrained import PretrainedActor

FOLDER = Path(__file__).resolve().parents[1] / "configs"
FILES = sorted(FOLDER.glob("*.py"))
PODS = {  # devices of the pod each is for
    "qwen3_0p6b": 8,
    "qwen3_8b": 32,
    "qwen3p8_27b": 64,
    "glm4p7_flash": 32,
}
LONG = {"qwen3_8b", "qwen3p8_27b"}


def pod(name: str) -> Experiment:
    return load_experiment(FOLDER / f"{name}.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_configuration(file: Path) -> None:
    experiment = load_experiment(file)
    check(experiment)
    assert experiment.name == file.stem
    assert hash(experiment.memory) is not None
    assert len({stage.name for stage in experiment.stages}) == len(experiment.stages)
    assert (__doc__ or "") and experiment.actor.load is not None


@pytest.mark.parametrize("name", PODS)
def test_network_and_actor_belong_together(name: str) -> None:
    experiment = pod(name)
    actor: PretrainedActor = experiment.actor
    config, memory = actor.config(), experiment.memory
    assert memory.hidden_size == config.hidden
    assert 0 <= min(memory.target_layer_ids) < max(memory.target_layer_ids) < len(config.layers)
    assert sorted(memory.target_layer_ids) == list(memory.target_layer_ids)
    assert architecture_of(config) is not None  # so that model FLOPs utilisation is known


@pytest.mark.parametrize("name", PODS)
def test_the_mesh_divides_model_network_and_batches(name: str) -> None:
    """On eight devices with the pod's tensor axis; and the pod's own number of rows in a part of a batch."""
    experiment = pod(name)
    sizes, actor = experiment.mesh, experiment.actor
    mesh = make_mesh(data=1, fsdp=8 // sizes.tensor, tensor=sizes.tensor)
    abstract_actor(actor.config(), actor.dtype, mesh, rules=actor.rules)
    network_shapes(experiment.memory, mesh, actor.rules)
    assert (sizes.data, sizes.fsdp) == (1, -1)
    extent = PODS[name] // sizes.tensor
    for stage in experiment.stages:
        assert stage.batch // stage.microbatches % extent == 0, stage.name


@pytest.mark.parametrize("name", PODS)
def test_the_longest_history_fits_the_memory(name: str) -> None:
    """Without a merge: its rows are at most the budget; and summary++ is given as many positions."""
    experiment = pod(name)
    first, second = experiment.stages
    bucket = second.data.buckets.shapes()[-1]
    (history,) = bucket.histories
    rows = slots_of(experiment.memory, history)
    assert rows == history // 16 <= experiment.memory.memory_budget
    assert not plan_frontier(history).merges
    assert second.data.longer == rows + bucket.summaries[0]
    assert (first.data.buckets.summary, second.data.replay) == (0, first.data.folder)
    repeat = first.data.buckets.shapes()[-1]  # what is replayed must fit the second stage's buckets too
    assert repeat.response <= bucket.response and repeat.histories[0] <= max(second.data.buckets.history)
    if name in LONG:
        assert (history, bucket.response) == (65_536, 1_024)


def test_the_released_geometry() -> None:
    experiment = pod("qwen3p8_27b")
    assert experiment.memory == MemoryConfig.preset("qwen3.8-27b")
    assert experiment.memory.parameter_count == 1_940_016_388
    assert len(experiment.actor.config().layers) == 64


@pytest.mark.parametrize("name", PODS)
def test_fields_from_the_command_line(name: str) -> None:
    arguments = [str(FOLDER / f"{name}.py"), "--mesh.data", "2", "--encoding.no-remat", "--actor.folder", "elsewhere"]
    experiment, _ = read_experiment(arguments, Nothing(), prog="test", text=None)
    assert (experiment.mesh.data, experiment.encoding.remat, experiment.actor.folder) == (2, False, "elsewhere")
    assert experiment.memory == pod(name).memory


class _Nothing:
    pass


def Nothing() -> Any:  # noqa: N802
    """Options of a command that has none."""
    from dataclasses import make_dataclass

    return make_dataclass("Nothing", [], frozen=True)()


def test_stages_are_data() -> None:
    """A stage names no file that must exist for the experiment to be read."""
    for name in PODS:
        stages: tuple[Stage, ...] = pod(name).stages
        assert [stage.name for stage in stages] == ["reconstruction", "continuation"]
        assert all(not Path(stage.data.folder).is_absolute() for stage in stages)
    assert jax.device_count() == 8
