"""Predicted against recorded prefix-cache hits, as a picture and a table.

Usage: ``python -m launch.plot_prefix_cache RECORDINGS.json [...] [--out out/prefix_cache.png]``

A recordings file is an array of records of one run under one policy on one engine: ``run`` (agent-run/1 calls),
``policy`` (``name``, ``k``), ``engine`` (``groups``, ``block``, ``window``, ``retention``), and per call ``P``, ``R``
(tokens found in the cache) and ``emitted``; ``tests/golden/prefix_cache/excerpt.json`` is one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import tyro

import costmodel_jax as cm
from costmodel_jax.figures import predicted_reuse, save
from costmodel_jax.specs import parse_policy

POLICIES = {"keep_all": "keep-all", "drop": "drop", "keep_latest": "keep-latest:{k}", "clear_every": "clear-every:{k}"}
PRESETS = {"full": "vllm", "full+swa": "vllm-window", "full+mamba": "vllm-hybrid"}


def main(
    recordings: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path = Path("out/prefix_cache.png")
) -> None:
    """Compare every record with the preset of its engine's cache groups.

    Args:
      recordings: files of records.
      out: where the picture goes; its table stands beside it as CSV.
    """
    records = [record for path in recordings for record in json.loads(path.read_text())]
    settings, predicted, measured = compare(records)
    subtitle = f"{len(records)} recorded runs; rules: {', '.join(PRESETS.values())} at each engine's block"
    for path in save(*predicted_reuse(settings, predicted, measured, subtitle), out):
        print(path)


def compare(records: Iterable[Mapping[str, Any]]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Setting, predicted and recorded hit of every call."""
    settings: list[str] = []
    predicted: list[np.ndarray] = []
    measured: list[int] = []
    for name, rule, policy, group in _groups(records):
        counts = cm.count(cm.pack([cm.Run.from_dict(record["run"]) for record in group]), policy, rule)
        for i, record in enumerate(group):
            settings += [name] * len(record["R"])
            predicted.append(np.asarray(counts.reused[i])[counts.mask[i]])
            measured += record["R"]
    return settings, np.concatenate(predicted), np.array(measured)


def _groups(
    records: Iterable[Mapping[str, Any]],
) -> Iterable[tuple[str, cm.CacheRule, Any, list[Mapping[str, Any]]]]:
    """Records that are counted together: one setting, one policy."""
    groups: dict[tuple[str, str], tuple[str, cm.CacheRule, Any, list[Mapping[str, Any]]]] = {}
    for record in sorted(
        records, key=lambda record: (list(PRESETS).index(record["engine"]["groups"]), record["engine"]["block"])
    ):
        engine, policy = record["engine"], record["policy"]
        name = _setting(engine, ids=any("ids" in s for call in record["run"]["calls"] for s in call["input"]))
        key = (name, msgspec.json.encode(policy).decode())
        groups.setdefault(key, (name, _rule(engine), parse_policy(POLICIES[policy["name"]].format(k=policy["k"])), []))[
            3
        ].append(record)
    return groups.values()


def _rule(engine: Mapping[str, Any]) -> cm.CacheRule:
    rule = dataclasses.replace(cm.cache_rules[PRESETS[engine["groups"]]], block=engine["block"])
    if "window" in engine:
        rule = dataclasses.replace(rule, window=engine["window"])
    return dataclasses.replace(rule, dense=rule.reuse == "checkpoint" and engine["retention"] is None)


def _setting(engine: Mapping[str, Any], *, ids: bool) -> str:
    dense = ", dense" if engine["retention"] is None else ""
    return f"{engine['groups']}{dense}, block {engine['block']}, {'engine' if ids else 'manager'}"


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
