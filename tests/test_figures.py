"""Figures: the numbers in them, that nothing overlaps or is cut, and what they leave alone."""

from __future__ import annotations

import csv
import itertools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from figure_checks import assert_readable, said
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PathCollection

import costmodel_jax as cm
from costmodel_jax.architecture import architectures
from costmodel_jax.figures import (
    cost_by_generation_price,
    cost_by_policy,
    cost_by_trigger,
    crossover,
    horizon,
    predicted_reuse,
    save,
    waterfall,
)
from costmodel_jax.figures.labels import spread
from costmodel_jax.figures.style import tokens, wrapped
from costmodel_jax.pricing import Prices

ROOT = Path(__file__).resolve().parents[1]
POLICIES = ("keep-all", "drop", "keep-latest:5", "compact:trigger=50000,keep_tail=10000,aligned=false", "as-recorded")


# Cost by policy and cache rule.


def cost_rows() -> list[dict[str, Any]]:
    ratios = {"paper-16": (1.0, 0.98, 4.54, 1.6, 1.0), "none": (1.0, 0.95, 0.96, None, float("nan"))}
    return [
        {"policy": policy, "cache": cache, "vs_keep_all": ratio, "status": "infeasible", "runs": 12, "of": 16}
        | ({"low": ratio * 0.9, "high": ratio * 1.2} if policy == "keep-latest:5" and ratio else {})
        for cache, each in ratios.items()
        for policy, ratio in zip(POLICIES, each, strict=True)
    ]


def test_cost_shows_numbers_and_words_where_there_are_none() -> None:
    given = cost_rows()
    figure, rows = cost_by_policy(given, "12 of 16 runs")
    assert rows == given
    words = said(figure)
    assert "4.54 (12/16)" in words and words.count("infeasible") == 2 and "nan" not in words
    bars = sorted(patch.get_width() for axes in figure.axes for patch in axes.patches)
    np.testing.assert_allclose(bars, sorted([0, 0, -0.02, 3.54, 0.6, 0, -0.05, -0.04]), atol=1e-12)
    assert_readable(figure)


def test_cost_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(cm.CostModelError, match="no rows"):
        cost_by_policy([])
    with pytest.raises(cm.CostModelError, match="select one architecture"):
        cost_by_policy([*cost_rows(), cost_rows()[0]])
    with pytest.raises(cm.CostModelError, match="positive"):
        cost_by_policy([{"policy": "drop", "cache": "none", "vs_keep_all": 0.0}])


@pytest.mark.parametrize("extremes", [(0.03, 40.0), (0.2, 5.0), (0.09, 1.0), (1.0, 11.0), (0.9, 1.1)])
def test_cost_stays_readable(extremes: tuple[float, float]) -> None:
    rows = [
        {"policy": policy, "cache": f"checkpoint:block={block},dense=true", "vs_keep_all": ratio}
        for block in (16, 32, 64, 128, 256)
        for policy, ratio in zip(POLICIES, (1.0, *extremes, 1.0, 1.0), strict=True)
    ]
    assert_readable(cost_by_policy(rows)[0])


# Cost against w.


def w_rows(ratios: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Policies that generate as much as keep-all and cost ``ratio`` times as much otherwise."""
    return [
        {"policy": name, "w": w, "vs_keep_all": None if ratio is None else (ratio * 10 + w - 1) / (10 + w - 1)}
        for name, ratio in ratios.items()
        for w in (1.0, 2.0, 5.0)
    ]


def test_w_lines_are_named_even_where_they_meet() -> None:
    given = w_rows({"keep-all": 1.0, **{f"clear-every:{k}": 1.0 + k / 1000 for k in range(1, 12)}, "drop": None})
    figure, rows = cost_by_generation_price(given)
    assert rows == given
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3 and line.get_xdata()[0] == 1.0]  # type: ignore[arg-type, index]
    np.testing.assert_allclose(
        sorted(line.get_ydata()[-1] for line in lines if line.get_xdata()[-1] == 5.0),  # type: ignore[index]
        sorted((10 + k / 100 + 4) / 14 for k in range(12)),
    )
    assert "no number for drop" in said(figure)
    assert_readable(figure)


def test_w_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(cm.CostModelError, match="nothing to draw"):
        cost_by_generation_price(w_rows({"drop": None}))
    with pytest.raises(cm.CostModelError, match="select one cache rule"):
        cost_by_generation_price([*w_rows({"drop": 1.0}), *w_rows({"drop": 1.0})])


# Cost against the trigger.


def trigger_rows(policy: str, feasible_from: int) -> list[dict[str, Any]]:
    return [
        {"policy": policy, "trigger": trigger}
        | (
            {"vs_keep_all": 1 + 4e4 / trigger, "mean_prompt": trigger * 0.6}
            if trigger >= feasible_from
            else {"vs_keep_all": None, "mean_prompt": None}
        )
        for trigger in (20_000, 40_000, 80_000, 160_000)
    ]


def test_trigger_lines_start_where_the_policy_is_feasible() -> None:
    name = "compact-with-memory:keep_tail=5000,summary=1000,aligned=false,slots=512"
    given = [*trigger_rows(name, 80_000), *trigger_rows("clear-tool-results", 0), *trigger_rows("compact", 10**9)]
    figure, rows = cost_by_trigger(given[::-1])
    assert sorted(rows, key=str) == sorted(given, key=str)
    lines = [np.asarray(line.get_xydata()) for axes in figure.axes for line in axes.lines if line.get_marker() == "o"]
    assert sorted(len(line) for line in lines) == [2, 2, 4, 4]
    np.testing.assert_allclose(lines[0][:, 1], [3.0, 2.0, 1.5, 1.25])
    assert "infeasible: compact" in said(figure)
    assert_readable(figure)


def test_trigger_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(cm.CostModelError, match="no line to draw"):
        cost_by_trigger(trigger_rows("compact", 160_000))
    with pytest.raises(cm.CostModelError, match="select one cache rule"):
        cost_by_trigger([*trigger_rows("compact", 0), *trigger_rows("compact", 0)])


# Waterfall.


def call_row(call: int, recomputed: int = 0, summary: bool = False, cause: str = "append") -> dict[str, Any]:
    return {
        "call": call, "summary": summary, "reused": 900 * call - recomputed, "recomputed": recomputed,
        "new": 500, "generated": 400, "cause": cause,
    }  # fmt: skip


def test_waterfall_stacks_all_parts_and_tells_the_causes() -> None:
    compacted = [
        call_row(0),
        call_row(1),
        call_row(2, summary=True),
        call_row(2, 1_500, cause="compaction"),
        call_row(3),
    ]
    figure, rows = waterfall({"keep-all": [call_row(t) for t in range(4)], "compact": compacted}, "run r1")
    assert [row["policy"] for row in rows] == ["keep-all"] * 4 + ["compact"] * 5
    above, below = figure.axes[2:4]
    bars = {
        (round(p.get_x() + p.get_width() / 2, 3), p.get_y(), p.get_height()) for p in above.patches if p.get_height()
    }
    assert {(y, height) for x, y, height in bars if 1.9 < x < 2.6} >= {
        (0.0, 1_500.0),
        (1_500.0, 500.0),
        (2_000.0, 400.0),
    }
    assert sorted(p.get_height() for p in below.patches) == [0.0, 300.0, 900.0, 1_800.0, 2_700.0]
    words = said(figure)
    assert "nothing recomputed" in words and "1.5k recomputed: compaction 1×" in words
    assert_readable(figure)


def test_waterfall_does_not_name_breaks_that_would_collide() -> None:
    rows = [call_row(t, 800 if t % 2 else 0, cause="reasoning hidden") for t in range(40)]
    name = "compact-with-memory:trigger=50000,keep_head=2000,keep_tail=10000,summary=1000,aligned=false,slots=512"
    figure, _ = waterfall({name: rows, "drop": rows})
    assert said(figure).count("reasoning hidden") == 2  # one line a panel
    assert_readable(figure)
    with pytest.raises(cm.CostModelError, match="at least one policy"):
        waterfall({})


# Crossover and horizon.


def test_crossover_marks_the_exchange_rate() -> None:
    names = ("Qwen3.6-27B", "Qwen3.6-27B-all-attention", "Qwen3-32B", "SmolLM2-135M")
    prices = {name: architectures[name].prices() for name in names}
    figure, rows = crossover(prices | {"no attention": Prices(linear=1.0, pair=0.0)})
    stars = {row["architecture"]: row["exchange_rate"] for row in rows}
    assert stars["Qwen3.6-27B"] == pytest.approx(123_853.3, abs=0.1)
    for row in rows:
        share = row["context"] / (row["context"] + stars[row["architecture"]])
        assert row["attention_share"] == pytest.approx(share, abs=1e-12)
    assert {"123,853", "30,293", "never"} <= set(said(figure).splitlines())
    assert_readable(figure)
    assert_readable(crossover({"Qwen3-8B": prices["Qwen3-32B"]})[0])
    with pytest.raises(cm.CostModelError, match="at least one"):
        crossover({})


@pytest.mark.parametrize("across", ["H", "r"])
def test_horizon_holds_the_closed_form(across: Any) -> None:
    prices = Prices(linear=48_701_112_320.0, pair=393_216.0)
    figure, rows = horizon(prices, across, blocks=[(300.0, 80.0), (1e7, 3.0)], subtitle="Qwen3.6-27B")
    star = 48_701_112_320 / 393_216
    for row in rows[:: len(rows) // 50]:
        H, r, a = row["H"], row["r"], row["a"]
        assert row["retention_horizon"] == pytest.approx(a / r * (star + H + (a + 1) / 2), rel=1e-12)
    assert {row[{"H": "r", "r": "H"}[across]] for row in rows} == {{"H": 2_000, "r": 20_000}[across]}
    dots = [each.get_offsets() for each in figure.axes[0].collections if isinstance(each, PathCollection)]
    np.testing.assert_array_equal(dots, [[(1_000 if across == "H" else 300, 80), (1e6 if across == "H" else 1e4, 10)]])
    assert_readable(figure)


def test_horizon_needs_attention_that_costs_something() -> None:
    with pytest.raises(cm.CostModelError, match="beta = 0"):
        horizon(Prices(linear=1.0, pair=0.0))


# Predicted against measured reuse.


def test_reuse_counts_what_is_exact() -> None:
    setting = ["a"] * 3 + ["b, with a long name of a setting"] * 2
    figure, rows = predicted_reuse(setting, np.array([0, 160, 320, 0, 64]), np.array([0, 160, 352, 0, 32]))
    assert rows == [
        {"setting": "a", "calls": 3, "exact": 2, "predicted": 480, "measured": 512, "short": 0, "beyond": 32},
        {"setting": setting[3], "calls": 2, "exact": 1, "predicted": 64, "measured": 32, "short": 32, "beyond": 0},
    ]
    assert "3 of 5 calls equal to the token" in said(figure)
    assert_readable(figure)
    many = ["prompt+generation:block=16", "checkpoint:block=528,full_hit=minus_token,dense=true", "vllm-hybrid"] * 3
    settings = [f"{name}{i}" for i, name in enumerate(many)]
    assert_readable(predicted_reuse(settings, [150_000 + i for i in range(9)], [150_000] * 9)[0])
    with pytest.raises(cm.CostModelError, match="per call"):
        predicted_reuse(["a"], [], [])


# Files, and what is left alone.


def test_save_writes_the_same_picture_and_table_every_time(tmp_path: Path) -> None:
    figure, rows = predicted_reuse(["a", "a"], [1, 2], [1, 3])
    rows[0] |= {"nothing": None, "not_a_number": float("nan")}
    picture, table = save(figure, rows, tmp_path / "made" / "reuse")
    assert picture == tmp_path / "made" / "reuse.png" and picture.read_bytes().startswith(b"\x89PNG")
    with table.open() as lines:
        read = list(csv.DictReader(lines))
    assert read[0]["setting"] == "a" and read[0]["exact"] == "1" and read[0]["nothing"] == read[0]["not_a_number"] == ""
    again, _ = save(predicted_reuse(["a", "a"], [1, 2], [1, 3])[0], rows, tmp_path / "again.png")
    assert again.read_bytes() == picture.read_bytes()
    for ending in (".svg", ".pdf"):
        assert save(figure, rows, tmp_path / f"reuse{ending}")[0].stat().st_size > 1_000


def test_save_writes_both_or_neither(tmp_path: Path) -> None:
    figure, rows = predicted_reuse(["a"], [1], [1])
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(cm.InputError, match="taken"):
        save(figure, rows, tmp_path / "taken.png")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.png"]
    with pytest.raises(cm.InputError, match="ends in"):
        save(figure, rows, tmp_path / "picture.bmp")
    (tmp_path / "file").write_text("")
    with pytest.raises(cm.InputError, match="folder cannot be made"):
        save(figure, rows, tmp_path / "file" / "picture.png")


def test_settings_are_left_alone_and_do_not_matter(tmp_path: Path) -> None:
    def bytes_of(name: str) -> bytes:
        return save(*predicted_reuse(["a"], [1], [1]), tmp_path / name)[0].read_bytes()

    plain = bytes_of("plain.png")
    with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "black", "text.color": "red"}):
        before = dict(mpl.rcParams)
        assert bytes_of("wild.png") == plain
        assert dict(mpl.rcParams) == before


def test_no_plotting_library_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, costmodel_jax; assert 'matplotlib' not in sys.modules; import costmodel_jax.figures; "
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# Labels.


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.floats(0.01, 0.2))
def test_spread_keeps_order_and_distance_inside_the_bounds(positions: list[float], gap: float) -> None:
    moved = spread(positions, gap, 0.0, 1.0)
    fits = min(gap, 1.0 / max(len(positions) - 1, 1))
    ranked = [moved[i] for i in sorted(range(len(positions)), key=lambda i: positions[i])]
    assert all(b - a >= fits - 1e-9 for a, b in itertools.pairwise(ranked))
    assert min(moved) >= -1e-9 and max(moved) <= 1 + 1e-9


def test_spread_moves_nothing_that_fits() -> None:
    assert spread([0.9, 0.1, 0.5], 0.2, 0.0, 1.0) == pytest.approx([0.9, 0.1, 0.5])
    assert spread([0.5, 0.5], 0.2, 0.0, 1.0) == pytest.approx([0.4, 0.6])
    assert spread([], 0.2, 0.0, 1.0) == []


def test_words_on_axes() -> None:
    assert [tokens(value) for value in (0, 950, 16_000, 1_500_000, 2e9)] == ["0", "950", "16k", "1.5M", "2G"]
    assert wrapped("compact-with-memory:trigger=50000,keep_tail=10000", 22).split("\n") == [
        "compact-with-memory:",
        "trigger=50000,",
        "keep_tail=10000",
    ]
    assert wrapped("keep-all") == "keep-all"
