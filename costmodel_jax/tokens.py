"""Token buckets of one call as vendors bill them, and the two conventions in which usage is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel_jax.errors import CostModelError

__all__ = ["BUCKETS", "PROMPT_ORDER", "Tokens"]

PROMPT_ORDER = ("cache_read", "cache_write_1h", "cache_write_5m", "input")
"""Buckets of the prompt in the order they stand in it: the cached prefix, what is written behind it, the rest."""

BUCKETS = (*PROMPT_ORDER, "output")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens of one call in buckets that exclude each other.

    Args:
      input: fresh prompt tokens, neither read from nor written to the cache.
      cache_read, cache_write_5m, cache_write_1h: prompt tokens read from the cache, or written with either lifetime.
      output: generated tokens, reasoning included.
      note: what had to be assumed to fill the buckets.

    Raises:
      CostModelError: a count that is negative or not an integer.
    """

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        for bucket in BUCKETS:
            _require_count(bucket, getattr(self, bucket))

    @staticmethod
    def from_buckets(buckets: Mapping[str, int]) -> Tokens:
        """From a mapping with the bucket names; an unknown name is an error, for its tokens would cost nothing."""
        unknown = sorted(set(buckets) - set(BUCKETS))
        if unknown:
            raise CostModelError(f"unknown token bucket {unknown[0]!r}; known: {', '.join(BUCKETS)}")
        return Tokens(
            input=buckets.get("input", 0),
            cache_read=buckets.get("cache_read", 0),
            cache_write_5m=buckets.get("cache_write_5m", 0),
            cache_write_1h=buckets.get("cache_write_1h", 0),
            output=buckets.get("output", 0),
        )

    @staticmethod
    def inclusive(
        *,
        prompt: int,
        cached: int = 0,
        written: int | None = None,
        written_5m: int | None = None,
        written_1h: int | None = None,
        output: int = 0,
        reasoning: int = 0,
    ) -> Tokens:
        """Usage whose prompt includes cached and written tokens (OpenAI, Codex, OTel, agent-run/1).

        Args:
          prompt: all prompt tokens.
          cached, written: parts of ``prompt``.
          written_5m, written_1h: parts of ``written`` by lifetime; see `exclusive`.
          output: all generated tokens.
          reasoning: part of ``output``; checked, and billed with it.

        Raises:
          CostModelError: the parts exceed the whole.
        """
        _require_count("prompt", prompt)
        parts = Tokens.exclusive(
            cached=cached,
            written=written,
            written_5m=written_5m,
            written_1h=written_1h,
            output=output,
            reasoning=reasoning,
        )
        if parts.prompt > prompt:
            raise CostModelError(
                f"cached {parts.cache_read} + written {parts.prompt - parts.cache_read} tokens exceed the prompt of "
                f"{prompt}. Are they counted outside the input in this log? Then use Tokens.exclusive"
            )
        return Tokens(
            input=prompt - parts.prompt,
            cache_read=parts.cache_read,
            cache_write_5m=parts.cache_write_5m,
            cache_write_1h=parts.cache_write_1h,
            output=output,
            note=parts.note,
        )

    @staticmethod
    def exclusive(
        *,
        fresh: int = 0,
        cached: int = 0,
        written: int | None = None,
        written_5m: int | None = None,
        written_1h: int | None = None,
        output: int = 0,
        reasoning: int = 0,
    ) -> Tokens:
        """Usage whose input leaves out cached and written tokens (Anthropic, Claude Code, opencode, inspect_ai).

        Args:
          fresh: prompt tokens outside the cache.
          cached, written: prompt tokens read from and written to the cache.
          written_5m, written_1h: ``written`` by lifetime. Used only where they add up to it; otherwise all of
            ``written`` goes to the default lifetime of five minutes, and the note says so.
          output: all generated tokens.
          reasoning: part of ``output``; checked, and billed with it.
        """
        _require_count("reasoning", reasoning)
        if reasoning > output:
            raise CostModelError(f"reasoning {reasoning} exceeds output {output}, which should include it")
        short, long, note = _lifetimes(written, written_5m, written_1h)
        return Tokens(
            input=fresh, cache_read=cached, cache_write_5m=short, cache_write_1h=long, output=output, note=note
        )

    @property
    def prompt(self) -> int:
        """All prompt tokens."""
        return self.input + self.cache_read + self.cache_write_5m + self.cache_write_1h

    @property
    def total(self) -> int:
        """All tokens, each counted once."""
        return self.prompt + self.output

    @property
    def hit_rate(self) -> float | None:
        """Read / (read + written + fresh); None for an empty prompt."""
        return self.cache_read / self.prompt if self.prompt else None


def _lifetimes(written: int | None, short: int | None, long: int | None) -> tuple[int, int, str]:
    """Cache writes of five minutes and of one hour, and what had to be assumed."""
    split = (short or 0) + (long or 0)
    if written is None or split == written:
        return short or 0, long or 0, ""
    if short is None and long is None:
        return written, 0, f"lifetime of {written} written tokens unknown, taken as 5m"
    return written, 0, f"writes 5m {short or 0} + 1h {long or 0} do not add up to {written}, all taken as 5m"


def _require_count(name: str, count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise CostModelError(f"{name} = {count!r}: a token count is an integer of at least 0")
