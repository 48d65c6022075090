"""Checkpoints: what is saved comes back, on any mesh; what is damaged is passed over; what fails is an error."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from costmodel_jax.errors import InputError
from remory_jax.mesh import make_mesh
from remory_jax.training import commit
from remory_jax.training.checkpointing import CheckpointError, Checkpoints

LOOP = Path(__file__).with_name("save_in_a_loop.py")
ROOT = Path(__file__).parents[2]


def data() -> grain.DatasetIterator:
    return iter(grain.MapDataset.range(100).shuffle(seed=1).repeat().batch(3).to_iter_dataset())


def a_state(mesh=None, spec=None, scale: float = 1.0):
    """Arrays of several dtypes, a key, an empty array; on one device or a mesh."""
    state = {
        "params": {
            "w": jnp.arange(64.0).reshape(8, 8) * scale,
            "low": jnp.ones(8, jnp.bfloat16),
            "none": jnp.zeros((0, 3)),
        },
        "step": jnp.asarray(7, jnp.int32),
        "key": jax.random.key(5),
    }
    if mesh is None:
        return state
    whole = NamedSharding(mesh, PartitionSpec())
    placed = jax.tree.map(lambda leaf: jax.device_put(leaf, whole), state)
    placed["params"]["w"] = jax.device_put(state["params"]["w"], NamedSharding(mesh, spec or PartitionSpec()))
    return placed


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def assert_same(found, expected) -> None:
    def raw(leaf):
        return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(raw(a), raw(b))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three") / "run"
    with Checkpoints(folder) as checkpoints:
        iterator = data()
        for step in (1, 2, 3):
            next(iterator)
            checkpoints.save(step, a_state(scale=step), iterator, {"config": {"lr": 0.1}})
    return folder


@pytest.fixture
def three(written: Path, tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 1, 2, 3, whose states differ."""
    return Path(shutil.copytree(written, tmp_path / "run"))


def largest(folder: Path) -> Path:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != commit.RECORD)
    return max(files, key=lambda path: path.stat().st_size)


def test_a_run_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    """State, key and place in the data come back bit for bit, while the iterator had moved on."""
    iterator = data()
    taken = [next(iterator) for _ in range(5)][-1]
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, a_state(), iterator, {"config": {"betas": (0.9, 0.95)}})
        expected = [next(iterator) for _ in range(3)]
    resumed = data()
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore_latest(abstract(a_state()), resumed, metadata={"config": {"betas": (0.9, 0.95)}})
    assert found is not None
    assert found.step == 5
    assert found.metadata == {"config": {"betas": [0.9, 0.95]}}
    assert_same(found.state, a_state())
    np.testing.assert_array_equal([next(resumed) for _ in range(3)], expected)
    assert not np.array_equal(taken, expected[0])


def test_an_empty_folder_has_nothing(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "new") as checkpoints:
        assert checkpoints.restore_latest(abstract(a_state())) is None
        assert checkpoints.latest() is None


def test_saving_does_not_hold_what_a_step_donates(tmp_path: Path) -> None:
    """The step after a save may overwrite the state in place while it is still being written."""
    bump = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = {"w": jnp.zeros((1500, 1000))}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            state = bump(state)
            checkpoints.save(step, state)
            for _ in range(10):
                state = bump(state)
        checkpoints.wait()
        for step, value in ((2, 12.0), (3, 23.0)):
            found = checkpoints.restore(step, abstract(state)).state["w"]
            np.testing.assert_array_equal(np.asarray(found), value)


@pytest.mark.parametrize("sizes", [{"data": 8}, {"data": 2, "fsdp": 4}, {"data": 2, "fsdp": 2, "tensor": 2}])
def test_restores_onto_another_mesh(tmp_path: Path, sizes: dict[str, int]) -> None:
    first = make_mesh(data=1, fsdp=4, tensor=2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, a_state(first, PartitionSpec("fsdp", "tensor")))
        target = a_state(make_mesh(**sizes), PartitionSpec(("data", "fsdp"), "tensor"))
        found = checkpoints.restore_latest(abstract(target))
        assert found is not None
        assert found.state["params"]["w"].sharding == target["params"]["w"].sharding
        assert_same(found.state, a_state())
        single = checkpoints.restore_latest(jax.eval_shape(a_state))  # without shardings: one device
        assert single is not None
        assert single.state["params"]["w"].devices() == {jax.local_devices()[0]}
        assert_same(single.state, a_state())


def test_keeps_the_newest(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (10, 20, 30, 40):
            checkpoints.save(step, a_state())
        checkpoints.wait()
        assert checkpoints.steps() == [30, 40]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000030", "00000040"]
    with pytest.raises(ValueError, match="keep = 1"):
        Checkpoints(tmp_path, keep=1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "one bit": (lambda folder: flip(largest(folder)), "was changed"),
    "cut short": (lambda folder: os.truncate(largest(folder), 10), "has 10 bytes"),
    "a file lost": (lambda folder: largest(folder).unlink(), "is missing"),
    "the iterator": (lambda folder: flip(next((folder / "iterator").iterdir())), "was changed"),
    "never finished": (lambda folder: (folder / commit.RECORD).unlink(), "ended while it was being written"),
    "record cut": (lambda folder: os.truncate(folder / commit.RECORD, 30), "is not a record"),
    "record changed": (
        lambda folder: (folder / commit.RECORD).write_bytes(
            (folder / commit.RECORD).read_bytes().replace(b'"lr":0.1', b'"lr":0.2')
        ),
        "does not match its own checksum",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(three: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    harm, why = DAMAGE[name]
    harm(three / "00000003")
    iterator = data()
    with caplog.at_level(logging.WARNING), Checkpoints(three) as checkpoints:
        found = checkpoints.restore_latest(abstract(a_state()), iterator)
        assert found is not None
        assert found.step == 2
        assert_same(found.state, a_state(scale=2))
        np.testing.assert_array_equal(next(iterator), [next(again) for again in [data()] for _ in range(3)][-1])
        (message,) = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
        assert "00000003" in message
        assert why in message
        # Training repeats step 3 and saves it again, over the damaged one.
        checkpoints.save(3, a_state(scale=30))
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3]
        assert_same(checkpoints.restore(3, abstract(a_state())).state, a_state(scale=30))


def test_a_damaged_checkpoint_that_training_does_not_reach_is_removed(three: Path) -> None:
    flip(largest(three / "00000003"))
    (three / "00000009.orbax-checkpoint-tmp").mkdir()
    with Checkpoints(three) as checkpoints:
        assert checkpoints.latest() == (2, {"config": {"lr": 0.1}})
        checkpoints.save(4, a_state())
    assert sorted(path.name for path in three.iterdir()) == ["00000001", "00000002", "00000004"]


def test_when_none_is_intact_starting_over_is_a_decision(three: Path) -> None:
    for folder in three.iterdir():
        flip(largest(folder))
    with Checkpoints(three) as checkpoints, pytest.raises(InputError, match=r"no checkpoint is intact.*start over"):
        checkpoints.latest()


def test_a_run_killed_in_its_first_save_starts_over(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in three.iterdir():
        (folder / commit.RECORD).unlink()
    (three / "00000004.orbax-checkpoint-tmp").mkdir()
    with caplog.at_level(logging.WARNING), Checkpoints(three) as checkpoints:
        assert checkpoints.restore_latest(abstract(a_state())) is None
    assert sum("passed over" in record.getMessage() for record in caplog.records) == 4


def test_another_run_is_refused_by_name(three: Path) -> None:
    metadata = {"config": {"lr": 0.2, "new": 1}, "actor": "abc"}
    with Checkpoints(three) as checkpoints:
        with pytest.raises(InputError) as caught:
            checkpoints.restore_latest(abstract(a_state()), metadata=metadata)
        for words in ("config.lr = 0.1, this run has 0.2", "config.new is new", "actor is new"):
            assert words in str(caught.value)
        with pytest.raises(InputError, match="actor is new"):
            checkpoints.restore_latest(abstract(a_state()), metadata=metadata, allow=("config",))
        found = checkpoints.restore_latest(
            abstract(a_state()), metadata=metadata, allow=("config.lr", "config.new", "actor")
        )
        assert found is not None


def test_another_model_is_refused_by_name(three: Path) -> None:
    with Checkpoints(three) as checkpoints:
        other = abstract(a_state())
        other["params"]["w"] = jax.ShapeDtypeStruct((8, 9), jnp.float32)
        other["params"]["more"] = jax.ShapeDtypeStruct((2,), jnp.float32)
        del other["key"]
        with pytest.raises(InputError) as caught:
            checkpoints.restore_latest(other)
        for words in (
            "params.w is float32[8, 8] in it, float32[8, 9] here",
            "params.more is not in it",
            "key is in it",
        ):
            assert words in str(caught.value)
        part = {"params": {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}}
        with pytest.raises(InputError, match="key is in it and not here"):
            checkpoints.restore_latest(part)
        found = checkpoints.restore_latest(part, partial=True)
        assert found is not None
        np.testing.assert_array_equal(
            np.asarray(found.state["params"]["w"]), np.asarray(a_state(scale=3)["params"]["w"])
        )


def test_another_number_of_processes_is_refused(three: Path) -> None:
    record = commit.read(three / "00000003")
    folder = three / "00000003"
    commit.write(folder, msgspec.structs.replace(record, processes=4))
    with Checkpoints(three) as checkpoints:
        with pytest.raises(InputError, match=r"saved by 4 processes.*this run has 1"):
            checkpoints.restore_latest(abstract(a_state()), data())
        assert checkpoints.restore_latest(abstract(a_state())) is not None


def test_a_folder_of_another_run_is_not_written_over(three: Path) -> None:
    with Checkpoints(three) as checkpoints:
        with pytest.raises(InputError, match=r"steps \[2, 3\] and step 2 is to be saved"):
            checkpoints.save(2, a_state())
        with pytest.raises(InputError, match="no checkpoint of step 8"):
            checkpoints.restore(8, abstract(a_state()))
    with pytest.raises(ValueError, match="mount the bucket"):
        Checkpoints("gs://bucket/run")


def test_states_that_would_not_come_back_are_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match=r"a\.b is int"):
            checkpoints.save(1, {"a": {"b": 3}})
        with pytest.raises(ValueError, match=r"two arrays of the state are named a\.b"):
            checkpoints.save(1, {"a": {"b": jnp.zeros(1)}, "a.b": jnp.zeros(1)})
        with pytest.raises(TypeError):
            checkpoints.save(1, a_state(), metadata={"config": object()})
        assert checkpoints.steps() == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_while_committing(three: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(folder: Path, record: commit.Commit) -> None:
        raise OSError(code, os.strerror(code))

    with Checkpoints(three) as checkpoints:
        assert checkpoints.latest() is not None
        monkeypatch.setattr(commit, "write", full)
        checkpoints.save(4, a_state(scale=4))
        with pytest.raises(CheckpointError, match=r"step 4 was not saved.*step 3, is untouched.*Free space") as caught:
            checkpoints.wait()
        assert os.strerror(code) in str(caught.value)
        monkeypatch.undo()
        checkpoints.save(4, a_state(scale=4))  # the same process may try again
        checkpoints.wait()
        assert checkpoints.steps() == [2, 3, 4]


def test_a_failed_save_is_noticed_without_waiting(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def slow(folder: Path, record: commit.Commit) -> None:
        go.wait(30)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(commit, "write", slow)
    with Checkpoints(three) as checkpoints:
        checkpoints.save(4, a_state())
        checkpoints.check()  # still running: no error, no wait
        go.set()
        deadline = time.monotonic() + 30
        with pytest.raises(CheckpointError, match="Input/output error") as caught:
            while time.monotonic() < deadline:
                checkpoints.check()
                time.sleep(0.01)
        assert "Free space" not in str(caught.value)


def test_a_full_disk_while_orbax_writes(tmp_path: Path) -> None:
    """A real failing write, by the limit on the size of a file: an error, and the checkpoint before is there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    state = {"w": jax.random.normal(jax.random.key(0), (300_000,))}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            checkpoints.save(2, state)
            with pytest.raises(CheckpointError, match=r"step 2 was not saved.*step 1, is untouched.*Free space"):
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
        found = checkpoints.restore_latest(abstract(state))
        assert found is not None
        assert_same(found.state, state)
        checkpoints.save(2, state)
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2]


def test_the_next_save_raises_what_the_last_one_met(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Checkpoints(three) as checkpoints:
        monkeypatch.setattr(ocp, "save_checkpointables_async", refuse)
        with pytest.raises(CheckpointError, match="No space left"):
            checkpoints.save(4, a_state())
        monkeypatch.undo()
        monkeypatch.setattr(commit, "write", refuse)
        checkpoints.save(4, a_state())
        with pytest.raises(CheckpointError, match="step 4 was not saved"):
            checkpoints.save(5, a_state())


def run_loop(folder: Path, steps: int, every: int, pause: float = 0.0) -> subprocess.Popen[str]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(LOOP), str(folder), str(steps), str(every), str(pause)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_at_any_moment_a_run_ends_as_if_it_never_was(tmp_path: Path) -> None:
    """Ten lives ended by SIGKILL at random moments, most of them in a save; state and metrics are those of one life."""
    steps, every = 120, 2  # every second step begins a save, so that a moment is most likely within one
    whole = run_loop(tmp_path / "whole", steps, every)
    rng = np.random.default_rng(0)
    starts, halves = [], 0
    for _ in range(10):
        process = run_loop(tmp_path / "killed", steps, every, pause=0.02)
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line and line[0] in {"ready", "done"}, process.stderr.read() if process.stderr else ""
        starts.append(int(line[1]))
        time.sleep(float(rng.uniform(0, 0.5)))
        process.kill()
        process.communicate()
        folder = tmp_path / "killed" / "checkpoints"
        halves += folder.is_dir() and any(not (path / commit.RECORD).is_file() for path in folder.iterdir())
    last = run_loop(tmp_path / "killed", steps, every)
    out, err = last.communicate(timeout=80)
    assert last.returncode == 0, err
    expected, err = whole.communicate(timeout=80)
    assert whole.returncode == 0, err
    assert out.splitlines()[-1] == expected.splitlines()[-1]
    assert out.splitlines()[-1].startswith(f"done {steps} ")
    assert (tmp_path / "killed/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert starts == sorted(starts)
    assert starts[-1] > 0  # the kills did not all come before the first save
    assert halves > 0  # and some came within one


def run_two(folder: Path, action: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = str(LOOP.with_name("save_in_two.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(folder), action],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()  # a process whose peer died waits for ever, and does not hear SIGTERM
    assert [process.returncode for process in processes] == [0, 0], outputs
    return outputs


@pytest.mark.slow
def test_two_processes_save_and_restore_together(tmp_path: Path) -> None:
    """Each its half of the state and its place in the data; damage and refusals are met by both alike."""
    run_two(tmp_path, "write")
    flip(largest(tmp_path / "run" / "00000003"))
    first, second = run_two(tmp_path, "go on")
    assert "00000003 passed over" in first
    assert "passed over" not in second
    for output in run_two(tmp_path, "refuse"):
        assert "steps [2, 3] and step 2 is to be saved" in output
        assert "config = 1, this run has 2" in output
    with Checkpoints(tmp_path / "run") as checkpoints:  # one process restores the state, not the place in the data
        abstract_state = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int32)}
        found = checkpoints.restore_latest(abstract_state)
        assert found is not None
        np.testing.assert_array_equal(np.asarray(found.state["w"]), np.arange(32).reshape(8, 4) * 3.0)
        with pytest.raises(InputError, match="saved by 2 processes"):
            checkpoints.restore_latest(abstract_state, data())
