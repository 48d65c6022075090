"""Which cache rule a log shows: unit of a hit, whether generated text was found again, and what hits fell short of.

Only measured P, R and G are used; the edits of the log say where a hit must end.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from costmodel_jax.caching import CacheRule, cache_rules
from costmodel_jax.calls import pack
from costmodel_jax.counting import count
from costmodel_jax.errors import CostModelError
from costmodel_jax.exchange import rebuild_cost
from costmodel_jax.policies import AsRecorded
from costmodel_jax.pricing import Prices
from costmodel_jax.schema import Call, Run

__all__ = ["InferredRule", "Match", "infer_cache_rule"]

# A common divisor of hits shows a block only when it is not small and not the divisor of a handful of numbers.
SMALLEST_UNIT = 8
FEWEST_HITS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """How well a named rule predicts the measured hits.

    Attributes:
      name: name of the rule in ``cache_rules``.
      exact: calls whose hit it predicts to the token.
      within_unit: calls whose hit it predicts to within one unit.
      calls: calls that were compared.
    """

    name: str
    exact: int
    within_unit: int
    calls: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferredRule:
    """What the measured hits of one run say about the server's cache.

    Attributes:
      run: id of the run.
      calls: calls with a measured prompt and a measured hit.
      hits: calls that reused anything.
      unit: the block that all hits are multiples of; 1 where there is none.
      generation_reused: whether a hit ever reached into generated text; ``None`` where no call could show it.
      reached_into_generation: calls whose hit did, of ``could_reach`` whose previous answer filled a unit.
      could_reach: calls that could have shown it.
      written_before: calls whose hit is exactly what the previous call read from and wrote to the cache (explicit
        cache breakpoints); ``None`` where the log has no write counters.
      short: calls whose hit fell short of the inferred rule, by ``shortfall`` tokens in total.
      beyond: calls whose hit exceeded it, by ``surplus`` tokens: the prefix was shared with another session.
      shortfall_flops: what processing the shortfall again cost; ``None`` without prices.
      rule: the inferred rule.
      matches: every named rule that is computable here, the best first.
    """

    run: str
    calls: int
    hits: int
    unit: int
    generation_reused: bool | None
    reached_into_generation: int
    could_reach: int
    written_before: int | None
    short: int
    shortfall: int
    beyond: int
    surplus: int
    shortfall_flops: float | None
    rule: CacheRule
    matches: tuple[Match, ...]

    def describe(self) -> str:
        """A few sentences for a person."""
        if not self.hits:
            return f"None of {self.calls} calls hit: no cache, or nothing that was kept long enough."
        unit = f"hits come in units of {self.unit} tokens" if self.unit > 1 else "no common unit shows"
        if self.generation_reused is None:
            generated = "no call could show whether generated text is found again"
        elif self.generation_reused:
            generated = (
                f"generated text is found again ({self.reached_into_generation} of {self.could_reach} calls that "
                "could show it)"
            )
        else:
            generated = f"generated text is never found again (0 of {self.could_reach} calls that could show it)"
        price = "" if self.shortfall_flops is None else f", {self.shortfall_flops / 1e12:,.1f} TFLOP"
        lines = [
            f"{self.hits} of {self.calls} calls hit; {unit}; {generated}.",
            f"Short of that rule: {self.short} calls, {self.shortfall:,} tokens in all{price}.",
        ]
        if self.beyond:
            lines.append(f"Beyond it, by a prefix shared elsewhere: {self.beyond} calls, {self.surplus:,} tokens.")
        if self.written_before:
            lines.append(f"Exactly what the previous call had read and written: {self.written_before} calls.")
        best = self.matches[0]
        if best.exact:
            lines.append(f"Closest named rule: {best.name}, exact in {best.exact} of {best.calls} calls.")
        return " ".join(lines)


def infer_cache_rule(run: Run, prices: Prices | None = None) -> InferredRule:
    """Infer the server's cache rule from measured usage.

    Args:
      run: a run whose calls carry ``usage`` with prompt and cached tokens.
      prices: adds the FLOPs of the shortfall.

    Raises:
      CostModelError: if no call has both a measured prompt and a measured hit.
    """
    measured = np.array([call.usage is not None and _complete(call) for call in run.calls])
    if not measured.any():
        raise CostModelError(f"run {run.id!r} has no measured cache hits (usage.prompt_tokens and usage.cached_tokens)")
    prompt = np.array([_field(call, "prompt_tokens") for call in run.calls])
    reused = np.array([_field(call, "cached_tokens") for call in run.calls])
    distinct = {int(hit) for hit in reused[measured & (reused > 0)]}
    unit = math.gcd(*distinct) if len(distinct) >= FEWEST_HITS else 1
    unit = unit if unit >= SMALLEST_UNIT else 1
    could, reached = _generation(run, measured, prompt, reused, unit)
    rule = CacheRule(
        reuse="none" if not distinct else "prompt" if could and not reached else "prompt+generation",
        block=unit,
        full_hit="minus_token",
        last_token="skipped",
    )
    expected = _predicted(run, rule)
    gap = np.where(measured, expected - reused, 0)
    short, beyond = gap > 0, gap < 0
    return InferredRule(
        run=run.id,
        calls=int(measured.sum()),
        hits=int((measured & (reused > 0)).sum()),
        unit=unit,
        generation_reused=bool(reached) if could and distinct else None,
        reached_into_generation=reached,
        could_reach=could,
        written_before=_written_before(run),
        short=int(short.sum()),
        shortfall=int(gap[short].sum()),
        beyond=int(beyond.sum()),
        surplus=int(-gap[beyond].sum()),
        shortfall_flops=None
        if prices is None
        else float(sum(float(rebuild_cost(prices, H=int(reused[t]), n=int(gap[t]))) for t in np.flatnonzero(short))),
        rule=rule,
        matches=_matches(run, measured, reused, unit),
    )


def _complete(call: Call) -> bool:
    usage = call.usage
    return usage is not None and usage.prompt_tokens is not None and usage.cached_tokens is not None


def _field(call: Call, name: str) -> int:
    return 0 if call.usage is None else getattr(call.usage, name) or 0


def _predicted(run: Run, rule: CacheRule) -> np.ndarray:
    """The hits that a rule predicts for the prompts the client really sent."""
    counts = count(pack([run]), AsRecorded(), rule)
    predicted: np.ndarray = np.asarray(counts.reused)[0, : len(run.calls)]
    return predicted


def _generation(run: Run, measured: np.ndarray, prompt: np.ndarray, reused: np.ndarray, unit: int) -> tuple[int, int]:
    """Calls that could reach into the text the previous call generated, and calls that did.

    Without edits, a call that appended could: its predecessor's prompt and answer reach a unit deeper than the prompt
    alone. A hit beyond that prompt proves it.
    """
    could = reached = 0
    for t in range(1, len(run.calls)):
        if not (measured[t] and measured[t - 1]) or run.calls[t].edits or run.calls[t].session is not None:
            continue
        left = prompt[t - 1] + max(_field(run.calls[t - 1], "output_tokens") - 1, 0)
        if min(left, prompt[t] - 1) // unit > prompt[t - 1] // unit:
            could += 1
            reached += int(reused[t] > prompt[t - 1])
    return could, reached


def _written_before(run: Run) -> int | None:
    """Calls that read exactly what the previous call had read and written."""
    pairs = list(zip(run.calls, run.calls[1:], strict=False))
    if not any(_field(call, "cache_write_5m") + _field(call, "cache_write_1h") for call in run.calls):
        return None
    return sum(
        _field(after, "cached_tokens") > 0
        and _field(after, "cached_tokens")
        == _field(before, "cached_tokens") + _field(before, "cache_write_5m") + _field(before, "cache_write_1h")
        for before, after in pairs
    )


def _matches(run: Run, measured: np.ndarray, reused: np.ndarray, unit: int) -> tuple[Match, ...]:
    timed = all(call.time is not None for call in run.calls)
    matches = []
    for name, rule in cache_rules.items():
        if rule.ttl is not None and not timed:
            continue
        gap = np.abs(_predicted(run, rule) - reused)[measured]
        matches.append(
            Match(
                name=name,
                exact=int((gap == 0).sum()),
                within_unit=int((gap <= max(unit, int(rule.block))).sum()),
                calls=int(measured.sum()),
            )
        )
    return tuple(sorted(matches, key=lambda match: (-match.exact, -match.within_unit)))
