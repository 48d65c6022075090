"""The worked numbers of the paper and of the cost model's specification, through ``count`` and ``cost``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import costmodel_jax as cm
from costmodel_jax.schema import Call, Run, Segment

# A run that shows why a sliding window over reasoning costs more than keeping or dropping all of it: 100 tokens of
# system prompt; six calls of 20 reasoning and 5 assistant tokens, each followed by 10 tokens of tool result.
TRAP: dict[cm.KeepAll | cm.DropImmediately | cm.KeepLatest | cm.ClearEvery, tuple[int, dict[str, tuple[int, int, int]]]]
TRAP = {
    cm.KeepAll(): (
        1125,
        {
            "prompt+generation": (300, 45_150, 345_150),
            "prompt": (425, 68_025, 493_025),
            "none": (1275, 146_825, 1_421_825),
        },
    ),
    cm.DropImmediately(): (
        825,
        {
            "prompt+generation": (325, 37_975, 362_975),
            "prompt": (325, 37_975, 362_975),
            "none": (975, 81_675, 1_056_675),
        },
    ),
    cm.KeepLatest(1): (
        925,
        {
            "prompt+generation": (460, 61_030, 521_030),
            "prompt": (485, 63_855, 548_855),
            "none": (1075, 99_725, 1_174_725),
        },
    ),
    cm.KeepLatest(2): (
        1005,
        {
            "prompt+generation": (525, 75_375, 600_375),
            "prompt": (575, 81_900, 656_900),
            "none": (1155, 116_365, 1_271_365),
        },
    ),
    cm.ClearEvery(3): (
        945,
        {
            "prompt+generation": (335, 42_980, 377_980),
            "prompt": (435, 58_280, 493_280),
            "none": (1095, 104_435, 1_199_435),
        },
    ),
}

# Qwen3.6-27B: FLOPs per position and per query-key pair.
QWEN = cm.Prices(linear=48_701_112_320.0, pair=393_216.0)


def segment(kind: Any, tokens: int) -> Segment:
    return Segment(kind=kind, tokens=tokens)


def trap_run() -> Run:
    calls = []
    for t in range(6):
        new = segment("tool", 10) if t else segment("system", 100)
        calls.append(Call(input=(new,), output=(segment("reasoning", 20), segment("assistant", 5))))
    return Run(id="trap", calls=tuple(calls))


@pytest.mark.parametrize("reuse", ["prompt+generation", "prompt", "none"])
@pytest.mark.parametrize("policy", TRAP, ids=str)
def test_sliding_window_trap(policy: Any, reuse: Any) -> None:
    prompt, columns = TRAP[policy]
    processed, pairs, flops = columns[reuse]
    counts = cm.count(cm.pack([trap_run()]), policy, cm.CacheRule(reuse=reuse))
    assert counts.prompt.sum() == prompt
    assert counts.generated.sum() == 150
    assert counts.processed.sum() == processed
    assert counts.pairs.sum() == pairs
    assert cm.cost(counts, cm.Prices(linear=1000.0, pair=1.0)).tolist() == [flops]


def test_the_trap_ranks_policies_differently_under_every_rule() -> None:
    batch, prices = cm.pack([trap_run()]), cm.Prices(linear=1000.0, pair=1.0)
    best = {}
    for reuse in ("prompt+generation", "none"):
        costs = {p: cm.cost(cm.count(batch, p, cm.CacheRule(reuse=reuse)), prices)[0] for p in TRAP}
        best[reuse] = min(costs, key=lambda p: float(costs[p]))
    assert best == {"prompt+generation": cm.KeepAll(), "none": cm.DropImmediately()}


@pytest.mark.parametrize(
    ("policy", "reuse", "processed", "pairs", "teraflops"),
    [
        (cm.KeepAll(), "prompt+generation", 600, 11_040_300, 33.56),
        (cm.DropImmediately(), "prompt+generation", 700, 11_445_350, 38.59),
        (cm.DropImmediately(), "prompt", 700, 11_445_350, 38.59),
        (cm.KeepAll(), "prompt", 2_700, 46_846_350, 149.91),
        (cm.KeepAll(), "none", 18_700, 174_854_350, 979.47),
        (cm.DropImmediately(), "none", 16_700, 139_453_350, 868.14),
    ],
)
def test_figure_1(policy: Any, reuse: Any, processed: int, pairs: int, teraflops: float) -> None:
    """16,000 of task, 2,000 of reasoning, 100 of action; then 500 of input and 100 generated: the second call."""
    first = Call(input=(segment("user", 16_000),), output=(segment("reasoning", 2_000), segment("assistant", 100)))
    second = Call(input=(segment("tool", 500),), output=(segment("assistant", 100),))
    both = cm.count(cm.pack([Run(id="both", calls=(first, second))]), policy, cm.CacheRule(reuse=reuse))
    alone = cm.count(cm.pack([Run(id="first", calls=(first,))]), policy, cm.CacheRule(reuse=reuse))
    assert (both.processed[0, 1], both.pairs[0, 1]) == (processed, pairs)
    flops = (cm.cost(both, QWEN) - cm.cost(alone, QWEN))[0]
    assert flops == QWEN.linear * processed + QWEN.pair * pairs
    assert round(float(flops) / 1e12, 2) == teraflops


def compaction(*, aligned: bool, later: int) -> tuple[cm.Counts, cm.Counts]:
    """Counts under ``Compact`` and ``KeepAll``: a head of 10, 100 replaced by 20, a tail of 30, then ``later``."""
    first = Call(input=(segment("system", 10), segment("user", 100)), output=(segment("assistant", 30),))
    second = Call(output=(segment("assistant", later),))
    batch, rule = cm.pack([Run(id="edit", calls=(first, second))]), cm.cache_rules["paper"]
    policy = cm.Compact(trigger=139, keep_head=10, keep_tail=30, summary=20, instruction=5, aligned=aligned)
    return cm.count(batch, policy, rule), cm.count(batch, cm.KeepAll(), rule)


@pytest.mark.parametrize(("aligned", "request_cost"), [(True, 4_075), (False, 15_345)])
def test_compaction_request_and_rebuild(aligned: bool, request_cost: int) -> None:
    counts, _ = compaction(aligned=aligned, later=0)
    costs = (10 * counts.processed + counts.pairs)[0]
    assert counts.mask[0, :4].tolist() == [False, True, True, True]
    assert counts.summary[0, :4].tolist() == [False, False, True, False]
    assert (counts.prompt[0, 2], counts.reused[0, 2], counts.generated[0, 2]) == (145, 140 if aligned else 0, 20)
    assert costs[2] == request_cost
    # Summary and tail are computed again behind the head: A(10, 50).
    assert (counts.prompt[0, 3], counts.reused[0, 3]) == (60, 10)
    assert costs[3] == 2_275


@pytest.mark.parametrize(("aligned", "break_even"), [(True, 79.375), (False, 220.25)])
def test_compaction_breaks_even_where_the_closed_form_says(aligned: bool, break_even: float) -> None:
    prices = cm.Prices(linear=10.0, pair=1.0)
    for later in (0, int(break_even), int(break_even) + 1, 1_000):
        compacted, kept = compaction(aligned=aligned, later=later)
        difference = cm.cost(compacted, prices)[0] - cm.cost(kept, prices)[0]
        # Every later position attends to 80 tokens less.
        assert difference == 80 * (break_even - later)


def test_a_free_summary_breaks_even_at_its_rebuild() -> None:
    counts, kept = compaction(aligned=True, later=28)
    rebuilt = 10 * counts.processed[0, 3] + counts.pairs[0, 3]
    stayed = 10 * kept.processed[0, 1] + kept.pairs[0, 1]
    assert int(rebuilt - stayed) == 80 * (28.4375 - 28)


def test_totals_are_exact_sums() -> None:
    counts = cm.count(cm.pack([trap_run()] * 3), cm.KeepAll(), cm.CacheRule(reuse="none"))
    assert counts.pairs.dtype == np.int64
    assert counts.pairs.sum(axis=1).tolist() == [146_825] * 3
