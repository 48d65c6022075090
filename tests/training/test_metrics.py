"""Metrics: exact quotients, lines that a resumed run repeats byte for byte, and no waiting on the devices."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import struct
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from remory_jax.training.metrics import MetricsWriter, read_metrics


def value(step: int) -> dict:
    """Sums and counts of a step, as float32 scalars on the device."""
    rng = np.random.default_rng(step)
    return {
        "loss": (jnp.float32(rng.normal()), jnp.float32(rng.integers(1, 9))),
        "agreement": (jnp.float32(rng.uniform()), jnp.float32(1)),
    }


def write(folder: Path, steps: range, **options) -> dict:
    with MetricsWriter(
        folder, **{"total_steps": 20, "every": 5, "display": "off", "tensorboard": False, **options}
    ) as writer:
        for step in steps:
            writer.add(step, value(step))
        return writer.flush()


def test_a_line_is_the_quotient_of_sums_over_its_steps(tmp_path: Path) -> None:
    write(tmp_path, range(1, 11))
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [5, 10]
    assert [line["progress"] for line in lines] == [0.25, 0.5]
    for line, steps in zip(lines, (range(1, 6), range(6, 11)), strict=True):
        total, count = np.float32(0), np.float32(0)
        for step in steps:
            total, count = total + np.float32(value(step)["loss"][0]), count + np.float32(value(step)["loss"][1])
        assert line["loss"] == float(total) / float(count)


@pytest.mark.parametrize("stop", [1, 4, 5, 7, 10, 13, 16])
def test_a_resumed_run_writes_the_same_bytes(tmp_path: Path, stop: int) -> None:
    """Saved at ``stop``, killed later with more lines and half of one written, resumed."""
    write(tmp_path / "whole", range(1, 21))
    with MetricsWriter(tmp_path / "cut", total_steps=20, every=5, display="off", tensorboard=False) as writer:
        for step in range(1, stop + 1):
            writer.add(step, value(step))
        partial = writer.flush()
        for step in range(stop + 1, 18):  # after the checkpoint, and with other values: all of it is lost
            writer.add(step, {name: (total + 1, count) for name, (total, count) in value(step).items()})
        writer.scalars(17, {"gap": 0.5})
    with (tmp_path / "cut" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":18,"prog')
    write(tmp_path / "cut", range(stop + 1, 21), step=stop, partial=partial)
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_new_run_in_an_old_folder_starts_an_empty_file(tmp_path: Path) -> None:
    write(tmp_path, range(1, 21))
    write(tmp_path, range(1, 6))
    assert [line["step"] for line in read_metrics(tmp_path)] == [5]


def test_the_last_step_ends_a_line(tmp_path: Path) -> None:
    write(tmp_path, range(1, 8), total_steps=7)
    assert [(line["step"], line["progress"]) for line in read_metrics(tmp_path)] == [(5, 5 / 7), (7, 1.0)]


def test_no_steps_at_all(tmp_path: Path) -> None:
    assert write(tmp_path, range(0), total_steps=0) == {}
    assert read_metrics(tmp_path) == []
    with pytest.raises(ValueError, match="every = 0"):
        MetricsWriter(tmp_path, total_steps=1, every=0)


def test_metrics_of_one_step_may_come_in_parts_and_not_always(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, total_steps=20, every=5, display="off", tensorboard=False) as writer:
        for step in range(1, 11):
            writer.add(step, {"loss": (jnp.float32(step), jnp.float32(1))})
            if step == 10:
                writer.add(step, {"probe": (jnp.float32(6), jnp.float32(4)), "none": (jnp.float32(0), jnp.float32(0))})
        with pytest.raises(ValueError, match="step = 9 after step 10"):
            writer.add(9, {})
        with pytest.raises(ValueError, match="step = 9 after step 10"):
            writer.scalars(9, {})
    first, second = read_metrics(tmp_path)
    assert first == {"step": 5, "progress": 0.25, "kind": "train", "loss": 3.0}
    assert second == {"step": 10, "progress": 0.5, "kind": "train", "loss": 8.0, "none": None, "probe": 1.5}


def test_what_is_not_finite_is_named(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, total_steps=5, every=5, display="off", tensorboard=False) as writer:
        writer.add(5, {"a": (jnp.float32(np.nan), jnp.float32(1)), "b": (jnp.float32(np.inf), jnp.float32(2))})
    (line,) = read_metrics(tmp_path)
    assert (line["a"], line["b"], line["nonfinite"]) == (None, None, ["a", "b"])


def test_evaluations_stand_among_the_lines(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, total_steps=20, every=5, display="off", tensorboard=False) as writer:
        for step in range(1, 8):
            writer.add(step, value(step))
            if step == 5:
                writer.scalars(5, {"gap": 0.25})
    lines = read_metrics(tmp_path, kind=None)
    assert [(line["step"], line["kind"]) for line in lines] == [(5, "train"), (5, "evaluation")]
    assert lines[1]["gap"] == 0.25


class Late:
    """A value that the device has not computed yet; whoever fetches it now would wait for it."""

    def __init__(self, number: float) -> None:
        self.number, self.there = number, False

    def is_ready(self) -> bool:
        return self.there

    def __array__(self, dtype=None, copy=None):
        assert self.there, "the loop waited for a value"
        return np.asarray(self.number, np.float32)


def test_the_loop_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of a line are fetched when they are there, or when the next line is due, not before."""
    from remory_jax.training import metrics

    monkeypatch.setattr(metrics, "_added", lambda sums, more: more)  # the last step's values stand for the sum
    monkeypatch.setattr(
        metrics.jax, "device_get", lambda tree: jax.tree.map(np.asarray, tree, is_leaf=lambda x: isinstance(x, Late))
    )
    made = {step: Late(step) for step in range(1, 31)}
    with MetricsWriter(tmp_path, total_steps=40, every=10, display="off", tensorboard=False) as writer:
        for step in range(1, 20):
            writer.add(step, {"x": (made[step], made[step])})
        assert read_metrics(tmp_path) == []  # step 10 is due and not ready
        made[10].there = True
        writer.add(20, {"x": (made[20], made[20])})
        assert [line["step"] for line in read_metrics(tmp_path)] == [10]
        for step in range(21, 30):
            writer.add(step, {"x": (made[step], made[step])})
        for late in made.values():
            late.there = True
        writer.add(30, {"x": (made[30], made[30])})
        assert [line["step"] for line in read_metrics(tmp_path)] == [10, 20]


def events(folder: Path) -> list:
    """Events of all files, in the order of writing; the framing is TFRecord's."""
    found = []
    for path in sorted((folder / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data = io.BytesIO(path.read_bytes())
        while header := data.read(12):
            event = event_pb2.Event.FromString(data.read(struct.unpack("<Q", header[:8])[0]))
            data.read(4)
            found.append(event)
    return found


def test_tensorboard_reads_the_same_and_forgets_what_was_lost(tmp_path: Path) -> None:
    write(tmp_path, range(1, 16), tensorboard=True)
    time.sleep(0.02)
    write(tmp_path, range(11, 21), tensorboard=True, step=10)
    kept: list = []
    for event in events(tmp_path):
        if event.HasField("session_log") and event.session_log.status == event_pb2.SessionLog.START:
            kept = [old for old in kept if old.step < event.step]  # as TensorBoard does
        elif event.HasField("summary"):
            kept.append(event)
    seen = [
        (event.step, item.simple_value) for event in kept for item in event.summary.value if item.tag == "train/loss"
    ]
    assert [step for step, _ in seen] == [5, 10, 15, 20]
    np.testing.assert_allclose([x for _, x in seen], [line["loss"] for line in read_metrics(tmp_path)], rtol=1e-6)


def test_times_and_rates_stand_apart(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, total_steps=20, every=5, display="off", tensorboard=False, peak_flops=1e6) as writer:
        for step in range(1, 11):
            writer.add(step, value(step), tokens=100, flops=1e3)
            time.sleep(0.01)
            if step == 7:
                with writer.outside("evaluate"):
                    time.sleep(0.2)
    first, second = read_metrics_of(tmp_path, "timing")
    assert second["outside"]["evaluate"] >= 0.2
    assert 0.04 <= second["seconds"] < 0.2 + 0.04  # the evaluation is not in it
    for line, steps in ((first, 4), (second, 5)):  # the first step of a process compiles
        assert line["tokens_per_second"] == pytest.approx(100 * steps / line["seconds"])
        assert line["seconds_per_step"] == pytest.approx(line["seconds"] / steps)
        assert line["model_flops_utilisation"] == pytest.approx(1e3 * steps / line["seconds"] / 1e6)
        assert 0 < line["goodput"] <= 1
    assert second["goodput"] < 0.9
    assert not {"seconds", "tokens_per_second", "goodput"} & read_metrics(tmp_path)[0].keys()


def test_a_probe_where_a_line_is_due_is_in_neither_line(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, total_steps=6, every=2, display="off", tensorboard=False) as writer:
        for step in range(1, 7):
            writer.add(step, value(step), tokens=100)
            time.sleep(0.02)
            if step == 4:
                with writer.outside("probe"):
                    time.sleep(0.3)
                    writer.scalars(step, {"kl": 1.0}, kind="probe")
    timing = read_metrics_of(tmp_path, "timing")
    assert [line["step"] for line in timing] == [2, 4, 6]
    assert all(0.01 < line["seconds"] < 0.2 for line in timing)
    assert timing[2]["outside"]["probe"] >= 0.3


def read_metrics_of(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_only_process_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert write(tmp_path / "other", range(1, 8), tensorboard=True)["agreement"][1] == 2.0  # steps 6 and 7
    assert not (tmp_path / "other").exists()


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """By the limit on the size of a file, which the second line passes: no half of it stays, and it can be retried."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = MetricsWriter(tmp_path, total_steps=20, every=5, display="off", tensorboard=False)
    for step in range(1, 6):
        writer.add(step, value(step))
    writer.flush()
    first = (tmp_path / "metrics.jsonl").read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(first) + 9, before[1]))
    try:
        with pytest.raises(OSError, match="free space there, then run the same command") as caught:
            for step in range(6, 12):
                writer.add(step, value(step))
                writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert "metrics.jsonl" in str(caught.value)
    assert (tmp_path / "metrics.jsonl").read_bytes() == first
    writer.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [5, 10]


def test_a_line_of_text_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, range(1, 11), display="auto")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split("  ")[0] for line in err.splitlines()] == ["step 5/20", "step 10/20"]
    assert "loss" in err


def test_a_bar_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    write(tmp_path, range(1, 11), display="auto")
    assert "10/20" in capsys.readouterr().err


def test_files_are_on_disk_before_a_checkpoint_refers_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink().name))
    with MetricsWriter(tmp_path, total_steps=20, every=5, display="off", tensorboard=False) as writer:
        for step in range(1, 6):
            writer.add(step, value(step))
        writer.flush()
        assert [line["step"] for line in read_metrics(tmp_path)] == [5]
        assert "metrics.jsonl" in synced
