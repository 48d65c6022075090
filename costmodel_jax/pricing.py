"""FLOPs of counted runs: C = c N + beta Q + (w - 1) c G, and extensions beyond the paper (all off by default).

Source: Think or Remember: The Exchange Rate of Agentic Inference (arXiv 2611.10982). Counting is independent of the
model, so a run is counted once and priced for every architecture and every w by products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float64, Int64

from costmodel_jax.errors import CostModelError
from costmodel_jax.precision import exact, has_tracer

__all__ = ["Capped", "CountsLike", "Measured", "Prices", "cost", "cost_per_call", "measure", "spent"]

Price: TypeAlias = Any
"""A float; an array or tracer under transformations, and anything where a tree utility rebuilds the dataclass."""

_NUMBER = (int, float, np.number)
Numbers: TypeAlias = Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Capped:
    """Pairs of layers in which a query meets at most ``window`` keys, its own position included.

    Args:
      window: keys per query (a sliding window, or the top k of sparse attention).
      pair: FLOPs per such pair.
      pair_generated: FLOPs per such pair of a generated position, where it differs.
    """

    window: Any
    pair: Price
    pair_generated: Price = None

    def __post_init__(self) -> None:
        if isinstance(self.window, _NUMBER) and self.window < 1:
            raise CostModelError(f"window = {self.window}: a query meets at least its own position; give 1 or more")
        _require_price("Capped", pair=self.pair, pair_generated=self.pair_generated)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Prices:
    """What one unit of each count costs, in FLOPs (or in any other unit).

    ``Prices(linear=1000.0, pair=1.0)`` is enough; `costmodel_jax.Architecture.prices` derives them from a config.

    Args:
      linear: c, per processed position.
      pair: beta, per query-key pair.
      windows: extension; layers whose pairs are capped per query, beside those that `pair` prices.
      state: extension; recurrent state work per processed position.
      head: extension; lm head per generated position.
      pair_generated: extension; replaces `pair` for the pairs of generated positions (absorbed latent attention).
      label: names the extensions that are on; empty for the paper's two prices.
    """

    linear: Price
    pair: Price
    windows: tuple[Capped, ...] = ()
    state: Price = 0.0
    head: Price = 0.0
    pair_generated: Price = None
    label: str = field(default="", metadata={"static": True})

    def __post_init__(self) -> None:
        _require_price(
            "Prices",
            linear=self.linear,
            pair=self.pair,
            state=self.state,
            head=self.head,
            pair_generated=self.pair_generated,
        )


def _require_price(owner: str, **prices: Price) -> None:
    """Refuse plain numbers that cannot be prices; leaves under a transformation pass."""
    for name, price in prices.items():
        if isinstance(price, _NUMBER) and not (math.isfinite(price) and price >= 0):
            raise CostModelError(f"{owner}.{name} = {price}: a price is finite and not negative")


@runtime_checkable
class CountsLike(Protocol):
    """What pricing reads of `costmodel_jax.Counts`; padded calls hold zeros."""

    @property
    def prompt(self) -> Int64[Array | np.ndarray, "*runs calls"]:
        """P: prompt lengths."""

    @property
    def reused(self) -> Int64[Array | np.ndarray, "*runs calls"]:
        """R: leading prompt positions taken from the cache."""

    @property
    def generated(self) -> Int64[Array | np.ndarray, "*runs calls"]:
        """G: positions processed by generation."""

    @property
    def processed(self) -> Int64[Array | np.ndarray, "*runs calls"]:
        """N per call: P - R + G."""

    @property
    def pairs(self) -> Int64[Array | np.ndarray, "*runs calls"]:
        """Q per call: query-key pairs of the processed positions."""

    @property
    def extra(self) -> Float64[Array | np.ndarray, "*runs calls"]:
        """FLOPs outside the actor."""

    @property
    def ok(self) -> Any:
        """Bool [*runs]: False where a run is infeasible or not computable."""


@exact
def cost(counts: CountsLike, prices: Prices, w: Any = 1.0) -> Float64[Array | np.ndarray, "*runs"]:
    """Cost of each run: C = c N + beta Q + (w - 1) c G, plus extensions and FLOPs outside the actor.

    The counts are summed over calls exactly, as int64, and only then multiplied in float64. ``w`` multiplies c G alone,
    as in the paper: pairs, windows, state and head cost the same whether prefilled or generated.

    Args:
      counts: int64 [runs, calls], or [calls] for a single run.
      prices: FLOPs per count.
      w: price of a generated position relative to a prefilled one, a scalar of at least 1; `jax.vmap` for many.

    Returns:
      float64 [runs], or a scalar for a single run; NaN where ``counts.ok`` is False.

    Raises:
      CostModelError: counts or prices narrowed to 32 bits by a surrounding jit or vmap, w below 1, or w not a scalar.

    Example:
      >>> counts = count(pack(runs), KeepAll(), cache_rules["vllm"])
      >>> cost(counts, architectures["Qwen3.6-27B"].prices(), w=2.0)
    """
    measured = jax.tree.map(lambda count: jnp.sum(count, axis=-1), measure(counts, prices))
    return jnp.where(jnp.asarray(counts.ok), spent(measured, prices, w), jnp.nan)


@exact
def cost_per_call(counts: CountsLike, prices: Prices, w: Any = 1.0) -> Float64[Array | np.ndarray, "*runs calls"]:
    """Cost of each call, as `cost`: float64 [runs, calls], zero for padded calls, NaN for runs that are not ok."""
    return jnp.where(jnp.asarray(counts.ok)[..., None], spent(measure(counts, prices), prices, w), jnp.nan)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Measured:
    """All that prices multiply, by call or summed over calls: sums of it are exact, and priced afterwards.

    Attributes:
      processed, generated, pairs: as of `costmodel_jax.Counts`, int64.
      decoded: pairs of generated positions among ``pairs``.
      capped: for each window, pairs of queries that meet at most so many keys, and those of generated positions.
      extra: FLOPs outside the actor, float64.
    """

    processed: Any
    generated: Any
    pairs: Any
    decoded: Any
    capped: tuple[tuple[Any, Any], ...]
    extra: Any


def measure(counts: CountsLike, prices: Prices) -> Measured:
    """Measure counts [*runs, calls] for the windows that some prices have; needs a 64-bit scope."""
    prompt, reused, generated = _count(counts, "prompt"), _count(counts, "reused"), _count(counts, "generated")
    capped = []
    for each in prices.windows:
        window = jnp.asarray(each.window).astype(jnp.int64)
        decoded = _capped(prompt, prompt + generated, window)
        capped.append((_capped(reused, prompt, window) + decoded, decoded))
    return Measured(
        processed=_count(counts, "processed"),
        generated=generated,
        pairs=_count(counts, "pairs"),
        decoded=_capped(prompt, prompt + generated, None),
        capped=tuple(capped),
        extra=_array(counts.extra),
    )


def spent(measured: Measured, prices: Prices, w: Any) -> Numbers:
    """The cost of what was measured, float64. JAX arrays need a 64-bit scope; of NumPy arrays it is one too."""
    linear = _price("linear", prices.linear)
    terms = [
        (linear, measured.processed),
        ((_weight(w) - 1.0) * linear, measured.generated),
        (_price("state", prices.state), measured.processed),
        (_price("head", prices.head), measured.generated),
    ]
    terms += _pair_terms("pair", prices.pair, prices.pair_generated, measured.pairs, measured.decoded)
    for each, (met, decoded) in zip(prices.windows, measured.capped, strict=True):
        terms += _pair_terms("windows", each.pair, each.pair_generated, met, decoded)
    total: Numbers = measured.extra
    for price, count in terms:
        total = total + price * count.astype(np.float64)
    return total


def _pair_terms(
    name: str, pair: Price, pair_generated: Price, pairs: Numbers, decoded: Numbers
) -> list[tuple[Array | np.float64, Numbers]]:
    """``pairs`` at one price, or split where the ``decoded`` ones among them have their own."""
    if pair_generated is None:
        return [(_price(f"{name}", pair), pairs)]
    return [(_price(name, pair), pairs - decoded), (_price(f"{name} (generated)", pair_generated), decoded)]


def _capped(start: Array, stop: Array, window: Array | None) -> Array:
    """Pairs of the queries at positions start + 1 .. stop: sum of min(i, window)."""
    return _pairs_upto(stop, window) - _pairs_upto(start, window)


def _pairs_upto(n: Array, window: Array | None) -> Array:
    """Sum of min(i, window) for i = 1 .. n, in closed form."""
    short = n if window is None else jnp.minimum(n, window)
    triangle = short * (short + 1) // 2
    return triangle if window is None else triangle + (n - short) * window


def _array(values: Any) -> Array:
    return jnp.asarray(values).astype(jnp.float64)


def _count(counts: CountsLike, name: str) -> Array:
    """A count as it is, or refused: what a 32-bit jit hands over may have wrapped already."""
    values = jnp.asarray(getattr(counts, name))
    if values.dtype != jnp.int64:
        raise CostModelError(
            f"counts.{name} is {values.dtype}, not int64, so it may have wrapped. Inside your own jit or vmap, either "
            "close over the counts instead of passing them as arguments, or call it under jax.enable_x64(True)"
        )
    return values


def _price(name: str, value: Price) -> Array | np.float64:
    """A price as a float64 scalar, or refused where a 32-bit transformation has rounded it."""
    if isinstance(value, _NUMBER):
        return np.float64(value)
    price = jnp.asarray(value)
    if price.ndim:
        raise CostModelError(f"prices.{name} has shape {price.shape}: one number per price; use jax.vmap over many")
    if has_tracer(price) and jnp.issubdtype(price.dtype, jnp.floating) and price.dtype != jnp.float64:
        raise CostModelError(
            f"prices.{name} is {price.dtype}, so it was rounded. Inside your own jit or vmap, either close over the "
            "prices instead of passing them as arguments, or call it under jax.enable_x64(True)"
        )
    return price.astype(jnp.float64)


def _weight(w: Any) -> Array | np.float64:
    weight = np.float64(w) if isinstance(w, _NUMBER) else jnp.asarray(w).astype(jnp.float64)
    if weight.ndim:
        raise CostModelError(f"w has shape {weight.shape}: give a scalar, or jax.vmap over many")
    if not has_tracer(weight) and not weight >= 1:
        raise CostModelError(f"w = {weight}: a generated position costs at least as much as a prefilled one (w >= 1)")
    return weight
