"""Figures made from runs, and from recordings of a cache manager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figure_checks import assert_readable, said
from launch_script import script

import costmodel_jax as cm
from costmodel_jax.architecture import architectures
from costmodel_jax.figures import FIGURES

ROOT = Path(__file__).resolve().parents[1]


def test_recordings_are_predicted_to_the_token() -> None:
    module = script("plot_prefix_cache")
    records = json.loads((ROOT / "tests/golden/prefix_cache/excerpt.json").read_text())
    chosen = [
        record
        for record in records
        if record["engine"]["groups"] != "full" and record["policy"]["name"] == "keep_latest"
    ]
    settings, predicted, measured = module.compare(chosen)
    assert len(set(settings)) >= 3 and len(predicted) == sum(len(record["R"]) for record in chosen)
    assert predicted.max() > 0
    np.testing.assert_array_equal(predicted, measured)
    chosen[0]["R"][-1] += 16
    _, predicted, measured = module.compare(chosen[:1])
    assert (predicted != measured).sum() == 1


def trap() -> cm.Run:
    """The paper's sliding-window trap: six calls of 20 reasoning + 5 answer tokens, then 10 of a tool."""
    calls = [
        {
            "input": [{"kind": "tool", "tokens": 10}] if t else [{"kind": "system", "tokens": 100}],
            "output": [{"kind": "reasoning", "tokens": 20}, {"kind": "assistant", "tokens": 5}],
        }
        for t in range(6)
    ]
    return cm.Run.from_dict({"id": "trap", "task": "one", "calls": calls})


@pytest.fixture(scope="module")
def axes_of_figures() -> tuple[Any, ...]:
    runs = [trap(), cm.Run.from_dict(trap().to_dict() | {"id": "again", "task": "two"})]
    policies = {"keep-latest:2": cm.KeepLatest(2), "compact": cm.Compact(10, keep_tail=20)}
    return runs, policies, {"paper": cm.cache_rules["paper"]}, {"Qwen3-8B": architectures["Qwen3-8B"]}, 1.0


def test_builders_draw_golden_counts(axes_of_figures: tuple[Any, ...]) -> None:
    c, beta = 13_891_534_848.0, 589_824.0
    prices = architectures["Qwen3-8B"].prices()
    assert (prices.linear, prices.pair) == (c, beta)
    ratio = (c * 525 + beta * 75_375) / (c * 300 + beta * 45_150)  # N and Q of the trap
    _, rows = FIGURES["cost"](*axes_of_figures)
    found = {row["policy"]: row for row in rows}
    assert found["keep-latest:2"]["vs_keep_all"] == pytest.approx(ratio, rel=1e-12)
    assert found["keep-latest:2"]["low"] == pytest.approx(ratio) == found["keep-latest:2"]["high"]
    assert found["compact"]["vs_keep_all"] is None and found["compact"]["status"] == "infeasible"
    figure, rows = FIGURES["w"](*axes_of_figures)
    at_five = next(row for row in rows if row["policy"] == "keep-latest:2" and row["w"] == 5.0)
    generated = 6 * 25
    expected = (c * (525 + 4 * generated) + beta * 75_375) / (c * (300 + 4 * generated) + beta * 45_150)
    assert at_five["vs_keep_all"] == pytest.approx(expected, rel=1e-12)
    assert "no number for compact" in said(figure)


def test_trigger_builder_names_policies_apart_from_their_trigger() -> None:
    calls = [
        {"input": [{"kind": "tool", "tokens": 400}] if t else [{"kind": "system", "tokens": 500}],
         "output": [{"kind": "assistant", "tokens": 100}]}
        for t in range(6)
    ]  # fmt: skip
    run = cm.Run.from_dict({"id": "r", "calls": calls})
    policies = {
        "a": cm.ClearToolResults(1_500, keep=1),
        "b": cm.ClearToolResults(2_500, keep=1),
        "c": cm.Compact(1_500, keep_tail=500, summary=100),
        "d": cm.KeepAll(),
    }
    given = {"Qwen3-8B": architectures["Qwen3-8B"]}
    figure, rows = FIGURES["trigger"]([run], policies, {"paper": cm.cache_rules["paper"]}, given, 1.0)
    assert {row["policy"] for row in rows} == {
        "clear-tool-results:keep=1,clear_at_least=0",
        "compact:keep_tail=500,summary=100,instruction=0",
    }
    batch = cm.pack([run])
    for row in rows:
        name, trigger = str(row["policy"]), int(row["trigger"])
        if name.startswith("clear"):
            counts = cm.count(batch, cm.ClearToolResults(trigger, keep=1), cm.cache_rules["paper"])
            assert row["mean_prompt"] == counts.prompt.sum() / 6
        else:
            assert (row["flops"] is None) == (trigger < 500 + 100 + 500)
    assert {row["trigger"] for row in rows if row["vs_keep_all"] is not None and row["vs_keep_all"] != 1.0}
    assert_readable(figure)
    with pytest.raises(cm.CostModelError, match="a policy with a trigger"):
        FIGURES["trigger"]([run], {"d": cm.KeepAll()}, {"paper": cm.cache_rules["paper"]}, given, 1.0)


def test_waterfall_builder_leaves_out_what_is_infeasible(axes_of_figures: tuple[Any, ...]) -> None:
    figure, rows = FIGURES["waterfall"](*axes_of_figures)
    assert sum(row["recomputed"] + row["new"] + row["generated"] for row in rows) == 525
    assert {row["policy"] for row in rows} == {"keep-latest:2"}
    assert "compact is infeasible" in said(figure).replace("\n", " ")
    with pytest.raises(cm.CostModelError, match="no policy can be drawn"):
        FIGURES["waterfall"](axes_of_figures[0], {"compact": cm.Compact(10, keep_tail=20)}, *axes_of_figures[2:])


def test_horizon_and_crossover_builders(axes_of_figures: tuple[Any, ...]) -> None:
    figure, rows = FIGURES["horizon"](*axes_of_figures)
    # Prefixes of the six blocks: 100, 135, ..., 275.
    assert {row["H"] for row in rows} == {188}
    assert "12 reasoning blocks of 2 runs" in said(figure)
    _, rows = FIGURES["crossover"](*axes_of_figures)
    assert {row["architecture"] for row in rows} > {"Qwen3-8B", "Qwen3.6-27B", "Qwen3.6-27B-all-attention"}
    _, rows = FIGURES["crossover"]([], {}, {}, {name: architectures[name] for name in ("Qwen3-4B", "Qwen3-8B")}, 1.0)
    assert {row["architecture"] for row in rows} == {"Qwen3-4B", "Qwen3-8B"}


def test_reuse_builder_compares_with_what_was_measured(axes_of_figures: tuple[Any, ...]) -> None:
    with pytest.raises(cm.CostModelError, match="no run has measured cache hits"):
        FIGURES["reuse"](*axes_of_figures)
    value = trap().to_dict()
    for t, hit in enumerate((0, 125, 160, 195, 200)):
        value["calls"][t]["usage"] = {"prompt_tokens": 100 + 35 * t, "cached_tokens": hit}
    _, rows = FIGURES["reuse"]([cm.Run.from_dict(value)], *axes_of_figures[1:])
    assert rows[0] | {"setting": "paper", "calls": 5, "exact": 4, "short": 30} == rows[0]


def test_builders_say_what_is_missing(axes_of_figures: tuple[Any, ...]) -> None:
    runs, policies, caches, given, w = axes_of_figures
    for name in ("cost", "w", "waterfall"):
        with pytest.raises(cm.CostModelError, match="at least one run"):
            FIGURES[name]([], policies, caches, given, w)
    with pytest.raises(cm.CostModelError, match="needs a cache rule"):
        FIGURES["w"](runs, policies, {}, given, w)
