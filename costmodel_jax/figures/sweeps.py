"""Counting the same runs at many triggers: the trigger is an argument of the compiled program, so this is cheap."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from costmodel_jax.caching import CacheRule
from costmodel_jax.calls import buckets, pack
from costmodel_jax.counting import count
from costmodel_jax.policies import KeepAll
from costmodel_jax.pricing import Prices, cost
from costmodel_jax.schema import Run

__all__ = ["by_trigger"]


def by_trigger(
    runs: Sequence[Run],
    policies: Mapping[str, Any],
    triggers: Sequence[int],
    rule: CacheRule,
    prices: Prices,
    w: float,
) -> list[dict[str, Any]]:
    """Cost and context of policies that have a trigger, at each of several, over all runs together.

    Returns:
      One row per policy and trigger with ``policy``, ``trigger``, ``flops``, ``vs_keep_all``, ``mean_prompt`` (tokens
      per call, summary requests aside) and ``requests`` (their number); None where a run makes it infeasible.
    """
    batches = [pack([runs[i] for i in group]) for group in buckets(runs)]
    kept = sum(float(np.sum(cost(count(batch, KeepAll(), rule), prices, w))) for batch in batches)
    rows: list[dict[str, Any]] = []
    for name, policy in policies.items():
        for trigger in triggers:
            counted = [count(batch, dataclasses.replace(policy, trigger=trigger), rule) for batch in batches]
            row: dict[str, Any] = {"policy": name, "trigger": trigger}
            if not all(np.all(counts.ok) for counts in counted):
                nothing = dict.fromkeys(("flops", "vs_keep_all", "mean_prompt", "requests"))
                rows.append(row | nothing | {"status": "infeasible"})
                continue
            flops = sum(float(np.sum(cost(counts, prices, w))) for counts in counted)
            calls = [np.asarray(counts.mask & ~counts.summary) for counts in counted]
            prompt = sum(int(np.asarray(c.prompt)[own].sum()) for c, own in zip(counted, calls, strict=True))
            rows.append(
                row
                | {
                    "flops": flops,
                    "vs_keep_all": flops / kept,
                    "mean_prompt": prompt / sum(int(c.sum()) for c in calls),
                }
                | {"requests": sum(int(np.sum(counts.summary)) for counts in counted), "status": "ok"}
            )
    return rows
