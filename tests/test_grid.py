"""The grid behind ``costmodel price``: shortcuts change no number, totals add up, payback is exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from cli_logs import run_document
from strategies import seeded_runs

import costmodel_jax as cm
from costmodel_jax import groups as grouping
from costmodel_jax.cli.breaks import by_cause, find_breaks
from costmodel_jax.cli.floors import fixed_floor, infeasible
from costmodel_jax.cli.payback import holds_under, paid_edits
from costmodel_jax.grid import COUNTS, KEEP_ALL, Grid, changes, count_grid, longest_prompt
from costmodel_jax.groups import compiling_quickly, grouped
from costmodel_jax.rows import price
from costmodel_jax.tables import CALL_COLUMNS, RUN_COLUMNS, Chunk

POLICIES = {
    KEEP_ALL: cm.KeepAll(),
    "drop": cm.DropImmediately(),
    "keep-latest:1": cm.KeepLatest(1),
    "clear": cm.ClearToolResults(60, 1, 0),
    "compact": cm.Compact(90, keep_tail=10, summary=7, instruction=3),
    "as-recorded": cm.AsRecorded(),
}
CACHES = {"paper": cm.CacheRule(), "prompt": cm.CacheRule(reuse="prompt", block=16), "ttl": cm.CacheRule(ttl=30.0)}
PRICES = cm.Prices(linear=1000.0, pair=1.0)


def runs_of(*, ids: bool = False) -> list[cm.Run]:
    return [*seeded_runs(7, 12, ids=ids), cm.Run.from_dict(run_document("long", 20))]


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    with compiling_quickly([]):
        yield


@pytest.fixture(scope="module")
def counted() -> Grid:
    return count_grid(runs_of(), POLICIES, CACHES)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", POLICIES)
def test_every_cell_is_what_counting_all_runs_gives(name: str, cache: str, counted: Grid) -> None:
    runs = list(counted.runs)
    if CACHES[cache].ttl is not None:
        runs = [run for run in runs if cm.pack([run]).has_time]
        assert 0 < len(runs) < len(counted.runs)
    together = cm.count(cm.pack(runs), POLICIES[name], CACHES[cache])
    by_id = {run.id: counts for run, counts in zip(counted.runs, counted.cells[name, cache].runs, strict=True)}
    assert {by_id[run.id].status for run in counted.runs if run not in runs} <= {"no times"}
    for row, run in enumerate(runs):
        counts, steps = by_id[run.id], np.flatnonzero(together.mask[row])
        assert counts.ok == bool(together.ok[row]), run.id
        if counts.ok:
            for field in COUNTS:
                np.testing.assert_array_equal(getattr(counts, field), getattr(together, field)[row][steps])
            np.testing.assert_array_equal(counts.request, together.summary[row][steps])


def test_shortcuts_are_taken_and_not_taken(counted: Grid) -> None:
    for name in ("drop", "clear", "compact", "as-recorded"):
        kinds = {changes(run, POLICIES[name]) for run in counted.runs}
        assert kinds == {True, False}, name
    assert not any(changes(run, cm.KeepAll()) for run in counted.runs)


def test_runs_with_token_ids_are_counted_apart() -> None:
    runs = [*seeded_runs(5, 3, ids=True), *seeded_runs(4, 2, ids=False)]
    assert {any(segment.ids for segment in run.segments) for run in runs} == {True, False}
    cell = count_grid(runs, {}, {"paper": cm.CacheRule()}).cells[KEEP_ALL, "paper"]
    together = cm.count(cm.pack(runs), cm.KeepAll(), cm.CacheRule())
    for row, counts in enumerate(cell.runs):
        np.testing.assert_array_equal(counts.reused, together.reused[row][: len(counts.call)])


def test_the_longest_prompt_is_that_of_keeping_all(counted: Grid) -> None:
    for run, counts in zip(counted.runs, counted.cells[KEEP_ALL, "paper"].runs, strict=True):
        assert longest_prompt(run) == counts.prompt.max()


def test_groups_hold_every_run_once_and_none_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = seeded_runs(5, 3, ids=True) + [cm.Run.from_dict(run_document(f"r{i}", 3 + 9 * (i % 3))) for i in range(30)]
    for shared, memory in ((2**28, 2**28), (0, 2**28), (2**28, 8 * 8 * 3)):
        monkeypatch.setattr(grouping, "SHARED_WORK", shared)
        monkeypatch.setattr(grouping, "MEMORY", memory)
        groups = grouped(runs, range(len(runs)))
        assert sorted(i for group in groups for i in group.runs) == list(range(len(runs)))
        for group in groups:
            cm.pack([runs[i] for i in group.runs], calls=group.calls, segments=group.segments)
            assert len(group.runs) == 1 or len(group.runs) * group.calls * group.segments <= memory


def test_quick_compilation_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    flag, config = "jax_disable_most_optimizations", jax.config
    runs = runs_of()
    before = config.read(flag)  # type: ignore[no-untyped-call]
    config.update(flag, False)  # type: ignore[no-untyped-call]
    try:
        with pytest.raises(KeyError), compiling_quickly(runs):
            assert config.read(flag) is True  # type: ignore[no-untyped-call]
            raise KeyError
        assert config.read(flag) is False  # type: ignore[no-untyped-call]
        monkeypatch.setattr(grouping, "LITTLE", 1)
        with compiling_quickly(runs):
            assert config.read(flag) is False  # type: ignore[no-untyped-call]
    finally:
        config.update(flag, before)  # type: ignore[no-untyped-call]


def rows(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    return [dict(zip(chunk, values, strict=True)) for chunk in chunks for values in zip(*chunk.values(), strict=True)]


def test_rows_are_costs_and_their_calls_add_up(counted: Grid) -> None:
    grid = dataclasses.replace(counted, caches={"paper": CACHES["paper"]})
    runs = counted.runs
    together = {name: cm.count(cm.pack(runs), policy, CACHES["paper"]) for name, policy in POLICIES.items()}
    for prices in (PRICES, dataclasses.replace(PRICES, windows=(cm.Capped(window=9, pair=2.0),), head=3.0)):
        priced = price(grid, "own", prices, 2.5)
        costs = {name: cm.cost(counts, prices, 2.5) for name, counts in together.items()}
        by_run, by_call = rows(priced.chunks()), rows(priced.call_chunks())
        assert list(by_run[0]) == list(RUN_COLUMNS) and list(by_call[0]) == list(CALL_COLUMNS)
        assert len(by_run) == len(runs) * len(POLICIES)
        for row in by_run:
            calls = [c for c in by_call if (c["run"], c["policy"]) == (row["run"], row["policy"])]
            if row["status"] != "ok":
                assert row["flops"] is None and row["calls"] is None and row["vs_keep_all"] is None and not calls
                continue
            assert row["calls"] == len(calls)
            assert row["requests"] == sum(c["request"] for c in calls)
            for field in COUNTS:
                assert row[field] == sum(c[field] for c in calls)
            assert row["processed"] == row["prompt"] - row["reused"] + row["generated"]
            assert row["flops"] == pytest.approx(sum(c["flops"] for c in calls), rel=1e-12)
            position = next(i for i, run in enumerate(runs) if run.id == row["run"])
            assert row["flops"] == pytest.approx(costs[row["policy"]][position], rel=1e-12)


def test_totals_compare_the_same_runs_and_never_hide_what_is_missing() -> None:
    known, unknown = run_document("known"), run_document("unknown")
    unknown["evidence"] = {"reasoning": "unknown"}
    runs = [cm.Run.from_dict(known), cm.Run.from_dict(unknown)]
    grid = count_grid(runs, {"drop": cm.DropImmediately()}, {"paper": cm.CacheRule()})
    kept, dropped = price(grid, "own", PRICES, 1.0).totals()
    assert (kept["policy"], kept["runs"], kept["without"]) == (KEEP_ALL, 2, {})
    assert (dropped["runs"], dropped["without"]) == (1, {"reasoning unknown": 1})
    assert dropped["vs_keep_all"] == pytest.approx(2 * dropped["flops"] / kept["flops"])
    assert kept["cheapest"] and not dropped["cheapest"]
    assert grid.cells["drop", "paper"].runs[1].status == "reasoning unknown"


def test_the_flag_is_up_when_the_prompt_shrank_and_the_cost_rose() -> None:
    run = cm.Run.from_dict(run_document("r", 12))
    grid = count_grid([run], {"latest": cm.KeepLatest(1)}, {"none": cm.CacheRule("none"), "paper": cm.CacheRule()})
    flags = {(e["policy"], e["cache"]): e["shrank_but_dearer"] for e in price(grid, "own", PRICES, 1.0).totals()}
    assert flags["latest", "paper"] and not flags["latest", "none"] and not flags[KEEP_ALL, "paper"]


def test_what_the_server_measured_has_its_own_rows() -> None:
    measured, silent = cm.Run.from_dict(run_document("m", measured=True)), cm.Run.from_dict(run_document("s"))
    priced = price(count_grid([measured, silent], {KEEP_ALL: cm.KeepAll()}, CACHES), "own", PRICES, 1.0)
    first, second, *_ = rows(priced.chunks())
    usages: list[Any] = [call.usage for call in measured.calls]
    assert (first["policy"], first["label"], first["status"]) == ("measured", "measured", "ok")
    assert first["prompt"] == sum(usage.prompt_tokens for usage in usages)
    assert first["reused"] == sum(usage.cached_tokens for usage in usages)
    pairs = sum(
        sum(range(u.cached_tokens + 1, u.prompt_tokens + 1)) + sum(u.prompt_tokens + j for j in range(1, 62))
        for u in usages
    )
    assert first["pairs"] == pairs
    assert (second["run"], second["status"], second["flops"]) == ("s", "not measured", None)


def test_labels_say_where_numbers_come_from() -> None:
    document = run_document("t", 8)
    document["evidence"] = {"lengths": "modelled"}
    runs = [cm.Run.from_dict(run_document("r", 8)), cm.Run.from_dict(document)]
    compact = {KEEP_ALL: cm.KeepAll(), "compact": cm.Compact(450, keep_tail=50, summary=9)}
    labels = [
        (row["run"], row["policy"], row["label"])
        for row in rows(price(count_grid(runs, compact, {"p": cm.CacheRule()}), "own", PRICES, 1.0).chunks())
    ]
    assert labels == [
        ("r", KEEP_ALL, "replayed"), ("t", KEEP_ALL, "modelled"), ("r", "compact", "modelled"),
        ("t", "compact", "modelled"),
    ]  # fmt: skip


@pytest.mark.parametrize("aligned", [True, False])
def test_payback_of_a_single_edit_is_the_difference_of_the_counts(aligned: bool) -> None:
    """With exact reuse, C(compact) - C(keep-all) = K_gen + A(H, rebuilt) - beta x saved x later positions."""
    run = cm.Run.from_dict(run_document("r", 8))
    policies = {"compact": cm.Compact(840, keep_tail=80, summary=20, instruction=5, aligned=aligned)}
    grid = count_grid([run], policies, {"paper": cm.CacheRule()})
    (edit,) = paid_edits(grid, "paper", PRICES, 3.0)
    priced = price(grid, "own", PRICES, 3.0)
    difference = priced.flops["compact", "paper"][0] - priced.flops[KEEP_ALL, "paper"][0]
    saved, rebuilt = edit.before - edit.after, edit.after - edit.reused
    rebuild = cm.rebuild_cost(PRICES, edit.reused, rebuilt)
    assert difference == pytest.approx(edit.k_gen + rebuild - PRICES.pair * saved * edit.later, rel=1e-12)
    assert edit.break_even == pytest.approx((edit.k_gen + rebuild) / (PRICES.pair * saved))
    assert edit.paid == (difference <= 0) == (edit.later >= edit.break_even)
    assert edit.calls[0] <= edit.calls[1] <= edit.calls[2]


def test_payback_sees_the_edits_of_each_policy() -> None:
    run = cm.Run.from_dict(run_document("r", 12))
    policies = {
        "compact": cm.Compact(600, keep_tail=40, summary=20, instruction=5),
        "clear": cm.ClearToolResults(500, 1, 100),
        "idle": cm.Compact(10_000),
        "as-recorded": cm.AsRecorded(),
    }
    grid = count_grid([run], policies, {"paper": cm.CacheRule()})
    edits = paid_edits(grid, "paper", PRICES)
    assert {edit.policy for edit in edits} == {"compact", "clear"}
    assert sum(edit.policy == "compact" for edit in edits) == grid.cells["compact", "paper"].runs[0].total("request")
    for edit in edits:
        assert edit.after < edit.before and edit.reused <= edit.after
    assert all(edit.k_gen == 0 for edit in edits if edit.policy == "clear")


def test_an_edit_that_frees_nothing_never_pays() -> None:
    document = run_document("r", 4)
    document["calls"][3]["edits"] = [{"start": 2, "stop": 3, "segment": {"kind": "summary", "tokens": 90}}]
    run = cm.Run.from_dict(document)
    grid = count_grid([run], {"as-recorded": cm.AsRecorded()}, {"paper": cm.CacheRule()})
    (edit,) = paid_edits(grid, "paper", PRICES)
    assert edit.after > edit.before and edit.break_even == np.inf and not edit.paid


def test_the_closed_form_needs_generation_to_be_found_again_for_ever() -> None:
    assert holds_under(cm.cache_rules["vllm"])
    assert not holds_under(cm.CacheRule(reuse="prompt"))
    assert not holds_under(cm.CacheRule(ttl=5.0))


def test_breaks_are_those_of_explain() -> None:
    document = run_document("r", 9)
    document["calls"][6]["edits"] = [{"start": 4, "stop": 9, "cause": "compaction"}]
    runs = [cm.Run.from_dict(document), cm.Run.from_dict(run_document("plain", 5))]
    grid = count_grid(runs, {"as-recorded": cm.AsRecorded()}, {"paper": cm.CacheRule()})
    breaks = find_breaks(grid, "paper", PRICES, limit=5)
    expected = cm.explain(runs[0], cm.AsRecorded(), cm.CacheRule(), PRICES).breaks
    assert [(found.run, found.explanation) for found in breaks.breaks] == [("r", call) for call in expected]
    assert breaks.policy == "as-recorded" and breaks.explained == 2
    ((cause, calls, tokens, flops),) = by_cause(found.explanation for found in breaks.breaks)
    assert (cause, calls, tokens) == (expected[0].cause, 1, expected[0].recomputed)
    assert flops == expected[0].recomputed_flops
    assert find_breaks(grid, "paper", PRICES, limit=1).explained == 1


def test_the_floor_decides_what_is_infeasible() -> None:
    run = cm.Run.from_dict(run_document("r", 12))  # a system prompt of 300 tokens
    for reserve in range(60, 90, 5):
        policy = cm.Compact(400, keep_tail=10, summary=15, reserve=reserve)
        grid = count_grid([run], {"compact": policy}, {"paper": cm.CacheRule()})
        floor = fixed_floor(run, policy)
        assert floor == 300 + 15 + 10 + reserve
        assert [(one.floor, one.window) for one in infeasible(grid)] == ([(floor, 400)] if floor > 400 else [])
