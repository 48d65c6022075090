"""Bills against the small inputs and right values that users of cost tools reported."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from costmodel_jax.errors import CostModelError, InputError
from costmodel_jax.pricebook import PriceBook
from costmodel_jax.tokens import BUCKETS, Tokens

BOOK = """
dated = 2026-01-31
currency = "USD"

[models.gpt]
input = 1.25
cache_read = 0.625
output = 10

[models.gpt-tiered]
input = 1.25
cache_read = 0.625
output = 10
tier = {above = 200000, mode = "whole", boundary = "exclusive", input = 2.5, cache_read = 1.25, output = 15}

[models.claude]
input = 5
cache_read = 0.5
cache_write_5m = 6.25
cache_write_1h = 10
output = 25

[models.whole]
input = 3
output = 15
tier = {above = 200000, mode = "whole", boundary = "exclusive", input = 6, output = 22.5}

[models.whole-inclusive]
input = 3
output = 15
tier = {above = 200000, mode = "whole", boundary = "inclusive", input = 6, output = 22.5}

[models.excess]
input = 3
cache_read = 0.3
output = 15
tier = {above = 200000, mode = "excess", boundary = "exclusive", input = 6, cache_read = 0.6, output = 22.5}
"""


@pytest.fixture
def book(tmp_path: Path) -> PriceBook:
    return load(tmp_path, BOOK)


def load(folder: Path, text: str) -> PriceBook:
    path = folder / "prices.toml"
    path.write_text(text)
    return PriceBook.load(path)


# Buckets: a part of the prompt is never added to it again


def test_cached_is_a_subset_of_the_prompt() -> None:
    assert Tokens.inclusive(prompt=10, cached=5, output=20).total == 30
    tokens = Tokens.inclusive(prompt=1_413, cached=384, output=2)
    assert (tokens.input, tokens.cache_read, tokens.total) == (1_029, 384, 1_415)


def test_writes_are_a_part_of_the_prompt_and_reasoning_of_the_output() -> None:
    tokens = Tokens.inclusive(prompt=100, cached=40, written=30, written_5m=30, output=10, reasoning=5)
    assert (tokens.input, tokens.cache_read, tokens.cache_write_5m, tokens.output) == (30, 40, 30, 10)
    assert tokens.total == 110 and tokens.note == ""


def test_exclusive_parts_add_up() -> None:
    assert Tokens.exclusive(fresh=5, cached=128_955, written=1_253).prompt == 130_213


def test_hit_rate_is_read_over_the_whole_prompt() -> None:
    assert Tokens.exclusive(fresh=100, cached=700, written=200).hit_rate == 0.7
    assert Tokens.exclusive(cached=700).hit_rate == 1.0
    assert Tokens(output=3).hit_rate is None


def test_lifetimes_are_used_only_where_they_add_up() -> None:
    split = Tokens.exclusive(written=100, written_5m=60, written_1h=40)
    assert (split.cache_write_5m, split.cache_write_1h, split.note) == (60, 40, "")
    assert Tokens.exclusive(written_1h=40).cache_write_1h == 40
    for half in (
        Tokens.exclusive(written=100, written_1h=40),
        Tokens.exclusive(written=100, written_5m=0, written_1h=0),
    ):
        assert (half.cache_write_5m, half.cache_write_1h) == (100, 0)
        assert "do not add up to 100" in half.note
    assert "unknown, taken as 5m" in Tokens.exclusive(written=100).note


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tokens.inclusive(prompt=5, cached=7), "cached 7 .* exceed the prompt of 5.*Tokens.exclusive"),
        (lambda: Tokens.inclusive(prompt=5, cached=3, written=3), "written 3 tokens exceed"),
        (lambda: Tokens.inclusive(prompt=5, output=3, reasoning=4), "reasoning 4 exceeds output 3"),
        (lambda: Tokens(input=-1), "input = -1"),
        (lambda: Tokens.from_buckets({"cached_input": 5}), "unknown token bucket 'cached_input'; known: cache_read"),
        (lambda: Tokens.exclusive(written=10, written_5m=15, written_1h=-5), "cache_write_1h = -5"),
    ],
)
def test_impossible_usage_is_refused(make: Any, message: str) -> None:
    with pytest.raises(CostModelError, match=message):
        make()


# Bills


def test_cached_is_charged_once(book: PriceBook) -> None:
    usage = Tokens.inclusive(prompt=262_960, cached=257_955, output=1_744)
    bill = book.bill([usage], "gpt")
    assert bill.total == Decimal("0.184918125")
    assert round(bill.total, 5) == Decimal("0.18492")
    assert bill.by_bucket() == {
        "input": Decimal("0.00625625"),
        "cache_read": Decimal("0.161221875"),
        "output": Decimal("0.01744"),
        "cache_write_5m": 0,
        "cache_write_1h": 0,
    }
    tiered = book.bill([usage], "gpt-tiered")  # the prompt is past 200K: twice the input prices, 15 for the output
    assert tiered.total == Decimal("0.0125125") + Decimal("0.32244375") + Decimal("0.02616") == Decimal("0.36111625")
    assert {line.rate for line in tiered.lines} == {"tier"}


def test_lifetimes_have_their_own_price(book: PriceBook) -> None:
    assert book.bill([Tokens(cache_write_5m=600_000, cache_write_1h=400_000)], "claude").total == Decimal("7.75")
    assert book.bill([{"cache_write_1h": 344_139}], "claude").total == Decimal("3.44139")


def test_tier_on_the_excess_or_on_the_whole(book: PriceBook) -> None:
    assert book.bill([{"input": 300_000}], "excess").total == Decimal("1.20")
    assert book.bill([{"input": 300_000}], "whole").total == Decimal("1.80")


@pytest.mark.parametrize(
    ("prompt", "exclusive", "inclusive"),
    [(199_999, "0.599997", "0.599997"), (200_000, "0.6", "1.2"), (200_001, "1.200006", "1.200006")],
)
def test_exactly_at_the_line(book: PriceBook, prompt: int, exclusive: str, inclusive: str) -> None:
    assert book.bill([{"input": prompt}], "whole").total == Decimal(exclusive)
    assert book.bill([{"input": prompt}], "whole-inclusive").total == Decimal(inclusive)


def test_excess_is_the_end_of_the_prompt(book: PriceBook) -> None:
    bill = book.bill([{"cache_read": 150_000, "input": 60_000, "output": 1_000}], "excess")
    assert [(line.bucket, line.rate, line.tokens) for line in bill.lines] == [
        ("cache_read", "base", 150_000),
        ("input", "base", 50_000),
        ("input", "tier", 10_000),
        ("output", "tier", 1_000),
    ]
    read = book.bill([{"cache_read": 250_000}], "excess")
    assert [(line.rate, line.tokens) for line in read.lines] == [("base", 200_000), ("tier", 50_000)]
    short = book.bill([{"input": 199_999, "output": 5_000}], "excess")
    assert {line.rate for line in short.lines} == {"base"}


def test_the_line_is_per_call(book: PriceBook) -> None:
    assert book.bill([{"input": 150_000}, {"input": 150_000}], "whole").total == Decimal("0.9")


def test_lines_add_up_and_carry_notes(book: PriceBook) -> None:
    calls = [
        Tokens.inclusive(prompt=1_000, cached=333, written=100, output=7),
        Tokens.exclusive(fresh=1, cached=2, written=7, written_5m=3, written_1h=4, output=5),
    ]
    bill = book.bill(calls, "claude")
    assert sum(line.amount for line in bill.lines) == bill.total == sum(bill.by_bucket().values())
    assert sum(line.tokens for line in bill.lines) == sum(tokens.total for tokens in calls)
    assert bill.notes == ("call 0: lifetime of 100 written tokens unknown, taken as 5m",)
    assert (bill.currency, bill.dated.isoformat(), bill.model) == ("USD", "2026-01-31", "claude")


def test_unknown_model_is_an_error(book: PriceBook) -> None:
    with pytest.raises(InputError, match=r"no prices for model 'other'.*claude"):
        book.bill([{"input": 1}], "other")


def test_unknown_or_unpriced_bucket_is_an_error(book: PriceBook) -> None:
    with pytest.raises(CostModelError, match="unknown token bucket 'input_cached'"):
        book.bill([{"input_cached": 5}], "gpt")
    with pytest.raises(InputError, match=r"prices\.toml: models\.'gpt' has no price for cache_write_5m"):
        book.bill([{"cache_write_5m": 5}], "gpt")
    with pytest.raises(InputError, match=r"models\.'whole'.*no price for cache_read"):
        book.bill([{"cache_read": 5}], "whole")
    assert book.bill([{"cache_write_5m": 0, "input": 4}], "gpt").total == Decimal("0.000005")


def test_tier_never_falls_back_to_the_base_price(tmp_path: Path) -> None:
    tier = 'tier = {above = 10, mode = "whole", boundary = "exclusive", input = 2}'
    book = load(tmp_path, f'dated = 2026-01-31\ncurrency = "USD"\n[models.m]\ninput = 1\noutput = 3\n{tier}\n')
    assert book.bill([{"input": 10, "output": 1}], "m").total == Decimal("0.000013")
    with pytest.raises(InputError, match=r"models\.'m'\.tier has no price for output"):
        book.bill([{"input": 11, "output": 1}], "m")


HEAD = 'dated = 2026-01-31\ncurrency = "USD"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dated = ", "is not TOML"),
        ('currency = "USD"\n[models.m]\ninput = 1', "dated must be the day"),
        ('dated = "yesterday"\ncurrency = "USD"\n[models.m]\ninput = 1', "dated must be the day"),
        ("dated = 2026-01-31\n[models.m]\ninput = 1", "currency must be there"),
        (HEAD, "at least one table"),
        (HEAD + "version = 3\n[models.m]\ninput = 1", "unknown key 'version'"),
        (HEAD + "[models.m]\ninputs = 1", r"models\.'m': .*unknown field `inputs`.*cache_read"),
        (HEAD + '[models.m]\ninput = "free"', r"models\.'m'"),
        (HEAD + "[models.m]\ninput = true", r"models\.'m'"),
        (HEAD + "[models.m]\ninput = -1", r"models\.'m'\.input = -1: a price is finite"),
        (HEAD + "[models.m]\ninput = nan", r"models\.'m'\.input = NaN"),
        (HEAD + "[models.m]\ntier = {above = 5, mode = 'whole', input = 1}", "missing required field `boundary`"),
        (HEAD + "[models.m]\ntier = {above = 5, mode = 'half', boundary = 'inclusive'}", "Invalid enum value 'half'"),
        (HEAD + "[models.m]\ntier = {above = 0, mode = 'whole', boundary = 'inclusive'}", "tier.above = 0"),
        (HEAD + "[models.m]\ntier = {above = 5, mode = 'whole', boundary = 'inclusive', output = -2}", "output = -2"),
    ],
)
def test_bad_price_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith(str(tmp_path / "prices.toml"))


def test_missing_price_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        PriceBook.load(tmp_path / "none.toml")


# Modelled counts


@dataclass(frozen=True)
class Counted:
    prompt: Any
    reused: Any
    generated: Any
    processed: Any
    pairs: Any
    extra: Any
    ok: Any


def counted(calls: list[list[tuple[int, int, int]]], ok: list[bool]) -> Counted:
    grid = np.asarray(calls, np.int64)
    prompt, reused, generated = grid[..., 0], grid[..., 1], grid[..., 2]
    zero = np.zeros_like(prompt)
    return Counted(
        prompt, reused, generated, prompt - reused + generated, zero, zero.astype(np.float64), np.asarray(ok)
    )


CALLS = [[(1_000, 0, 50), (1_200, 1_040, 80)], [(250_000, 100_000, 10), (0, 0, 0)]]


@pytest.mark.parametrize(("writes", "fresh"), [("none", "input"), ("5m", "cache_write_5m"), ("1h", "cache_write_1h")])
@pytest.mark.parametrize("model", ["claude", "excess"])
def test_modelled_counts_equal_bills(book: PriceBook, model: str, writes: Any, fresh: str) -> None:
    if model == "excess" and writes != "none":
        with pytest.raises(InputError, match=f"no price for {fresh}"):
            book.price_counts(counted(CALLS, [True, True]), model, writes=writes)
        return
    priced = book.price_counts(counted(CALLS, [True, True]), model, writes=writes)
    for run, calls in enumerate(CALLS):
        bill = book.bill([{"cache_read": R, fresh: P - R, "output": G} for P, R, G in calls], model)
        np.testing.assert_allclose(priced.total[run], float(bill.total), rtol=1e-12)
        for bucket in BUCKETS:
            amount = sum(items[run] for (name, _), items in priced.items.items() if name == bucket)
            np.testing.assert_allclose(amount, float(bill.by_bucket()[bucket]), rtol=1e-12, atol=1e-18)


def test_modelled_money_of_runs_that_are_not_ok(book: PriceBook) -> None:
    calls = [CALLS[0], [(-1, -1, -1)] * 2]  # a run that is not computable is -1 everywhere
    priced = book.price_counts(counted(calls, [True, False]), "gpt-tiered")
    assert np.isnan(priced.total).tolist() == [False, True]
    assert priced.total.dtype == np.float64


def test_modelled_money_needs_concrete_counts(book: PriceBook) -> None:
    def total(prompt: jax.Array) -> Any:
        counts = counted(CALLS, [True, True])
        return book.price_counts(Counted(**{**vars(counts), "prompt": prompt}), "claude").total

    with pytest.raises(CostModelError, match="concrete counts"):
        jax.jit(total)(np.ones((2, 2), np.int32))
