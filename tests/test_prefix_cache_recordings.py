"""The ``vllm*`` presets reproduce every hit recorded from a real cache manager and from whole running engines.

``golden/prefix_cache/excerpt.json`` holds a few records per engine setting; the complete recordings stand beside the
checkout and are read where they exist.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import counting_checks
import numpy as np
import oracle
import pytest

import costmodel_jax as cm
from costmodel_jax.schema import Run

EXCERPT = Path(__file__).parent / "golden" / "prefix_cache" / "excerpt.json"
AXES = {"calls": 40, "segments": 128}  # one shape for all records, so that programs are shared
Record = dict[str, Any]


def rule_of(engine: dict[str, Any]) -> cm.CacheRule:
    """The preset of an engine's cache groups, at the engine's block."""
    if engine["groups"] == "full+swa":
        return dataclasses.replace(cm.cache_rules["vllm-window"], block=engine["block"], window=engine["window"])
    if engine["groups"] == "full+mamba":
        # Without a retention interval the manager keeps every block, inside generated text too.
        dense = engine["retention"] is None
        return dataclasses.replace(cm.cache_rules["vllm-hybrid"], block=engine["block"], dense=dense)
    return dataclasses.replace(cm.cache_rules["vllm"], block=engine["block"])


def policy_of(policy: dict[str, Any]) -> Any:
    match policy["name"]:
        case "keep_all":
            return cm.KeepAll()
        case "drop":
            return cm.DropImmediately()
        case "keep_latest":
            return cm.KeepLatest(policy["k"])
        case "clear_every":
            return cm.ClearEvery(policy["k"])
    raise ValueError(policy["name"])


def runs_of(records: list[Record], *, ids: bool) -> list[Run]:
    runs = []
    for record in records:
        run = json.loads(json.dumps(record["run"]))
        for call in run["calls"]:
            for segment in (*call["input"], *call["output"]):
                if not ids:
                    segment.pop("ids", None)
        runs.append(Run.from_dict(run))
    return runs


def grouped(records: list[Record]) -> list[list[Record]]:
    """Records that share policy and engine, so that they are counted as one batch."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[json.dumps([record["policy"], record["engine"]])].append(record)
    return list(groups.values())


def count(records: list[Record], rule: cm.CacheRule | None = None, *, ids: bool = True) -> list[tuple[Any, ...]]:
    """(P, R, G) per call of every record of a group."""
    rule = rule_of(records[0]["engine"]) if rule is None else rule
    runs = runs_of(records, ids=ids)
    counts = cm.count(cm.pack((runs * 6)[: max(len(runs), 6)], **AXES), policy_of(records[0]["policy"]), rule)
    assert np.asarray(counts.ok).all()
    return [
        tuple(
            np.asarray(column)[i][counts.mask[i]].tolist()
            for column in (counts.prompt, counts.reused, counts.generated)
        )
        for i in range(len(records))
    ]


def recorded(records: list[Record]) -> list[tuple[Any, ...]]:
    # The last sampled token is never fed back.
    return [(r["P"], r["R"], [max(emitted - 1, 0) for emitted in r["emitted"]]) for r in records]


def check(records: list[Record], *, ids: bool = True) -> None:
    for group in grouped(records):
        for record, got, want in zip(group, count(group, ids=ids), recorded(group), strict=True):
            assert got == want, (record["run"]["id"], record["policy"], record["engine"])


@pytest.fixture(scope="module")
def excerpt() -> list[Record]:
    records: list[Record] = json.loads(EXCERPT.read_text())
    return records


def test_excerpt_covers_every_setting(excerpt: list[Record]) -> None:
    settings = {(r["source"], *(str(v) for v in r["engine"].items())) for r in excerpt}
    assert len(settings) == 10
    assert {r["policy"]["name"] for r in excerpt} == {"keep_all", "drop", "keep_latest", "clear_every"}


def test_excerpt_is_reproduced(excerpt: list[Record]) -> None:
    check(excerpt)


def test_excerpt_from_lengths_alone(excerpt: list[Record]) -> None:
    check([r for r in excerpt if r["source"] == "engine_runs.json"], ids=False)


def test_excerpt_agrees_with_brute_force(excerpt: list[Record]) -> None:
    for record, run in zip(excerpt, runs_of(excerpt, ids=True), strict=True):
        entries, status = oracle.count_run(run, policy_of(record["policy"]), rule_of(record["engine"]))
        assert status == 0
        assert [entry.prompt for entry in entries] == record["P"]
        assert [entry.reused for entry in entries] == record["R"]


@pytest.mark.parametrize("change", ["counted", "prompt", "checkpoint for window", "not dense"])
def test_excerpt_tells_wrong_rules_apart(excerpt: list[Record], change: str) -> None:
    """The records would not be reproduced by a rule that is wrong in one respect."""

    def wrong(engine: dict[str, Any]) -> cm.CacheRule:
        rule = rule_of(engine)
        if change == "counted":
            return dataclasses.replace(rule, last_token="counted")
        if change == "prompt" and rule.reuse == "prompt+generation":
            return dataclasses.replace(rule, reuse="prompt")
        if change == "checkpoint for window" and rule.reuse == "window":
            return dataclasses.replace(rule, reuse="checkpoint", window=None)
        return dataclasses.replace(rule, dense=False) if change == "not dense" else rule

    misses = 0
    for group in grouped(excerpt):
        rule = wrong(group[0]["engine"])
        if rule != rule_of(group[0]["engine"]):
            reused = [r for _, r, _ in count(group, rule)]
            misses += sum(got != record["R"] for got, record in zip(reused, group, strict=True))
    assert misses > 0


@pytest.mark.parametrize(("name", "expected"), [("recordings.json", 180), ("engine_runs.json", 72)])
def test_all_recordings_are_reproduced(shared: Path, name: str, expected: int) -> None:
    records = json.loads((shared / "golden" / "prefix_cache" / name).read_text())
    assert len(records) == expected
    check(records)


def test_embeddings_reuse_prompts_only(excerpt: list[Record]) -> None:
    """Prompts sent as embeddings never find generated text again: blocks of min(lcp with earlier prompts, P-1)."""
    rule = dataclasses.replace(cm.cache_rules["vllm-embeds"], block=32)
    assert (rule.reuse, rule.full_hit, rule.last_token) == ("prompt", "minus_token", "skipped")
    for group in grouped([r for r in excerpt if r["source"] == "engine_runs.json"]):
        policy = policy_of(group[0]["policy"])
        counts = cm.count(cm.pack(runs_of(group, ids=True)), policy, rule)
        counting_checks.check(counts, counting_checks.render(runs_of(group, ids=True), policy), rule)
