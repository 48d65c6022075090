"""The shipped samples: made again to the byte, said to be synthetic, and long enough to show something."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_script import ROOT, script

import costmodel_jax as cm


def test_samples_are_made_again_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("make_samples")
    monkeypatch.setattr(sys, "argv", ["make_samples", str(tmp_path)])
    module.main()
    shipped = ROOT / "costmodel_jax" / "samples" / module.FILE
    assert (tmp_path / module.FILE).read_bytes() == shipped.read_bytes()
    assert shipped.stat().st_size < 150_000


@pytest.fixture(scope="module")
def samples() -> Iterator[list[cm.Run]]:
    yield cm.load_runs(ROOT / "costmodel_jax" / "samples")


def test_samples_say_what_they_are(samples: list[cm.Run]) -> None:
    assert 12 <= len(samples) <= 20
    for run in samples:
        assert run.id.startswith("sample-") and any("synthetic" in note for note in run.notes)
        assert run.evidence.lengths == "modelled" and run.evidence.cached == "unknown" and run.model is None
    assert len({run.task for run in samples}) >= 5
    assert len(cm.buckets(samples)) == 2


def test_samples_do_what_policies_are_about(samples: list[cm.Run]) -> None:
    longest = [sum(segment.tokens for segment in run.segments) for run in samples]
    assert sum(length > 100_000 for length in longest) >= 5 and min(longest) < 60_000
    for run in samples:
        times = [call.time for call in run.calls]
        assert None not in times
        turns = sum(any(segment.kind == "user" for segment in call.input) for call in run.calls)
        assert turns >= 2
        assert any(segment.kind == "reasoning" for segment in run.segments)
    gaps = [
        b.time - a.time
        for run in samples
        for a, b in itertools.pairwise(run.calls)
        if a.time is not None and b.time is not None
    ]
    assert max(gaps) > 300  # beyond the lifetime of a hosted cache
    batch = cm.pack([run for run, length in zip(samples, longest, strict=True) if length > 120_000])
    rule = dataclasses.replace(cm.cache_rules["paper"], reuse="none")
    fires = cm.count(batch, cm.Compact(100_000, keep_tail=20_000, summary=2_000), rule).summary.any(axis=-1)
    assert fires.all()
