"""Steps compiled ahead of time, on fake CPU devices: it is the step that trains, and what is said of it is so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from costmodel_jax import InputError
from launch.compile_check import install_command, main
from launch.configs import load_experiment
from remory_jax import make_mesh
from remory_jax.actor import Actor, init_actor
from remory_jax.data.template import Template
from remory_jax.mesh import platform
from remory_jax.training.aot import (
    abstract_step,
    compile_step,
    device_memory,
    full_batch,
    topology_devices,
    widest,
)
from remory_jax.training.experiment import ObjectiveConfig, Request
from remory_jax.training.flops import step_flops
from remory_jax.training.network import create_network
from remory_jax.training.optimizer import make_optimizer, opt_state_shardings
from remory_jax.training.placement import place
from remory_jax.training.pretrained import PretrainedActor
from remory_jax.training.step import TrainState

MODEL = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "tie_word_embeddings": False,
}
CONFIG = """
from remory_jax.data import Buckets, PreparedData
from remory_jax.data.template import Template
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import EncodingConfig, Experiment, MeshConfig, ObjectiveConfig, Stage
from remory_jax.training.pretrained import PretrainedActor

def get_config():
    memory = MemoryConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, target_layer_ids=(0, 2), compression_ratio=4, block_tokens=16, memory_budget=64,
    )
    shapes = Buckets(history=(16, 32), prefix=4, summary=4, response=8)
    return Experiment(
        name="tiny",
        actor=PretrainedActor(folder="FOLDER", dtype="float32"),
        memory=memory,
        template=Template(m_open=(1, 2), m_close=(3,)),
        stages=(Stage(name="continuation", data=PreparedData(folder="none", buckets=shapes), steps=4, batch=8),),
        encoding=EncodingConfig(remat=True),
        objective=ObjectiveConfig(chunk=8),
        mesh=MeshConfig(data=2, fsdp=-1, tensor=2),
    )
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose actor is a config.json without weights, and whose data do not exist."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    file = tmp_path / "tiny.py"
    file.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    return file


def test_command(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One compilation for the table, its file, and the refusal of a device that is too small."""
    out = tmp_path / "out.json"
    arguments = [str(config), "--topology", "cpu:8", "--json", str(out)]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    (found,) = json.loads(out.read_text())
    assert "tiny on cpu:8: 8 x cpu, mesh data 2 x fsdp 2 x tensor 2" in shown.out
    assert "compiling continuation: 4 | 32+4 | 8" in shown.err
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert found["fits"] and found["limit"] is None and found["refused"] is None
    assert (found["devices"], found["rows"], found["bucket"]["histories"]) == (8, 8, [32])
    parts = [found[name] for name in ("arguments", "outputs", "temporaries", "code")]
    assert found["needed"] == sum(parts) and found["temporaries"] > 0
    experiment = load_experiment(config)
    batch = full_batch(widest(experiment.stages[0], request(8)), 8)
    assert found["flops"] == step_flops(experiment, experiment.actor.config(), batch) > 0

    assert main([*arguments, "--memory", "1e-4"]) == 1
    (found,) = json.loads(out.read_text())
    assert not found["fits"] and found["limit"] == round(1e-4 * 2**30) < found["needed"]
    assert "NO" in capsys.readouterr().out


def request(batch: int) -> Request:
    return Request(batch=batch, seed=0, template=Template(), objective=ObjectiveConfig())


def test_what_is_compiled_is_what_trains(config: Path) -> None:
    """Shapes, dtypes and shardings of the abstract arguments are those of the arrays that training makes."""
    experiment = load_experiment(config)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    abstract = experiment.actor.abstract(mesh)
    actor = init_actor(experiment.actor.config(), 0, "float32", mesh)
    stage = experiment.stages[0]
    _, state = abstract_step(experiment, stage, mesh, actor.rules)
    network = create_network(experiment.memory, mesh, actor.rules, seed=0, scale=jax.numpy.ones(()))
    optimizer = make_optimizer(experiment.optimizer, stage.steps)
    moments = opt_state_shardings(optimizer, network.params, network.shardings)
    real = TrainState(
        step=jax.numpy.zeros((), jax.numpy.int32),
        params=network.params,
        buffers=network.buffers,
        opt_state=jax.jit(optimizer.init, out_shardings=moments)(network.params),
    )
    assert jax.tree.structure(state) == jax.tree.structure(real)
    for (path, mine), theirs in zip(
        jax.tree.leaves_with_path((abstract.weights, state)), jax.tree.leaves((actor.weights, real)), strict=True
    ):
        where = jax.tree_util.keystr(path)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), where
        if theirs.ndim:
            assert mine.sharding.is_equivalent_to(theirs.sharding, theirs.ndim), where


def test_rows_that_the_mesh_does_not_divide(config: Path) -> None:
    experiment = load_experiment(config)
    actor = experiment.actor.abstract(make_mesh(data=8))
    stage = replace(experiment.stages[0], batch=6)
    with pytest.raises(ValueError, match=r"6 examples is not divided by the mesh's data x fsdp = 8"):
        compile_step(experiment, stage, actor, widest(stage, request(6)))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--topology", "cpu:99"], "there are 8 CPU devices; ask for 1 to 8"),
        (["--topology", "cpu:8", "--mesh.tensor", "3", "--mesh.data", "1"], "a multiple of 3 devices and there are 8"),
        (["--topology", "cpu:8", "--mesh.tensor", "8", "--mesh.data", "1"], "kv_heads = 2"),
        (["--topology", "cpu:8", "--stage", "two"], "the stages are continuation"),
        (["--topology", "cpu:8", "--experiment.batch"], ""),
    ],
)
def test_refusals(config: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not reason:  # an option that does not exist is the command line's own error
        with pytest.raises(SystemExit):
            main([str(config), *arguments])
        return
    assert main([str(config), *arguments]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.5G of 15.75G hbm.\nLargest:", 17.5),
        ("RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (1.00T) exceeds available HBM", 1024.0),
        ("RESOURCE_EXHAUSTED: for another reason", None),
    ],
)
def test_a_compiler_that_refuses(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    message: str,
    needed: float | None,
) -> None:
    """What it says is shown, and counts as a step that does not fit."""

    class Refusing:
        def __call__(self, *_: Any) -> Any:
            raise AssertionError("it is only compiled")

        def lower(self, *_: Any) -> Any:
            return self

        def compile(self, **_: Any) -> Any:
            raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr("remory_jax.training.aot.make_step", lambda *_, **__: Refusing())
    assert main([str(config), "--topology", "cpu:8"]) == 1
    shown = capsys.readouterr().out
    assert message[:40] in shown and "NO" in shown
    line = next(line for line in shown.splitlines() if line.startswith("needed"))
    assert line.split()[-1] == ("-" if needed is None else f"{needed:.2f}")

    message = "INTERNAL: a mistake of the compiler"
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        main([str(config), "--topology", "cpu:8"])


def test_without_libtpu(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("JAX TPU support not installed; cannot generate TPU topology.")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", missing)
    assert main([str(config), "--topology", "v5e:4x8"]) == 1
    said = capsys.readouterr().err
    assert "topology v5e:4x8: the compiler for TPUs, libtpu, is not installed" in said
    assert install_command() in said and "--target DIR 'libtpu" in install_command()


def test_an_unknown_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise RuntimeError("INVALID_ARGUMENT: Invalid TPU external name: TPU v9\nmore")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", unknown)
    with pytest.raises(InputError, match=r"topology v9:2x2: INVALID_ARGUMENT: .*TPU v9; v5e:4x8 would be one"):
        topology_devices("v9:2x2")


def test_memory_of_devices() -> None:
    assert device_memory("TPU v5 lite") == round(15.75 * 2**30)
    assert device_memory("TPU v5") == round(95.74 * 2**30)
    assert device_memory("TPU v6 lite") == round(31.25 * 2**30)
    assert device_memory("cpu") is None


def test_platform_is_the_meshs() -> None:
    """Kernels are chosen for the devices that are compiled for, not for those that are here."""

    class Device:
        platform = "tpu"

    class Elsewhere:
        abstract_device = Device()

    assert platform() == jax.default_backend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.sharding, "get_abstract_mesh", lambda: Elsewhere())
        assert platform() == "tpu"
    with jax.sharding.use_abstract_mesh(make_mesh(data=8).abstract_mesh):
        assert platform() == "cpu"


def test_pretrained_actors(tmp_path: Path) -> None:
    preset = PretrainedActor(folder=str(tmp_path / "none"), preset="qwen3-8b")
    assert preset.config().parameter_count == 8_190_735_360
    assert preset.tokenizer() == str(tmp_path / "none")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    folder = replace(preset, folder=str(tmp_path))
    assert folder.config().hidden == 16  # what is there decides
    assert folder.abstract(None).weights["embed"].dtype == jax.numpy.bfloat16
    for bad, reason in (({"preset": ""}, "config.json"), ({"preset": "Qwen9"}, "no preset architecture 'Qwen9'")):
        with pytest.raises(InputError, match=reason):
            replace(preset, **bad).abstract(None)


def test_a_step_that_was_lowered_runs(config: Path) -> None:
    """The program of the abstract arguments takes real ones; here of Stage I, in two parts."""
    experiment = load_experiment(config)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    stage = experiment.stages[0]
    bare = replace(stage.data, buckets=replace(stage.data.buckets, summary=0))
    stage = replace(stage, data=bare, microbatches=2)
    step, state = abstract_step(experiment, stage, mesh, experiment.actor.rules)
    actor: Actor = init_actor(experiment.actor.config(), 0, "float32", mesh)
    network = create_network(experiment.memory, mesh, actor.rules, seed=0, scale=jax.numpy.ones(()))
    optimizer = make_optimizer(experiment.optimizer, stage.steps)
    init: Callable[..., Any] = jax.jit(
        optimizer.init, out_shardings=opt_state_shardings(optimizer, network.params, network.shardings)
    )
    real = TrainState(
        step=jax.device_put(jax.numpy.zeros((), jax.numpy.int32), state.step.sharding),
        params=network.params,
        buffers=network.buffers,
        opt_state=init(network.params),
    )
    batch = place(full_batch(widest(stage, request(8)), 8), mesh)
    after, metrics = step(real, actor, batch)
    assert int(after.step) == 1
    assert np.isfinite(float(metrics["loss"][0]))
