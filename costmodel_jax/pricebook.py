"""Money: a second, optional account on the same counts, from a dated price file that the user supplies.

Nothing here knows a price. An unknown model, an unknown bucket, or a bucket with tokens but no price is an error, never
zero. Plain bills are exact decimals, and the lines of a bill add up to its total.

The file is TOML; prices are per million tokens::

    dated = 2026-01-31
    currency = "USD"

    [models."some-model"]
    input = 3
    cache_read = 0.30
    cache_write_5m = 3.75
    cache_write_1h = 6
    output = 15
    tier = {above = 200000, mode = "whole", boundary = "exclusive", input = 6, cache_read = 0.60, output = 22.5}
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from jaxtyping import Float64, Int64

from costmodel_jax.errors import CostModelError, InputError
from costmodel_jax.precision import has_tracer
from costmodel_jax.pricing import CountsLike
from costmodel_jax.tokens import BUCKETS, PROMPT_ORDER, Tokens

__all__ = ["Bill", "BillLine", "ModelPrices", "PriceBook", "RunBills", "Tier"]

Rate = Literal["base", "tier"]


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other prices for long prompts. It states a price for every bucket it is asked about; none falls back to the base.

    Args:
      above: prompt tokens (fresh, read and written together) of one call at the line.
      mode: "whole" prices a call past the line entirely at the tier; "excess" only the prompt tokens beyond the line,
        in the order they stand in the prompt (read, written, fresh), and the output of such a call.
      boundary: whether a prompt of exactly ``above`` tokens is past the line ("inclusive") or not ("exclusive").
    """

    above: int
    mode: Literal["excess", "whole"]
    boundary: Literal["inclusive", "exclusive"]
    input: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write_5m: Decimal | None = None
    cache_write_1h: Decimal | None = None
    output: Decimal | None = None


class ModelPrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of one model per million tokens, one per bucket; a bucket without a price must stay empty."""

    input: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write_5m: Decimal | None = None
    cache_write_1h: Decimal | None = None
    output: Decimal | None = None
    tier: Tier | None = None


@dataclass(frozen=True, kw_only=True)
class BillLine:
    """Tokens of one bucket of one call at one price.

    Args:
      call: index of the call, from 0.
      bucket: one of `BUCKETS`.
      rate: "base" or "tier".
      tokens: how many.
      per_million: price per million tokens.
    """

    call: int
    bucket: str
    rate: Rate
    tokens: int
    per_million: Decimal

    @property
    def amount(self) -> Decimal:
        """tokens x price."""
        return (self.tokens * self.per_million).scaleb(-6)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """An itemised bill; only buckets that hold tokens have lines."""

    model: str
    currency: str
    dated: datetime.date
    lines: tuple[BillLine, ...]
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> Decimal:
        """Sum of the lines, exact."""
        return sum((line.amount for line in self.lines), Decimal(0))

    def by_bucket(self) -> dict[str, Decimal]:
        """Amount per bucket; adds up to `total`."""
        amounts = dict.fromkeys(BUCKETS, Decimal(0))
        for line in self.lines:
            amounts[line.bucket] += line.amount
        return amounts


@dataclass(frozen=True, kw_only=True)
class RunBills:
    """Modelled money of many runs: float64 [runs] per (bucket, rate); NaN for runs that are not ok."""

    model: str
    currency: str
    dated: datetime.date
    items: Mapping[tuple[str, Rate], Float64[np.ndarray, "*runs"]]

    @property
    def total(self) -> Float64[np.ndarray, "*runs"]:
        """Sum of the items."""
        return np.asarray(np.sum(np.stack(list(self.items.values())), axis=0))


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """Prices as of a date.

    Args:
      dated: the day the prices were read off.
      currency: what they are in.
      models: prices by model name.
      path: the file, for messages.
    """

    dated: datetime.date
    currency: str
    models: Mapping[str, ModelPrices]
    path: Path | None = None

    @staticmethod
    def load(path: str | PathLike[str]) -> PriceBook:
        """Read a price file (format at the top of this module).

        Raises:
          InputError: unreadable, not TOML, not dated, an unknown key, or a price that is not a non-negative number.
        """
        path = Path(path)
        try:
            book = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror}); give a TOML price file", path=path) from error
        except ValueError as error:
            raise InputError(f"is not TOML: {error}", path=path) from error
        unknown = sorted(set(book) - {"dated", "currency", "models"})
        if unknown:
            raise InputError(f"unknown key {unknown[0]!r}; known: dated, currency, models", path=path)
        dated, currency, models = book.get("dated"), book.get("currency"), book.get("models")
        if not isinstance(dated, datetime.date) or isinstance(dated, datetime.datetime):
            raise InputError("dated must be the day the prices were read off, e.g. dated = 2026-01-31", path=path)
        if not isinstance(currency, str) or not currency:
            raise InputError('currency must be there, e.g. currency = "USD"', path=path)
        if not isinstance(models, dict) or not models:
            raise InputError('needs at least one table [models."NAME"] with prices per million tokens', path=path)
        prices = {name: _model_prices(name, table, path) for name, table in models.items()}
        return PriceBook(dated=dated, currency=currency, models=prices, path=path)

    def bill(self, calls: Iterable[Tokens | Mapping[str, int]], model: str) -> Bill:
        """The bill of calls whose usage was measured.

        Args:
          calls: one `Tokens`, or one mapping from bucket to tokens, per call. Buckets exclude each other; usage that
            counts cached tokens inside the input goes through `Tokens.inclusive` first.
          model: a name in the price file.

        Raises:
          CostModelError: unknown model or bucket, a negative count, or tokens in a bucket without a price.
        """
        prices = self._prices(model)
        usage = [given if isinstance(given, Tokens) else Tokens.from_buckets(given) for given in calls]
        counts = {bucket: np.asarray([getattr(one, bucket) for one in usage], np.int64) for bucket in BUCKETS}
        split = _by_rate(counts, prices.tier)
        lines = []
        for call in range(len(usage)):
            for (bucket, rate), count in split.items():
                if tokens := int(count[call]):
                    price = self._price(model, prices, bucket, rate)
                    lines.append(BillLine(call=call, bucket=bucket, rate=rate, tokens=tokens, per_million=price))
        notes = [f"call {call}: {one.note}" for call, one in enumerate(usage) if one.note]
        return Bill(model=model, currency=self.currency, dated=self.dated, lines=tuple(lines), notes=tuple(notes))

    def price_counts(self, counts: CountsLike, model: str, *, writes: Literal["none", "5m", "1h"] = "none") -> RunBills:
        """Money for modelled counts: read = R, fresh = P - R, output = G.

        Args:
          counts: int64 [runs, calls] host arrays. Vendors bill every sampled token: count with last_token="counted".
          model: a name in the price file.
          writes: how fresh prompt tokens are billed: at the input price, or as cache writes of either lifetime.

        Raises:
          CostModelError: traced counts, unknown model, or tokens in a bucket without a price.
        """
        prices = self._prices(model)
        if has_tracer((counts.prompt, counts.reused, counts.generated)):
            raise CostModelError("price_counts works on concrete counts: call it outside jit and vmap")
        ok = np.asarray(counts.ok)
        prompt, reused, generated = (
            np.where(ok[..., None], np.asarray(count, np.int64), 0)
            for count in (counts.prompt, counts.reused, counts.generated)
        )
        fresh = "input" if writes == "none" else f"cache_write_{writes}"
        buckets = {bucket: np.zeros_like(prompt) for bucket in BUCKETS}
        buckets |= {"cache_read": reused, fresh: prompt - reused, "output": generated}
        items = {}
        for (bucket, rate), count in _by_rate(buckets, prices.tier).items():
            tokens = count.sum(axis=-1)
            per_million = float(self._price(model, prices, bucket, rate)) if tokens.any() else 0.0
            items[bucket, rate] = np.where(ok, tokens * per_million / 1e6, np.nan)
        return RunBills(model=model, currency=self.currency, dated=self.dated, items=items)

    def _prices(self, model: str) -> ModelPrices:
        if model not in self.models:
            raise InputError(
                f"no prices for model {model!r}; the file has {', '.join(sorted(self.models))}. Add [models.{model!r}]",
                path=self.path,
            )
        return self.models[model]

    def _price(self, model: str, prices: ModelPrices, bucket: str, rate: Rate) -> Decimal:
        price: Decimal | None = getattr(prices if rate == "base" else prices.tier, bucket)
        if price is None:
            where = f"models.{model!r}" + (".tier" if rate == "tier" else "")
            raise InputError(f"{where} has no price for {bucket}, but there are such tokens; add it", path=self.path)
        return price


def _model_prices(name: str, table: object, path: Path) -> ModelPrices:
    try:
        prices = msgspec.convert(table, ModelPrices)
    except msgspec.ValidationError as error:
        raise InputError(
            f"models.{name!r}: {error}; known: {', '.join(BUCKETS)}, tier = {{above, mode, boundary, prices}}",
            path=path,
        ) from error
    for rates in (prices, prices.tier) if prices.tier is not None else (prices,):
        for bucket in BUCKETS:
            price = getattr(rates, bucket)
            if price is not None and not (price.is_finite() and price >= 0):
                raise InputError(f"models.{name!r}.{bucket} = {price}: a price is finite and not negative", path=path)
    if prices.tier is not None and prices.tier.above < 1:
        raise InputError(f"models.{name!r}.tier.above = {prices.tier.above}: give a positive prompt length", path=path)
    return prices


def _by_rate(
    counts: Mapping[str, Int64[np.ndarray, "*shape"]], tier: Tier | None
) -> dict[tuple[str, Rate], Int64[np.ndarray, "*shape"]]:
    """Split the tokens of each bucket into those at base prices and those at the tier's."""
    if tier is None:
        return {(bucket, "base"): count for bucket, count in counts.items()}
    prompt: Any = sum(counts[bucket] for bucket in PROMPT_ORDER)
    past = prompt >= tier.above if tier.boundary == "inclusive" else prompt > tier.above
    at_tier = {bucket: np.where(past, count, 0) for bucket, count in counts.items()}
    if tier.mode == "excess":
        stop: Any = 0
        for bucket in PROMPT_ORDER:
            start, stop = stop, stop + counts[bucket]
            at_tier[bucket] = np.clip(stop - np.maximum(start, tier.above), 0, counts[bucket])
    split: dict[tuple[str, Rate], Any] = {}
    for bucket, count in counts.items():
        split[bucket, "base"] = count - at_tier[bucket]
        split[bucket, "tier"] = at_tier[bucket]
    return split
