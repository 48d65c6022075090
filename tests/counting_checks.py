"""Comparing ``Counts`` with the brute-force oracle, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle

from costmodel_jax.schema import Run

NUMBERS = ("prompt", "reused", "generated", "processed", "pairs")
FIELDS = ("mask", "summary", *NUMBERS, "extra")
Rendered = list[tuple[int, list[oracle.Request | None]]]


def render(runs: Sequence[Run], policy: Any) -> Rendered:
    """Status and requests of every run, so that many rules can be judged on one rendering."""
    rendered: Rendered = []
    for run in runs:
        status = oracle.OK
        requests: list[oracle.Request | None] = []
        if type(policy).__name__ in oracle.REASONING_POLICIES and run.evidence.reasoning == "unknown":
            status = oracle.REASONING_UNKNOWN
        else:
            try:
                requests = oracle.render(run, policy)
            except oracle.InfeasibleError:
                status = oracle.INFEASIBLE
        rendered.append((status, requests))
    return rendered


def check(counts: Any, rendered: Rendered, rule: Any) -> None:
    """Every field of every entry equals the oracle's, and padding is empty."""
    status = np.asarray(counts.status)
    assert status.tolist() == [expected for expected, _ in rendered]
    arrays = {name: np.asarray(getattr(counts, name)) for name in FIELDS}
    for name in NUMBERS:
        assert arrays[name].dtype == np.int64, (name, arrays[name].dtype)
    assert arrays["extra"].dtype == np.float64
    for i, (expected, requests) in enumerate(rendered):
        mask = arrays["mask"][i]
        if expected != oracle.OK:
            for name in NUMBERS:
                np.testing.assert_array_equal(arrays[name][i], np.where(mask, -1, 0), err_msg=f"run {i} {name}")
            continue
        entries = oracle.answer(requests, rule)
        for name in FIELDS:
            want = [getattr(entry, name) for entry in entries]
            got = arrays[name][i].tolist()
            message = f"run {i}, {name}, {rule}"
            assert got[: len(want)] == want, message
            assert not any(got[len(want) :]), message
