"""Random runs, policies and cache rules, drawn by hypothesis or from a seeded generator through one function.

Runs are small (segments of 0 to 40 tokens) so that brute force stays fast, and nasty: zero-length segments, empty
prompts and outputs, reasoning in inputs, sessions, drops, rewinds, replacements and later edits over them, and token
ids from alphabets so small that prompts agree by accident across segment borders.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

import costmodel_jax as cm
from costmodel_jax.schema import Call, Edit, Evidence, Run, Segment

__all__ = ["MAX_CALLS", "MAX_SEGMENTS", "generate_run", "policies", "rules", "runs", "seeded_runs"]

MAX_CALLS = 8
MAX_SEGMENTS = 80  # recorded segments and replacements of one generated run

Pick = Callable[[int, int], int]  # an integer between two bounds, both included
T = TypeVar("T")

FIRST_KINDS = ("system", "tools", "user", "system", "user", "memory")
INPUT_KINDS = ("tool", "tool", "tool", "user", "user", "reasoning", "system", "summary")
OUTPUT_KINDS = ("reasoning", "reasoning", "assistant", "assistant", "tool")


def _choose(pick: Pick, values: Sequence[T]) -> T:
    return values[pick(0, len(values) - 1)]


def _length(pick: Pick, longest: int) -> int:
    if longest < 40:
        return pick(0, longest)
    match pick(0, 7):
        case 0:
            return 0
        case 1:
            return 1
        case 2 | 3:
            return _choose(pick, (3, 15, 16, 17, 32))
        case _:
            return pick(2, 40)


@dataclass(frozen=True, kw_only=True)
class _Style:
    """What the segments of one run have in common: ``alphabet`` is None where they carry no token ids."""

    alphabet: int | None
    mixed: bool  # some segments carry no ids although others do
    longest: int


def _segment(pick: Pick, kinds: Sequence[Any], style: _Style) -> Segment:
    kind, tokens = _choose(pick, kinds), _length(pick, style.longest)
    alphabet = style.alphabet
    if alphabet is None or (style.mixed and pick(0, 2) == 0):
        return Segment(kind=kind, tokens=tokens)
    first = pick(0, alphabet - 1)
    match pick(0, 2):
        case 0:
            ids = [first] * tokens
        case 1:
            ids = [(first + i) % alphabet for i in range(tokens)]
        case _:
            stream = random.Random(first)
            ids = [stream.randrange(alphabet) for _ in range(tokens)]
    return Segment(kind=kind, tokens=tokens, ids=tuple(ids))


def _edits(pick: Pick, start: int, seen: int, style: _Style) -> tuple[Edit, ...]:
    """None, one or two edits of the segments ``start`` to ``seen``: a range somewhere, a rewind, or everything."""
    if start == seen or pick(0, 2) > 0:
        return ()
    edits = []
    for _ in range(pick(1, 2)):
        low = pick(start, seen - 1)
        high = pick(low + 1, seen)
        match pick(0, 5):
            case 0:
                high = seen
            case 1:
                low, high = start, seen
            case _:
                pass
        segment = _segment(pick, ("summary", "memory", "tool"), style) if pick(0, 1) else None
        edits.append(Edit(start=low, stop=high, segment=segment))
    return tuple(edits)


def generate_run(pick: Pick, *, name: str = "random", ids: bool = True, max_calls: int = MAX_CALLS) -> Run:
    """One random run. Every call has a time, so that rules with a lifetime apply.

    Args:
      pick: the source of randomness.
      name: the run's id.
      ids: whether some runs carry token ids.
      max_calls: the largest number of calls.
    """
    alphabet = pick(1, 3) if ids and pick(0, 1) else None
    mixed = alphabet is not None and pick(0, 3) == 0
    # Short segments let what several calls left behind join into one hit.
    style = _Style(alphabet=alphabet, mixed=mixed, longest=_choose(pick, (40, 40, 6)))
    several_sessions = pick(0, 2) == 0
    calls: list[Call] = []
    seen, start, time = 0, 0, 0.0
    for t in range(pick(1, max_calls)):
        session = None
        if several_sessions and pick(0, 3) == 0:
            session, start = t, seen
        first = start == seen
        kinds = FIRST_KINDS if first else INPUT_KINDS
        edits = _edits(pick, start, seen, style)
        inputs = tuple(_segment(pick, kinds, style) for _ in range(pick(0, 4 if first else 3)))
        outputs = tuple(_segment(pick, OUTPUT_KINDS, style) for _ in range(pick(0, 3)))
        time += _choose(pick, (0.0, 1.0, 10.0, 59.5, 60.0, 61.0))
        calls.append(Call(input=inputs, output=outputs, time=time, session=session, edits=edits))
        seen += len(inputs) + len(outputs)
    evidence = Evidence(reasoning="unknown" if pick(0, 15) == 15 else "observed")
    run = Run(id=name, calls=tuple(calls), evidence=evidence)
    return Run.from_dict(run.to_dict())


def seeded_runs(seed: int, count: int, *, ids: bool = True, max_calls: int = MAX_CALLS) -> list[Run]:
    """Random runs from a seed, the same on every machine."""
    pick = random.Random(seed).randint
    return [generate_run(pick, name=f"seed-{seed}-{i}", ids=ids, max_calls=max_calls) for i in range(count)]


@st.composite
def runs(draw: st.DrawFn, *, ids: bool = True, max_calls: int = MAX_CALLS) -> Run:
    """Random runs that hypothesis can shrink."""
    return generate_run(lambda low, high: draw(st.integers(low, high)), ids=ids, max_calls=max_calls)


@st.composite
def policies(draw: st.DrawFn) -> Any:
    """Every policy with random parameters."""
    tokens = st.integers(0, 60)
    trigger = draw(st.integers(0, 250))
    compaction: dict[str, Any] = {
        "trigger": trigger,
        "keep_head": draw(tokens),
        "keep_tail": draw(tokens),
        "summary": draw(st.integers(0, 30)),
        "aligned": draw(st.booleans()),
        "instruction": draw(st.integers(0, 20)),
        "reserve": draw(st.integers(0, 20)),
    }
    return draw(
        st.one_of(
            st.sampled_from([cm.KeepAll(), cm.DropImmediately(), cm.DropAtUserTurn(), cm.AsRecorded()]),
            st.builds(cm.KeepLatest, st.integers(0, MAX_CALLS)),
            st.builds(cm.ClearEvery, st.integers(1, MAX_CALLS)),
            st.builds(cm.ClearToolResults, trigger=st.integers(0, 250), keep=st.integers(0, 3), clear_at_least=tokens),
            st.just(cm.Compact(**compaction)),
            st.just(cm.CompactWithMemory(**compaction, slots=draw(st.integers(0, 10)), memory_flops=2.5)),
        )
    )


RULES: list[tuple[Any, Any, Any, bool]] = [
    ("none", "exact", "counted", False),
    ("prompt", "minus_block", "skipped", False),
    ("prompt+generation", "minus_token", "skipped", False),
    ("checkpoint", "exact", "skipped", False),
    ("checkpoint", "minus_token", "counted", True),
    ("window", "minus_token", "skipped", False),
]


@st.composite
def rules(draw: st.DrawFn) -> cm.CacheRule:
    """Every kind of cache rule with random parameters.

    Full hit, last token and dense choose a program; each kind of rule comes with one choice of them, so that examples
    share compiled programs.
    """
    reuse, hit, last, dense = draw(st.sampled_from(RULES))
    return cm.CacheRule(
        reuse=reuse,
        block=draw(st.sampled_from([1, 2, 3, 5, 16, 32])),
        full_hit=hit,
        last_token=last,
        min_tokens=draw(st.sampled_from([0, 0, 1, 20, 50])),
        ttl=draw(st.sampled_from([None, None, 0.0, 10.0, 60.0])),
        dense=dense,
        window=draw(st.sampled_from([2, 4, 17, 33, 64])) if reuse == "window" else None,
    )
