"""The usage object of a chat completion as LiteLLM writes it, which OpenHands and mini-swe-agent log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel_jax.importers.fields import Place, counter, made_usage, record
from costmodel_jax.schema import Usage

__all__ = ["completion_usage"]


def completion_usage(usage: Mapping[str, Any], place: Place) -> Usage:
    """The usage object of a chat completion as LiteLLM writes it, for any provider.

    Cached and written tokens are part of the prompt, reasoning of the output. Providers that charge for writing to the
    cache state what was written; where reads are stated and writes are not, none were. A write without a lifetime is a
    5-minute write, and lifetimes are used only where they add up to the whole.

    Raises:
      InputError: if a count is no count, or a part exceeds its whole.
    """
    details = "prompt_tokens_details" if record(usage, "prompt_tokens_details") else "input_tokens_details"
    inside = record(usage, details)
    read = {
        f"{details}.cached_tokens": counter(inside, "cached_tokens", place.at(details)),
        "cache_read_input_tokens": counter(usage, "cache_read_input_tokens", place),
        "prompt_cache_hit_tokens": counter(usage, "prompt_cache_hit_tokens", place),
    }
    stated = {name: count for name, count in read.items() if count}
    if len(set(stated.values())) > 1:
        told = " and ".join(f"{name} = {count}" for name, count in stated.items())
        raise place.error(f"gives {told}; both count the same tokens")
    cached = _first(*stated.values(), *read.values())
    written = _first(
        counter(usage, "cache_creation_input_tokens", place),
        counter(inside, "cache_creation_tokens", place.at(details)),
        None if cached is None else 0,
    )
    lifetimes = record(inside, "cache_creation_token_details")
    hour = counter(lifetimes, "ephemeral_1h_input_tokens", place.at(details))
    short = counter(lifetimes, "ephemeral_5m_input_tokens", place.at(details))
    split = written is not None and (hour or 0) + (short or 0) == written
    outside = "completion_tokens_details" if record(usage, "completion_tokens_details") else "output_tokens_details"
    return made_usage(
        place,
        prompt_tokens=_first(*(counter(usage, name, place) for name in ("prompt_tokens", "input_tokens"))),
        cached_tokens=cached,
        cache_write_5m=(short or 0) if split else written,
        cache_write_1h=None if written is None else (hour or 0) if split else 0,
        output_tokens=_first(*(counter(usage, name, place) for name in ("completion_tokens", "output_tokens"))),
        reasoning_tokens=counter(record(usage, outside), "reasoning_tokens", place.at(outside)),
    )


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)
