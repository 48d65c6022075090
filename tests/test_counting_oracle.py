"""``count`` equals brute force for every policy, cache rule, block, full hit and last token, however it is called."""

from __future__ import annotations

from itertools import product
from typing import Any

import counting_checks
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import strategies
from hypothesis import strategies as st

import costmodel_jax as cm
from costmodel_jax.schema import Call, Edit, Evidence, Run, Segment

AXES = {"calls": strategies.MAX_CALLS, "segments": strategies.MAX_SEGMENTS}
BLOCKS = (1, 3, 16)
SETTINGS = tuple(product(("exact", "minus_token", "minus_block"), ("counted", "skipped")))
COMPACTION: dict[str, Any] = {"trigger": 110, "keep_head": 40, "keep_tail": 40, "summary": 15, "instruction": 5}
POLICIES = [
    cm.KeepAll(),
    cm.DropImmediately(),
    cm.KeepLatest(1),
    cm.ClearEvery(3),
    cm.DropAtUserTurn(),
    cm.ClearToolResults(trigger=60, keep=1, clear_at_least=20),
    cm.Compact(**COMPACTION),
    cm.Compact(**COMPACTION, aligned=False),
    cm.CompactWithMemory(**COMPACTION, slots=7, memory_flops=2.5, reserve=3),
    cm.AsRecorded(),
]
REUSES: dict[str, dict[str, Any]] = {
    "none": {},
    "prompt": {},
    "prompt+generation": {},
    "checkpoint": {},
    "checkpoint dense": {"dense": True},
    "window": {"window": 18},
}
RUNS = strategies.seeded_runs(11, 24)


# Policies and rules that stress the counting most: joined tails, forks and compactions.
PAIRS = [(cm.KeepLatest(1), "window"), (cm.AsRecorded(), "checkpoint"), (cm.Compact(**COMPACTION), "checkpoint")]


def make_rule(reuse: Any, **fields: Any) -> cm.CacheRule:
    return cm.CacheRule(reuse=reuse.split()[0], **REUSES[reuse], **fields)


def name_of(policy: Any) -> str:
    aligned = "" if getattr(policy, "aligned", True) else "-unaligned"
    return type(policy).__name__ + aligned


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("policy", POLICIES, ids=name_of)
def test_every_combination(policy: Any, reuse: str) -> None:
    batch = cm.pack(RUNS, **AXES)
    rendered = counting_checks.render(RUNS, policy)

    for block, (hit, last) in product(BLOCKS, SETTINGS):
        rule = make_rule(reuse, block=block, full_hit=hit, last_token=last)
        counting_checks.check(cm.count(batch, policy, rule), rendered, rule)


def test_the_random_runs_reach_what_they_are_for() -> None:
    rendered = counting_checks.render(RUNS, POLICIES[6])
    summaries = [sum(r is not None and r.summary for r in requests) for _, requests in rendered]
    assert sum(n > 1 for n in summaries) >= 3
    assert any(s.ids for run in RUNS for s in run.segments)
    assert any(call.session is not None for run in RUNS for call in run.calls[1:])
    assert any(edit.segment for run in RUNS for call in run.calls for edit in call.edits)
    hits = {
        reuse: [e.reused for _, q in rendered for e in oracle.answer(q, make_rule(reuse, block=3))] for reuse in REUSES
    }
    assert len({tuple(h) for h in hits.values()}) == len(REUSES)


@pytest.mark.parametrize(
    ("policy", "reuse"),
    [*PAIRS, (cm.KeepLatest(1), "prompt+generation")],
    ids=lambda v: v if v in REUSES else name_of(v),
)
def test_lifetime_and_smallest_hit(policy: Any, reuse: str) -> None:
    batch, rendered = cm.pack(RUNS, **AXES), counting_checks.render(RUNS, policy)
    for ttl, least in product((0.0, 10.0, 60.0), (0, 1, 40)):
        rule = make_rule(reuse, block=3, ttl=ttl, min_tokens=least)
        counting_checks.check(cm.count(batch, policy, rule), rendered, rule)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    runs=st.lists(strategies.runs(), min_size=1, max_size=3), policy=strategies.policies(), rule=strategies.rules()
)
def test_random_everything(runs: list[Run], policy: Any, rule: cm.CacheRule) -> None:
    # One large run gives every example the same shapes, so that examples share compiled programs.
    large = Segment(kind="user", tokens=3_000, ids=tuple(range(3_000)))
    padded = [*(runs * 3)[:3], Run(id="large", calls=(Call(input=(large,), time=0.0),))]
    counts = cm.count(cm.pack(padded, **AXES), policy, rule)
    counting_checks.check(counts, counting_checks.render(padded, policy), rule)


@pytest.mark.parametrize(("policy", "reuse"), PAIRS, ids=lambda v: v if v in REUSES else name_of(v))
def test_padding_order_and_batching_change_nothing(policy: Any, reuse: str) -> None:
    rule = make_rule(reuse, block=3)
    rendered = counting_checks.render(RUNS, policy)
    counting_checks.check(cm.count(cm.pack(RUNS), policy, rule), rendered, rule)
    order = np.random.default_rng(0).permutation(len(RUNS))
    shuffled = cm.count(cm.pack([RUNS[i] for i in order], **AXES), policy, rule)
    counting_checks.check(shuffled, [rendered[i] for i in order], rule)
    for i in (0, 2):  # one with token ids, one without
        alone = cm.count(cm.pack([RUNS[i]], **AXES), policy, rule)
        counting_checks.check(alone, [rendered[i]], rule)


@pytest.mark.parametrize("policy", [cm.AsRecorded(), cm.Compact(**COMPACTION)], ids=name_of)
def test_vmap_over_runs(policy: Any) -> None:
    rule = make_rule("checkpoint", block=3)
    batch, rendered = cm.pack(RUNS, **AXES), counting_checks.render(RUNS, policy)
    counting_checks.check(jax.vmap(lambda run: cm.count(run, policy, rule))(batch), rendered, rule)


def test_a_single_run_without_its_leading_axis() -> None:
    policy, rule = cm.KeepLatest(1), make_rule("prompt+generation", block=3)
    single = jax.tree.map(lambda leaf: leaf[5], cm.pack(RUNS, **AXES))
    alone = jax.tree.map(lambda leaf: np.asarray(leaf)[None], cm.count(single, policy, rule))
    counting_checks.check(alone, counting_checks.render(RUNS[5:6], policy), rule)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (cm.KeepLatest, range(6)),
        (cm.ClearEvery, range(1, 6)),
        (lambda k: cm.ClearToolResults(trigger=60, keep=k, clear_at_least=10), range(4)),
        (lambda k: cm.ClearToolResults(trigger=k, keep=1), (0, 50, 100)),
        (lambda k: cm.Compact(trigger=k, keep_head=20, keep_tail=20, summary=10), (60, 110, 160)),
        (lambda k: cm.Compact(trigger=110, keep_head=20, keep_tail=20, summary=k), (0, 9, 80)),
    ],
    ids=["latest", "every", "keep", "trigger", "compact", "summary"],
)
def test_vmap_over_policy_parameters(make: Any, values: Any) -> None:
    runs = strategies.seeded_runs(5, 24, ids=False)
    batch, rule = cm.pack(runs, **AXES), make_rule("prompt+generation", block=3)
    swept = jax.jit(jax.vmap(lambda k: cm.count(batch, make(k), rule)))(jnp.asarray(list(values), dtype=jnp.int32))
    for i, k in enumerate(values):
        counts = jax.tree.map(lambda leaf, i=i: leaf[i], swept)
        counting_checks.check(counts, counting_checks.render(runs, make(k)), rule)


def test_vmap_over_block() -> None:
    batch, policy = cm.pack(RUNS, **AXES), cm.KeepLatest(2)
    swept = jax.vmap(lambda b: cm.count(batch, policy, make_rule("checkpoint", block=b)))(jnp.asarray(BLOCKS))
    for i, block in enumerate(BLOCKS):
        counts = jax.tree.map(lambda leaf, i=i: leaf[i], swept)
        counting_checks.check(counts, counting_checks.render(RUNS, policy), make_rule("checkpoint", block=block))


@pytest.mark.parametrize(
    ("policy", "x64"),
    [(cm.ClearEvery(2), False), (cm.ClearEvery(2), True), (cm.CompactWithMemory(**COMPACTION, slots=3), True)],
)
def test_the_callers_precision_does_not_matter(policy: Any, x64: bool) -> None:
    batch, rendered = cm.pack(RUNS, **AXES), counting_checks.render(RUNS, policy)
    rule = make_rule("prompt+generation", block=3)
    before = jnp.result_type(float)
    with jax.enable_x64(x64):
        counting_checks.check(cm.count(batch, policy, rule), rendered, rule)
        counting_checks.check(jax.jit(lambda b: cm.count(b, policy, rule))(batch), rendered, rule)
    assert jnp.result_type(float) == before


def segment(kind: Any, tokens: int) -> Segment:
    return Segment(kind=kind, tokens=tokens)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("system", [2_000_000, 2_000_000_000])
def test_exact_at_very_long_prompts(jit: bool, system: int) -> None:
    first = Call(input=(segment("system", system),), output=(segment("reasoning", 3_001), segment("assistant", 501)))
    second = Call(input=(segment("tool", 70_003),), output=(segment("assistant", 1_007),))
    batch = cm.pack([Run(id="long", calls=(first, second))])
    for reuse in ("none", "prompt", "prompt+generation"):
        rule = make_rule(reuse)
        counts = jax.jit(lambda b, rule=rule: cm.count(b, cm.KeepAll(), rule))(batch) if jit else None
        counts = cm.count(batch, cm.KeepAll(), rule) if counts is None else counts
        prompts = [system, system + 3_502 + 70_003]
        reused = {"none": [0, 0], "prompt": [0, system], "prompt+generation": [0, system + 3_502]}[reuse]
        want = []
        for p, r, g in zip(prompts, reused, (3_502, 1_007), strict=True):
            want.append((p * (p + 1) - r * (r + 1)) // 2 + p * g + g * (g + 1) // 2)
        assert np.asarray(counts.prompt)[0, :2].tolist() == prompts
        assert np.asarray(counts.reused)[0, :2].tolist() == reused
        assert np.asarray(counts.pairs)[0, :2].tolist() == want


def test_totals_stay_exact_in_a_32_bit_program() -> None:
    calls = tuple(Call(input=(segment("user", 1_000_000),)) for _ in range(3))
    batch = cm.pack([Run(id="long", calls=calls)])
    total = jax.jit(lambda b: cm.total(cm.count(b, cm.KeepAll(), cm.CacheRule(reuse="none")).pairs))(batch)
    assert np.asarray(total).tolist() == [sum(n * (n + 1) // 2 for n in (1_000_000, 2_000_000, 3_000_000))]


def test_runs_that_cannot_be_counted_say_so() -> None:
    call = Call(input=(segment("user", 100),), output=(segment("reasoning", 10), segment("assistant", 10)))
    known = Run(id="known", calls=(call, call, call))
    unknown = Run(id="unknown", calls=(call, call, call), evidence=Evidence(reasoning="unknown"))
    batch, rule = cm.pack([known, unknown, *RUNS[2:]], **AXES), cm.CacheRule(reuse="prompt")
    for policy in (cm.DropImmediately(), cm.KeepLatest(1), cm.ClearEvery(2), cm.DropAtUserTurn()):
        counts = cm.count(batch, policy, rule)
        assert counts.status[:2].tolist() == [0, 2]
        assert counts.ok[:2].tolist() == [True, False]
        assert counts.pairs[1].tolist() == [-1, -1, -1, 0, 0, 0, 0, 0]
        assert counts.prompt[0, 0] == 100
    for other in (cm.KeepAll(), cm.AsRecorded(), cm.Compact(trigger=150, keep_tail=20, summary=5)):
        assert cm.count(batch, other, rule).status[:2].tolist() == [0, 0]
    # What must stay (summary, tail, reserve) is held against the trigger only where a compaction would fire: not where
    # the tail takes the whole history, and not where the trigger is never reached.
    for trigger, keep_tail, status in ((200, 20, 1), (200, 9_000, 0), (10_000, 20, 0)):
        compact = cm.Compact(trigger=trigger, keep_tail=keep_tail, summary=300, reserve=50)
        counts = cm.count(batch, compact, rule)
        assert counts.status[:2].tolist() == [status, status]
        assert set(counts.prompt[:2][counts.mask[:2]].tolist()) == ({-1} if status else {100, 220, 340})


def test_rules_that_make_no_sense_are_refused() -> None:
    call = Call(input=(segment("user", 100),), output=(segment("assistant", 10),))
    batch = cm.pack([Run(id="timeless", calls=(call, call))])
    with pytest.raises(cm.CostModelError, match="time"):
        cm.count(batch, cm.KeepAll(), cm.CacheRule(reuse="prompt", ttl=60.0))
    with pytest.raises(cm.CostModelError, match="window"):
        cm.CacheRule(reuse="window", window=8, dense=True)
    with pytest.raises(cm.CostModelError, match="calls"):
        cm.pack([Run(id="two", calls=(call, call))], calls=1)


def test_token_ids_are_found_across_segment_borders_and_after_a_rewind() -> None:
    def spell(kind: Any, ids: list[int]) -> Segment:
        return Segment(kind=kind, tokens=len(ids), ids=tuple(ids))

    first = Call(input=(spell("user", [1, 2, 3, 4]),), output=(spell("assistant", [5, 6]),))
    aside = Call(input=(spell("user", [7, 8]),), output=(spell("assistant", [9]),))
    # Back to call 0, and the same conversation again, cut into other segments and one token longer.
    again = Call(
        edits=(Edit(start=0, stop=4),), input=(spell("user", [1, 2]), spell("tool", [3, 4, 5, 6, 7])), output=()
    )
    runs = [Run(id="rewind", calls=(first, aside, again))]
    for reuse, reused in (("prompt", [0, 4, 7]), ("prompt+generation", [0, 6, 7]), ("checkpoint", [0, 3, 7])):
        rule = make_rule(reuse)
        counts = cm.count(cm.pack(runs), cm.AsRecorded(), rule)
        assert counts.reused[0, :3].tolist() == reused
        counting_checks.check(counts, counting_checks.render(runs, cm.AsRecorded()), rule)
