"""The closed forms against two alternatives served token by token, and the signs of what they decide."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costmodel_jax.exchange import (
    edit_break_even,
    edit_delta,
    keep_delta,
    retention_horizon,
    summary_request_cost,
)
from costmodel_jax.pricing import Prices

QWEN36 = Prices(linear=48_701_112_320, pair=393_216)
SMALL = Prices(linear=10, pair=1)


def serve(calls, *, reuse_generation, cached=()):
    """Positions and pairs of a list of (prompt, generated) token tuples, one token at a time."""
    stored = list(cached)
    processed = pairs = 0
    for prompt, generated in calls:
        reused = 0
        for sequence in stored:
            shared = 0
            while shared < min(len(sequence), len(prompt)) and sequence[shared] == prompt[shared]:
                shared += 1
            reused = max(reused, shared)
        for position in range(reused, len(prompt) + len(generated)):
            processed += 1
            pairs += position + 1
        stored.append(prompt + generated if reuse_generation else prompt)
    return processed, pairs


def tokens(name, length):
    return tuple(f"{name}{i}" for i in range(length))


def continuation(start, later):
    """Calls that go on from the shown history ``start``: (new input, new output) lengths."""
    calls, history = [], start
    for index, (new, out) in enumerate(later):
        prompt = history + tokens(f"in{index}.", new)
        history = prompt + tokens(f"out{index}.", out)
        calls.append((prompt, tokens(f"out{index}.", out)))
    return calls


LENGTH = st.integers(0, 12)
LATER = st.lists(st.tuples(st.integers(1, 6), LENGTH), min_size=1, max_size=4)


@given(H=LENGTH, r=st.integers(1, 12), a=LENGTH, later=LATER, rho=st.sampled_from([0, 1]))
def test_keep_delta_by_brute_force(H, r, a, later, rho):
    first = (tokens("h", H), tokens("r", r) + tokens("a", a))
    kept = continuation(sum(first, ()), later)
    dropped = continuation(first[0] + tokens("a", a), later)
    start = serve([first], reuse_generation=bool(rho))
    n_keep, q_keep = serve([first, *kept], reuse_generation=bool(rho))
    n_drop, q_drop = serve([first, *dropped], reuse_generation=bool(rho))
    c, beta = 7, 3
    served = c * (n_keep - n_drop) + beta * (q_keep - q_drop)
    after_the_answer = n_drop - start[0] - a  # the drop alternative rebuilds the answer's a positions once
    prices = Prices(linear=c, pair=beta)
    assert keep_delta(prices, H=H, r=r, a=a, L=after_the_answer, rho=rho) == served


@given(
    H=LENGTH, b=st.integers(1, 12), s=LENGTH, tail=LENGTH, instruction=st.integers(1, 4), later=LATER,
    aligned=st.booleans(), generation=st.booleans(),
)  # fmt: skip
def test_edit_delta_by_brute_force(H, b, s, tail, instruction, later, aligned, generation):
    old = tokens("h", H) + tokens("b", b) + tokens("t", tail)
    new = tokens("h", H) + tokens("s", s) + tokens("t", tail)
    history = old if aligned else tokens("other", len(old))
    request = (history + tokens("summarise", instruction), tokens("s", s))
    n_edit, q_edit = serve([request, *continuation(new, later)], reuse_generation=generation, cached=[old])
    n_keep, q_keep = serve(continuation(old, later), reuse_generation=generation, cached=[old])
    c, beta = 7, 3
    prices = Prices(linear=c, pair=beta)
    k_gen = summary_request_cost(prices, len(old), instruction, s, aligned)
    assert edit_delta(prices, H=H, b=b, s=s, tail=tail, L=n_keep, k_gen=k_gen) == c * (n_edit - n_keep) + beta * (
        q_edit - q_keep
    )


@given(H=LENGTH, r=st.integers(1, 12), a=LENGTH)
def test_the_sign_of_keep_delta_flips_at_the_horizon(H, r, a):
    horizon = retention_horizon(SMALL, H=H, r=r, a=a)
    L = np.arange(int(horizon) + 3)
    delta = keep_delta(SMALL, H=H, r=r, a=a, L=L, rho=1)
    np.testing.assert_array_equal(np.sign(delta), np.sign(L - horizon))


def test_the_sign_flips_at_the_golden_horizons():
    for a, last in ((7, 503), (4_000, 291_707)):
        block = {"H": 20_000, "r": 2_000, "a": a, "rho": 1}
        assert keep_delta(QWEN36, **block, L=last) < 0 < keep_delta(QWEN36, **block, L=last + 1)


@given(H=LENGTH, b=LENGTH, s=LENGTH, tail=LENGTH, k_gen=st.integers(0, 500))
def test_an_edit_pays_only_beyond_its_break_even(H, b, s, tail, k_gen):
    edit = {"H": H, "b": b, "s": s, "tail": tail, "k_gen": k_gen}
    pays_after = edit_break_even(SMALL, **edit)
    if b <= s:
        assert pays_after == np.inf
        assert min(edit_delta(SMALL, **edit, L=L) for L in (0, 10, 10_000)) >= 0
    else:
        for L in (pays_after - 0.5, pays_after + 0.5):
            if L >= 0:
                assert np.sign(edit_delta(SMALL, **edit, L=L)) == np.sign(pays_after - L)


def test_keeping_never_gains_when_only_prompts_are_reused():
    L = np.arange(50.0)
    assert (keep_delta(SMALL, H=3, r=2, a=40, L=L, rho=0) > 0).all()
