"""A whole run: it trains, saves, goes on where it was stopped as if it had not been, and exports what it made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny

import launch.evaluate
from costmodel_jax.errors import InputError
from remory_jax.memory import load_memory
from remory_jax.memory.fingerprint import fingerprint
from remory_jax.training import loop
from remory_jax.training.experiment import MeshConfig, Stage
from remory_jax.training.export import export_memory, load_trained
from remory_jax.training.loop import check, train
from remory_jax.training.metrics import read_metrics
from remory_jax.training.placement import mesh_of

CONFIG = str(Path(__file__).with_name("tiny.py"))


class StopError(Exception):
    """Stands for a kill."""


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let training end after so many steps of this process."""
    made, left = loop.make_step, [count]

    def make_step(*given: Any, **options: Any) -> Any:
        step = made(*given, **options)

        def limited(*args: Any) -> Any:
            if left[0] == 0:
                raise StopError
            left[0] -= 1
            return step(*args)

        return limited

    monkeypatch.setattr(loop, "make_step", make_step)


def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = replace(tiny.get_config(), display="off")
    whole = train(replace(experiment, folder=str(tmp_path / "whole")))
    lines = read_metrics(whole.folder, kind=None)
    assert [line["step"] for line in lines if line["kind"] == "train"] == [*range(3, 40, 3), 40]
    probes = [line for line in lines if line["kind"] == "probe"]
    assert [line["step"] for line in probes] == [10, 20, 30, 40]
    assert {"reverse_kl", "forward_kl", "own_minus_shuffled", "agreement", "gate"} <= set(probes[0])

    cut = replace(experiment, folder=str(tmp_path / "cut"))
    for count in (18, 14):  # inside the first stage, and inside the second
        with monkeypatch.context() as patch, pytest.raises(StopError):
            stop_after(patch, count)
            train(cut)
    resumed = train(cut)
    assert (resumed.folder / "metrics.jsonl").read_bytes() == (whole.folder / "metrics.jsonl").read_bytes()
    for left, right in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(whole.state), strict=True):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()

    folder = export_memory(whole)
    assert export_memory(whole) == folder  # once
    assert launch.evaluate.main([CONFIG, "--folder", str(tmp_path / "whole"), "--batch", "8", "--batches", "2"]) == 0
    said = capsys.readouterr().out
    assert "summary + memory" in said
    assert "shuffled memory" in said
    assert {path.name for path in whole.folder.iterdir()} >= {"evaluation.json", "kl_by_position.png", "training.csv"}

    _, params, _ = load_trained(whole.experiment, whole.actor, mesh_of(experiment.mesh))
    for left, right in zip(jax.tree.leaves(params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_array_equal(left, right)
    other = replace(whole.actor, weights=jax.tree.map(lambda leaf: leaf + 1, whole.actor.weights))
    with pytest.raises(InputError, match="made for another actor: it differs in weights"):
        load_memory(folder, actor=fingerprint(other, template=experiment.template))

    elsewhere = replace(cut, mesh=MeshConfig(data=2, fsdp=2, tensor=2), folder=str(tmp_path / "cut"))
    moved = train(elsewhere)  # nothing left to do but to restore, on another mesh
    for left, right in zip(jax.tree.leaves(moved.state.params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_array_equal(left, right)
    changed = replace(cut, seed=1)
    with pytest.raises(InputError, match="seed"):
        train(changed)
    with pytest.raises(InputError, match="checkpoint of step 40"):
        train(cut, resume=False)


def test_an_experiment_that_contradicts_itself_is_refused() -> None:
    experiment = tiny.get_config()
    (first, _) = experiment.stages
    for wrong, words in (
        (replace(experiment, stages=()), "stages is empty"),
        (replace(experiment, save_every=0), "save_every = 0"),
        (replace(experiment, stages=(replace(first, microbatches=3),)), "microbatches = 3"),
        (replace(experiment, stages=(Stage(name="none", data=first.data, steps=0, batch=8),)), "steps = 0"),
    ):
        with pytest.raises(ValueError, match=words):
            check(wrong)
