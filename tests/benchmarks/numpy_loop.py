"""Counting as a competent NumPy user would write it first: a loop over runs and calls, vector operations over segments.

What is known before the policy and the rule (segment columns of a run) is prepared once by ``columns``, as ``pack``
does for the library. Reasoning policies, and the rules ``none``, ``prompt``, ``prompt+generation`` and ``checkpoint``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel_jax.schema import Run

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One run by segments: length, the call it belongs to, whether that call generated it, whether it is reasoning."""

    tokens: Ints
    call: Ints
    generated: Bools
    reasoning: Bools
    user_calls: Ints  # calls whose input holds a user message
    calls: int


def columns(run: Run) -> Columns:
    rows = [
        (segment.tokens, t, side == 1, side == 1 and segment.kind == "reasoning")
        for t, call in enumerate(run.calls)
        for side, segments in enumerate((call.input, call.output))
        for segment in segments
    ]
    tokens, call, generated, reasoning = (np.array(column) for column in zip(*rows, strict=True))
    users = [t for t, call in enumerate(run.calls) if any(segment.kind == "user" for segment in call.input)]
    return Columns(
        tokens=tokens.astype(np.int64),
        call=call.astype(np.int64),
        generated=generated.astype(bool),
        reasoning=reasoning.astype(bool),
        user_calls=np.array(users, dtype=np.int64),
        calls=len(run.calls),
    )


def hidden_from(run: Columns, policy: Any) -> Ints:
    """The call from which each segment is no longer shown."""
    never = np.full(run.tokens.shape, run.calls, dtype=np.int64)
    match type(policy).__name__:
        case "KeepAll":
            return never
        case "DropImmediately":
            end = run.call + 1
        case "KeepLatest":
            end = run.call + policy.k + 1
        case "ClearEvery":
            end = policy.k * (run.call // policy.k + 1)
        case "DropAtUserTurn":
            later = np.append(run.user_calls, run.calls)
            end = later[np.searchsorted(run.user_calls, run.call, side="right")]
        case name:
            raise TypeError(name)
    return np.where(run.reasoning, end, never)


def count_run(run: Columns, policy: Any, rule: Any) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """P, R, G, N and Q of every call."""
    b, end, born = rule.block, hidden_from(run, policy), run.call + run.generated
    prompt, reused, generated, longest = (np.zeros(run.calls, dtype=np.int64) for _ in range(4))
    stored = np.zeros((run.calls, run.tokens.size), dtype=bool)  # what each earlier call's prompt shows
    left = np.zeros_like(stored)  # the same with what the call generated
    length = np.zeros(run.calls, dtype=np.int64)  # tokens of what a call left behind
    exists = run.tokens > 0
    for t in range(run.calls):
        shown = (born <= t) & (end > t)
        own = run.generated & (run.call == t)
        size = run.tokens[shown].sum()
        emitted = run.tokens[own].sum()
        made = emitted if rule.last_token == "counted" else max(emitted - 1, 0)
        prompt[t], generated[t] = size, made
        stored[t], left[t], length[t] = shown, shown | own, size + made
        if t and rule.reuse != "none":
            if rule.full_hit == "exact":
                cap = size // b * b
            elif rule.full_hit == "minus_token":
                cap = max(size - 1, 0) // b * b
            else:
                cap = max(size // b * b - b, 0)
            if rule.reuse == "prompt":
                reused[t] = min(common_prefix(shown, stored[t - 1], run.tokens, exists) // b * b, cap)
            else:
                shared = min(common_prefix(shown, left[t - 1], run.tokens, exists), length[t - 1])
                longest[t] = reused[t] = min(shared // b * b, cap)
            if rule.reuse == "checkpoint":
                same = common_prefixes(shown, stored[:t], run.tokens, exists)
                ends = np.maximum(prompt[:t] - 1, 0) // b * b
                points = np.concatenate([ends, longest[:t]])
                usable = (points <= np.concatenate([same, same])) & (points <= longest[t])
                reused[t] = points[usable].max(initial=0)
    processed = prompt - reused + generated
    pairs = (prompt * (prompt + 1) - reused * (reused + 1)) // 2
    pairs += prompt * generated + generated * (generated + 1) // 2
    return prompt, reused, generated, processed, pairs


def common_prefix(shown: Bools, other: Bools, tokens: Ints, exists: Bools) -> int:
    """Shown tokens before the first segment on which two prompts differ."""
    differs = (shown != other) & exists
    first = int(differs.argmax()) if differs.any() else shown.size
    return int(tokens[:first][shown[:first]].sum())


def common_prefixes(shown: Bools, others: Bools, tokens: Ints, exists: Bools) -> Ints:
    """The same against many prompts at once."""
    differs = (others != shown) & exists
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), shown.size)
    before = np.concatenate([[0], np.cumsum(np.where(shown, tokens, 0))])
    prefixes: Ints = before[first]
    return prefixes


def count(runs: Sequence[Columns], policy: Any, rule: Any) -> Ints:
    """int64 [5, runs, calls]: P, R, G, N, Q, zero behind a run's last call."""
    out = np.zeros((5, len(runs), max(run.calls for run in runs)), dtype=np.int64)
    for i, run in enumerate(runs):
        out[:, i, : run.calls] = count_run(run, policy, rule)
    return out
