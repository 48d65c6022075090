"""Closed forms: what a position kept costs against what a position rebuilt costs.

Notation: c = ``prices.linear`` FLOPs per processed position and beta = ``prices.pair`` FLOPs per query-key pair, so
that processing n positions after a reused prefix of H costs ``A(H, n) = c n + beta [H n + n (n + 1) / 2]``. Source:
"Think or Remember: The Exchange Rate of Agentic Inference" (arXiv 2611.10982); edits, summary requests and payback go
beyond the paper. The forms hold for reuse to the exact token (block 1); with larger blocks price the run by counting.
Of the price extensions, ``state`` is added to c (but w multiplies ``linear`` alone) and ``head`` to the price of a
generated position; windows and ``pair_generated`` have no closed form here and are refused.

Every function takes Python numbers (and returns a ``float``), NumPy or concrete JAX arrays (and returns a float64
NumPy array of the broadcast shape) or traced JAX values (and returns a float64 JAX value, also inside a caller's
32-bit ``jit``; prices that such a ``jit`` takes as arguments arrive rounded to 32 bits, so close over them where 1e-7
matters). Tokens may be fractional, so that means and gradients make sense. Concrete values are checked: a token count
or price that is negative or not finite, w < 1 or rho outside [0, 1] raises ``CostModelError`` with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Num

from costmodel_jax.errors import CostModelError
from costmodel_jax.precision import has_tracer
from costmodel_jax.pricing import Prices

__all__ = [
    "Payback",
    "attention_share",
    "calls_to_payback",
    "edit_break_even",
    "edit_delta",
    "exchange_rate",
    "keep_delta",
    "rebuild_cost",
    "regeneration_rate",
    "retention_horizon",
    "summary_request_cost",
]

Value: TypeAlias = int | float | np.generic | Num[np.ndarray, "..."] | Num[jax.Array, "..."]
Result: TypeAlias = float | Num[np.ndarray, "..."] | Num[jax.Array, "..."]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Payback:
    """When an edit has paid for itself, in later positions and in remaining calls.

    Calls are not rounded: round up for whole calls. All fields are inf where the edit never pays.
    """

    positions: Result  # break-even number of later processed positions
    fewest: Result  # calls, at the high number of positions per call
    expected: Result  # calls, at the middle number of positions per call
    most: Result  # calls, at the low number of positions per call


def exchange_rate(prices: Prices) -> Result:
    """P* = c / beta, in tokens: the context length at which half of a position's FLOPs are attention.

    Keeping one position visible for P* later positions costs as much as rebuilding it at an empty prefix. inf where
    attention is free (beta = 0).
    """
    return _evaluate(lambda p: _positions(p.c, p.beta), prices)


def regeneration_rate(prices: Prices, w: Value, rho: Value) -> Result:
    """P*_regen = (w c - (1 - rho) c) / beta = (w + rho - 1) P*, in tokens: the rate against generating it again.

    Args:
      prices: c and beta.
      w: price of a generated position relative to a prefilled one, >= 1.
      rho: share of generated positions whose state is reused, in [0, 1]. Linear in rho for any share, because only the
        linear work of a position enters.

    Returns:
      inf where beta = 0 and generating again costs more than remembering; 0 where the two cost the same.
    """
    return _evaluate(lambda p, w, rho: _positions(rho * p.c + p.generated(w), p.beta), prices, w=w, rho=rho)


def rebuild_cost(prices: Prices, H: Value, n: Value) -> Result:
    """A(H, n) = c n + beta [H n + n (n + 1) / 2], in FLOPs: processing n positions after a reused prefix of H."""
    return _evaluate(_rebuild, prices, H=H, n=n)


def keep_delta(prices: Prices, H: Value, r: Value, a: Value, L: Value, rho: Value) -> Result:
    """dM = C(keep) - C(drop) of one reasoning block, in FLOPs; negative where keeping it is cheaper.

    A call with prompt H generated r reasoning tokens and then a answer tokens. Dropping the block moves the answer, so
    the next call rebuilds it; keeping the block makes every later position attend r more keys. With generation reused
    (rho = 1): ``beta r L - A(H, a)``. With prompts reused only (rho = 0) both alternatives rebuild the answer, and the
    rebuilt answer attends the kept block too: ``beta r (L + a) + A(H, r)``, which is never negative.

    Args:
      prices: c and beta.
      H: reused prefix before the block, tokens.
      r: reasoning tokens.
      a: answer tokens behind the block.
      L: positions processed after the answer, in all later calls: new input, generation and, under rho = 0, later
        answers read again. It means the same for both values of rho: the a rebuilt positions of the answer itself are
        never part of L, this function adds them where rho = 0.
      rho: 1 where the server reuses generated states, 0 where it reuses prompts only.

    Raises:
      CostModelError: also for rho strictly between 0 and 1, which has two meanings with two answers. Where a fraction
        of the requests finds the generation, weigh the results for 1 and for 0; where a fraction of each generation is
        found, the result is not linear in it and the runs have to be counted. A traced rho in between gives NaN.
    """
    if not has_tracer(rho) and np.any((np.asarray(rho) > 0) & (np.asarray(rho) < 1)):
        raise CostModelError(
            f"rho = {_shown(rho)} must be 0 (prompts reused) or 1 (generation reused): for a share of requests mix the "
            "two results by that share, for a share of each generation count the runs"
        )

    def formula(p: _Paid, H: Any, r: Any, a: Any, L: Any, rho: Any) -> Any:
        reused = p.beta * r * L - _rebuild(p, H, a)
        prompt_only = p.beta * r * (L + a) + _rebuild(p, H, r)
        where = _where(rho)
        return where(rho == 1, reused, where(rho == 0, prompt_only, np.nan))

    return _evaluate(formula, prices, H=H, r=r, a=a, L=L, rho=rho)


def retention_horizon(prices: Prices, H: Value, r: Value, a: Value) -> Result:
    """L* = A(H, a) / (beta r) = (a / r) (P* + H + (a + 1) / 2), in later positions, with generation reused.

    Keeping the block of ``keep_delta`` is cheaper for every L < L* and dearer beyond. inf where attention is free
    (beta = 0) and there is an answer to rebuild: keeping never costs anything. 0 where there is nothing to rebuild.

    Raises:
      CostModelError: also for r = 0, where the alternatives are one.
    """
    if not has_tracer(r) and np.any(np.asarray(r) == 0):
        raise CostModelError("r = 0 must be > 0: without reasoning tokens there is nothing to keep or to drop")
    return _evaluate(lambda p, H, r, a: _positions(_rebuild(p, H, a), p.beta * r), prices, H=H, r=r, a=a)


def edit_delta(prices: Prices, H: Value, b: Value, s: Value, tail: Value, L: Value, k_gen: Value) -> Result:
    """dM = K_gen + A(H, s + tail) - beta (b - s) L of one edit, in FLOPs; negative where the edit is cheaper.

    Args:
      prices: c and beta.
      H: prefix before the edited range, tokens, reused before and after.
      b: tokens replaced.
      s: tokens that replace them.
      tail: tokens behind the range, kept and rebuilt; without the edit they would have been reused.
      L: positions processed in later calls, the rebuilt s + tail not among them.
      k_gen: FLOPs of producing the replacement, such as ``summary_request_cost``; 0 where tokens are only dropped.
    """
    return _evaluate(
        lambda p, H, b, s, tail, L, k_gen: k_gen + _rebuild(p, H, s + tail) - p.beta * (b - s) * L,
        prices, H=H, b=b, s=s, tail=tail, L=L, k_gen=k_gen,
    )  # fmt: skip


def edit_break_even(prices: Prices, H: Value, b: Value, s: Value, tail: Value, k_gen: Value) -> Result:
    """L = (K_gen + A(H, s + tail)) / (beta (b - s)), in later positions: the edit is cheaper for every larger L.

    inf where it never is: nothing gets shorter (b <= s) or attention is free (beta = 0). Arguments as ``edit_delta``.
    """
    return _evaluate(_break_even, prices, H=H, b=b, s=s, tail=tail, k_gen=k_gen)


def calls_to_payback(
    prices: Prices,
    H: Value,
    b: Value,
    s: Value,
    tail: Value,
    k_gen: Value,
    positions_per_call: Value | tuple[Value, Value, Value],
) -> Payback:
    """The break-even of an edit in remaining calls, with a band over how much each call will process.

    Assumes that no further edit comes before the payback and that later calls process as many positions as given.

    Args:
      prices, H, b, s, tail, k_gen: as ``edit_delta``.
      positions_per_call: positions a later call processes, P - R + G: one number, or (low, middle, high), such as the
        10th, 50th and 90th percentile of ``Counts.processed`` so far.

    Raises:
      CostModelError: also where the band is not positive and ascending.
    """
    band = positions_per_call if isinstance(positions_per_call, tuple) else (positions_per_call,) * 3
    if not has_tracer(band):
        low, middle, high = (np.asarray(value, np.float64) for value in band)
        if not np.all((low > 0) & (low <= middle) & (middle <= high)):
            shown = ", ".join(_shown(value) for value in band)
            raise CostModelError(f"positions_per_call = ({shown}) must be positive and ascending: low, middle, high")
    edit = {"H": H, "b": b, "s": s, "tail": tail, "k_gen": k_gen}

    def calls(per_call: Value) -> Result:
        return _evaluate(
            lambda p, positions_per_call, **edit: _break_even(p, **edit) / positions_per_call,
            prices, positions_per_call=per_call, **edit,
        )  # fmt: skip

    return Payback(
        positions=edit_break_even(prices, **edit), fewest=calls(band[2]), expected=calls(band[1]), most=calls(band[0])
    )


def summary_request_cost(
    prices: Prices,
    history: Value,
    instruction: Value,
    summary: Value,
    aligned: bool,
    reused: Value | None = None,
    w: Value = 1.0,
) -> Result:
    """K_gen = A(R, history + instruction + summary - R) + (w - 1) c summary, in FLOPs: the call that writes a summary.

    Args:
      prices: c and beta.
      history: tokens of the conversation the summary is asked of, as the request renders them.
      instruction: tokens that ask for it, behind the history.
      summary: tokens generated.
      aligned: True where the request begins with the very prefix the conversation left in the cache, so that R =
        history; False where another system prompt or missing tools break it at the first token, so that R = 0.
      reused: R itself, where the server reuses neither all nor nothing; at most history + instruction.
      w: price of a generated position relative to a prefilled one, >= 1.
    """
    if reused is None:
        reused = history if aligned else 0.0
    elif not has_tracer((history, instruction, reused)):
        beyond = np.asarray(reused, np.float64) > np.asarray(history, np.float64) + np.asarray(instruction, np.float64)
        if np.any(beyond):
            raise CostModelError(
                f"reused = {_shown(reused)} must not exceed the request's prompt, history + instruction: reuse is part "
                "of the prompt"
            )

    def formula(p: _Paid, history: Any, instruction: Any, summary: Any, reused: Any, w: Any) -> Any:
        fresh = history + instruction + summary - reused
        return _rebuild(p, reused, fresh) + p.generated(w) * summary

    return _evaluate(
        formula, prices, history=history, instruction=instruction, summary=summary, reused=reused, w=w
    )  # fmt: skip


def attention_share(prices: Prices, length: Value) -> Result:
    """beta length / (c + beta length): the attention share of the FLOPs of a position that attends ``length`` keys.

    One half at ``length = exchange_rate(prices)``; 0 where the position costs nothing at all.
    """

    def formula(p: _Paid, length: Any) -> Any:
        attention = p.beta * length
        whole = p.c + attention
        where = _where(whole)
        return where(whole > 0, attention / where(whole > 0, whole, 1.0), 0.0)

    return _evaluate(formula, prices, length=length)


# Formulas on float64 values of one namespace, NumPy or JAX.


class _Paid(NamedTuple):
    linear: Any
    beta: Any
    state: Any
    head: Any

    @property
    def c(self) -> Any:
        return self.linear + self.state

    def generated(self, w: Any) -> Any:
        """What a position costs more when it is generated."""
        return (w - 1.0) * self.linear + self.head


def _rebuild(p: _Paid, H: Any, n: Any) -> Any:
    return p.c * n + p.beta * (H * n + n * (n + 1.0) / 2.0)


def _break_even(p: _Paid, H: Any, b: Any, s: Any, tail: Any, k_gen: Any) -> Any:
    shorter, price = p.beta * (b - s), k_gen + _rebuild(p, H, s + tail)
    where = _where(price)
    return where(shorter > 0, price / where(shorter > 0, shorter, 1.0), np.inf)


def _positions(price: Any, per_position: Any) -> Any:
    """Positions until ``per_position`` has cost ``price``: inf if it costs nothing, 0 if there is nothing to pay."""
    where = _where(price)
    costs = per_position > 0
    # The inner where keeps the gradient finite where the outer one does not look.
    return where(costs, price / where(costs, per_position, 1.0), where(price > 0, np.inf, 0.0))


def _where(value: Any) -> Callable[..., Any]:
    return jnp.where if isinstance(value, jax.Array) else np.where


# Reading values and giving results.

_AT_LEAST = {"w": 1.0}
_AT_MOST = {"rho": 1.0}


def _evaluate(formula: Callable[..., Any], prices: Prices, **values: Value) -> Result:
    """``formula(paid, **values)`` in float64 and in one broadcast shape, in the caller's kind of number."""
    if prices.windows or prices.pair_generated is not None:
        raise CostModelError(
            "prices with windows or pair_generated have no closed form: count the alternatives and price them with "
            "cost, or use prices without these extensions"
        )
    named: dict[str, Any] = {f"prices.{name}": getattr(prices, name) for name in ("linear", "pair", "state", "head")}
    named |= values
    for name, value in named.items():
        _check(name, value)
    if not has_tracer(named):
        host: list[Any] = [np.asarray(value, np.float64) for value in named.values()]
        result = formula(_Paid(*host[:4]), **dict(zip(values, host[4:], strict=True)))
        scalar = all(np.isscalar(value) for value in named.values())
        return float(result) if scalar else np.asarray(result, np.float64)
    with jax.enable_x64(True):
        arrays: list[Any] = [jnp.asarray(value, jnp.float64) for value in named.values()]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        arrays = [jnp.broadcast_to(array, shape) for array in arrays]
        traced: Result = formula(_Paid(*arrays[:4]), **dict(zip(values, arrays[4:], strict=True)))
        return traced


def _check(name: str, value: Any) -> None:
    if has_tracer(value):
        return
    array = np.asarray(value, np.float64)
    low, high = _AT_LEAST.get(name, 0.0), _AT_MOST.get(name, np.inf)
    wrong = ~(np.isfinite(array) & (array >= low) & (array <= high))
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f"[{', '.join(map(str, index))}]" if index else ""
    rule = f"in [{low:g}, {high:g}]" if np.isfinite(high) else f"finite and >= {low:g}"
    raise CostModelError(f"{name}{place} = {array[index]:g} must be {rule}")


def _shown(value: Any) -> str:
    """A value for a message: the number, or its kind where it is an array."""
    return f"{float(value):g}" if np.ndim(value) == 0 else f"array of shape {np.shape(value)}"
