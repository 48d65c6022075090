import numpy as np
import pytest

import costmodel_jax as cm
from costmodel_jax.explain import CAUSES, CallExplanation

PRICES = cm.Prices(linear=1000.0, pair=1.0)


def run(calls: int = 6, **fields: object) -> cm.Run:
    """The run of the sliding-window trap."""
    return cm.Run.from_dict(
        {
            "id": "trap",
            "calls": [
                {
                    "input": [{"kind": "system", "tokens": 100}] if t == 0 else [{"kind": "tool", "tokens": 10}],
                    "output": [{"kind": "reasoning", "tokens": 20}, {"kind": "assistant", "tokens": 5}],
                    "time": 10.0 * t,
                }
                for t in range(calls)
            ],
            **fields,
        }
    )


def parts(call: CallExplanation) -> tuple[int, int, int, str, str]:
    return call.reused, call.recomputed, call.new, call.cause, call.where


POLICIES = [
    cm.KeepAll(),
    cm.DropImmediately(),
    cm.KeepLatest(1),
    cm.ClearEvery(3),
    cm.ClearToolResults(150, 1),
    cm.Compact(190, keep_tail=30, summary=10, instruction=3),
    cm.CompactWithMemory(190, keep_tail=30, summary=10, instruction=3, slots=4),
    cm.AsRecorded(),
]
RULES = [
    cm.CacheRule(),
    cm.CacheRule("none"),
    cm.CacheRule("prompt", block=16, full_hit="minus_token"),
    cm.CacheRule("checkpoint", block=16, last_token="skipped"),
    cm.CacheRule("window", block=16, window=64),
    cm.CacheRule(ttl=5.0),
    cm.CacheRule(min_tokens=150),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.reuse)
def test_parts_add_up_and_agree_with_the_counts(policy: object, rule: cm.CacheRule) -> None:
    explanation = cm.explain(run(), policy, rule, PRICES)
    counts = cm.count(cm.pack([run()]), policy, rule)
    for call in explanation.calls:
        assert call.prompt == call.reused + call.recomputed + call.new
        assert min(call.reused, call.recomputed, call.new) >= 0
        assert call.cause in CAUSES
        assert (call.recomputed == 0) == (call.cause in ("append", "start", "session"))
    for field in ("prompt", "reused", "generated", "pairs"):
        assert sum(getattr(call, field) for call in explanation.calls) == getattr(counts, field).sum()
    assert sum(call.flops for call in explanation.calls) == pytest.approx(float(cm.cost(counts, PRICES)[0]))


def test_sliding_reasoning_breaks_the_prefix_at_the_oldest_block() -> None:
    explanation = cm.explain(run(), cm.KeepLatest(1), cm.cache_rules["paper"], PRICES)
    assert [parts(call) for call in explanation.calls[:4]] == [
        (0, 0, 100, "start", ""),
        (125, 0, 10, "append", ""),
        (100, 40, 10, "reasoning hidden", "call 0 reasoning"),
        (115, 40, 10, "reasoning hidden", "call 1 reasoning"),
    ]
    assert explanation.shrank_but_dearer  # 925 prompt tokens against 1125, 521,030 FLOPs against 345,150
    assert explanation.breaks[0].recomputed_flops == 1000 * 40 + sum(range(101, 141))


def test_compaction_names_the_first_segment_it_replaced_and_counts_the_request() -> None:
    calls = cm.explain(run(), POLICIES[5], cm.cache_rules["paper"]).calls
    request, after = calls[3], calls[4]
    assert (request.summary, request.call, request.prompt, request.generated) == (True, 3, 198, 10)
    assert parts(request) == (195, 0, 3, "append", "")
    assert (after.summary, after.call) == (False, 3)
    assert parts(after) == (100, 35, 10, "compaction", "call 0 reasoning")
    unaligned = cm.Compact(190, keep_tail=30, summary=10, instruction=3, aligned=False)
    assert parts(cm.explain(run(), unaligned, cm.cache_rules["paper"]).calls[3]) == (0, 195, 3, "no reuse", "")


@pytest.mark.parametrize(
    ("policy", "rule", "call", "cause", "where"),
    [
        (cm.KeepAll(), cm.CacheRule("prompt"), 1, "generation not reused", ""),
        (cm.KeepAll(), cm.cache_rules["vllm"], 1, "block rounding", ""),
        (cm.KeepAll(), cm.CacheRule(block=528), 1, "below a block", ""),
        (cm.KeepAll(), cm.CacheRule(min_tokens=150), 1, "below the minimum", ""),
        (cm.KeepAll(), cm.CacheRule("none"), 1, "no reuse", ""),
        (cm.KeepAll(), cm.CacheRule(ttl=5.0), 2, "idle", ""),
        (cm.KeepAll(), cm.CacheRule("checkpoint", block=1), 1, "checkpoint", ""),
        (cm.ClearToolResults(150, 1), cm.CacheRule(), 2, "tool results cleared", "call 1 tool"),
        (cm.DropImmediately(), cm.CacheRule(), 1, "reasoning hidden", "call 0 reasoning"),
    ],
)
def test_causes(policy: object, rule: cm.CacheRule, call: int, cause: str, where: str) -> None:
    found = cm.explain(run(), policy, rule).calls[call]
    assert (found.cause, found.where) == (cause, where)


def test_recorded_edits_sessions_and_token_ids() -> None:
    def text(kind: str, *ids: int) -> dict[str, object]:
        return {"kind": kind, "tokens": len(ids), "ids": list(ids)}

    recorded = cm.Run.from_dict(
        {
            "id": "r",
            "calls": [
                {"input": [text("system", 1, 2), text("user", 3, 4)], "output": [text("assistant", 5, 6)]},
                {"input": [text("tool", 7)], "edits": [{"start": 1, "stop": 2, "segment": text("user", 3, 9)}]},
                {"session": "b", "input": [text("system", 1, 2), text("user", 3)]},
            ],
        }
    )
    calls = cm.explain(recorded, cm.AsRecorded(), cm.CacheRule()).calls
    assert [(call.cause, call.shared) for call in calls] == [("start", 0), ("edit", 3), ("session", 0)]
    assert calls[1].where == "call 0 user"


def test_refusals_say_why() -> None:
    unknown = run(evidence={"reasoning": "unknown"})
    with pytest.raises(cm.CostModelError, match="DropImmediately is not computable for run 'trap': reasoning unknown"):
        cm.explain(unknown, cm.DropImmediately(), cm.CacheRule())
    with pytest.raises(cm.InfeasibleError, match="Compact is infeasible for run 'trap'"):
        cm.explain(run(), cm.Compact(100), cm.CacheRule())


def test_rows_are_flat() -> None:
    rows = cm.explain(run(), cm.KeepAll(), cm.CacheRule()).to_rows()
    assert {row["run"] for row in rows} == {"trap"}
    assert all(np.isscalar(value) or value is None for row in rows for value in row.values())
