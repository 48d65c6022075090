"""Cache rules: what the server reuses of what earlier calls of the session left behind.

The number of reused positions follows from the longest common prefix of the rendered prompt with earlier sequences,
never from a flag in a log. A rule turns those common prefixes into R.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from costmodel_jax.calls import Array
from costmodel_jax.errors import CostModelError
from costmodel_jax.policies import Number, int64
from costmodel_jax.pytree import pytree

__all__ = ["CacheRule", "Earlier", "Lowered", "cache_rules", "lower", "reuse"]

REUSE = ("none", "prompt", "prompt+generation", "checkpoint", "window")


@pytree(static=("reuse", "full_hit", "last_token", "dense"))
@dataclasses.dataclass(frozen=True)
class CacheRule:
    """What a later call can find of earlier ones.

    Attributes:
      reuse: ``none``; ``prompt`` (states of earlier prompts); ``prompt+generation`` (of generated text too);
        ``checkpoint`` (hybrid models: only at resume points, which are prompt ends and junctions); ``window`` (models
        with sliding-window layers: every block of the last ``window`` must have been kept).
      block: tokens of a cache block; a hit is a whole number of blocks.
      full_hit: how much of a prompt can be reused: ``exact`` (all), ``minus_token`` (engines compute at least one
        token), ``minus_block`` (the last whole block is computed again).
      last_token: ``counted`` as the paper does, or ``skipped`` as engines do: the last sampled token is never fed
        back, so it is neither processed nor found again.
      min_tokens: a shorter hit counts as none.
      ttl: seconds after which an idle session's cache is gone; ``None`` never. Needs times.
      dense: with ``checkpoint``, every block boundary inside generated text is a resume point too.
      window: window of the sliding layers in tokens, for ``window``.
    """

    reuse: Literal["none", "prompt", "prompt+generation", "checkpoint", "window"] = "prompt+generation"
    block: Number = 1
    full_hit: Literal["exact", "minus_token", "minus_block"] = "exact"
    last_token: Literal["counted", "skipped"] = "counted"
    min_tokens: Number = 0
    ttl: int | float | Array | None = None
    dense: bool = False
    window: Number | None = None

    def __post_init__(self) -> None:
        if self.reuse not in REUSE:
            raise CostModelError(f"CacheRule.reuse = {self.reuse!r}; use one of {', '.join(REUSE)}")
        if self.full_hit not in ("exact", "minus_token", "minus_block"):
            raise CostModelError(f"CacheRule.full_hit = {self.full_hit!r}; use exact, minus_token or minus_block")
        if self.last_token not in ("counted", "skipped"):
            raise CostModelError(f"CacheRule.last_token = {self.last_token!r}; use counted or skipped")
        for name, minimum in (("block", 1), ("min_tokens", 0), ("window", 1)):
            value = getattr(self, name)
            if isinstance(value, (int, np.integer)) and value < minimum:
                raise CostModelError(f"CacheRule.{name} = {value} must be at least {minimum}")
            if isinstance(value, float):
                raise CostModelError(f"CacheRule.{name} = {value} must be an integer")
        if isinstance(self.ttl, (int, float)) and not self.ttl >= 0:
            raise CostModelError(f"CacheRule.ttl = {self.ttl} must be a number of seconds, at least 0")
        if (self.window is not None) != (self.reuse == "window"):
            raise CostModelError(f"CacheRule.window = {self.window} with reuse = {self.reuse!r}: they go together")
        if self.dense and self.reuse != "checkpoint":
            raise CostModelError(
                f"CacheRule.dense goes with reuse = 'checkpoint', not {self.reuse!r}"
                + ("; a sliding-window cache that keeps every block equals 'prompt+generation'" * bool(self.window))
            )


@pytree(static=("family",))
@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowered:
    """A rule as numbers, so that all rules of a family share one compiled program.

    Attributes:
      family: ``latest`` (the latest earlier call has the longest prefix), or where resume points of all earlier calls
        matter: ``checkpoint``, ``dense``, ``window``.
      reuses: whether anything is reused.
      generation: whether generated text is found again.
      block: tokens of a block.
      spare_tokens, spare_blocks: tokens and whole blocks at the end of a prompt that are never reused.
      skipped: sampled tokens that are never fed back: 0 or 1.
      min_tokens, ttl, window: as in ``CacheRule``; an endless lifetime is infinite.
    """

    family: Literal["latest", "checkpoint", "dense", "window"]
    reuses: Bool[Array, ""]
    generation: Bool[Array, ""]
    block: Int[Array, ""]
    spare_tokens: Int[Array, ""]
    spare_blocks: Int[Array, ""]
    skipped: Int[Array, ""]
    min_tokens: Int[Array, ""]
    ttl: Float[Array, ""]
    window: Int[Array, ""]


def lower(rule: CacheRule) -> Lowered:
    """Turn a rule into numbers; needs a 64-bit scope."""
    family: Any = rule.reuse if rule.reuse in ("checkpoint", "window") else "latest"
    return Lowered(
        family="dense" if rule.dense else family,
        reuses=jnp.asarray(rule.reuse != "none"),
        generation=jnp.asarray(rule.reuse != "prompt"),
        block=int64(rule.block),
        spare_tokens=int64(int(rule.full_hit == "minus_token")),
        spare_blocks=int64(int(rule.full_hit == "minus_block")),
        skipped=int64(int(rule.last_token == "skipped")),
        min_tokens=int64(rule.min_tokens),
        ttl=jnp.asarray(jnp.inf if rule.ttl is None else rule.ttl).astype(jnp.float32),
        window=int64(1 if rule.window is None else rule.window),
    )


class Earlier(NamedTuple):
    """What earlier calls left, one entry a call; entries that are unusable share 0 tokens.

    Attributes:
      prompt: length of each earlier prompt.
      ends: the prompt end each one can be resumed at, a multiple of the block.
      hits: the prompt+generation value of each earlier call, which makes a resume point (a junction).
    """

    prompt: Int[Array, "earlier"]
    ends: Int[Array, "earlier"]
    hits: Int[Array, "earlier"]


def reuse(
    rule: Lowered,
    prompt: Int[Array, ""],
    shared_prompt: Int[Array, "earlier"],
    shared_sequence: Int[Array, "earlier"],
    earlier: Earlier,
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Positions of a prompt that come from the cache, and the prompt+generation value that leaves a junction.

    Args:
      rule: the cache rule.
      prompt: P, length of the prompt.
      shared_prompt: common prefix of the prompt with each earlier prompt p_j.
      shared_sequence: common prefix of the prompt with each earlier sequence p_j g_j.
      earlier: the earlier calls, for the rules that resume at their points.
    """
    cap = jnp.maximum(prompt - rule.spare_tokens, 0) // rule.block - rule.spare_blocks
    longest = jnp.max(jnp.where(rule.generation, shared_sequence, shared_prompt))
    best = jnp.minimum(longest // rule.block, jnp.maximum(cap, 0)) * rule.block
    if rule.family == "latest":
        reused = best
    elif rule.family == "window":
        reused = _kept_window(rule, best, shared_prompt, earlier)
    else:
        reused = _resume(rule, best, shared_prompt, shared_sequence, earlier)
    return jnp.where(rule.reuses & (reused >= rule.min_tokens), reused, 0), best


def _resume(rule: Lowered, best: Array, shared_prompt: Array, shared_sequence: Array, earlier: Earlier) -> jax.Array:
    """The largest resume point within the hit whose own sequence agrees with the prompt that far.

    A junction is left wherever the prompt+generation value exceeded the best resume point. Where it did not exceed it,
    a point of that depth on the same prefix exists already, so taking every value as a point changes nothing.
    """
    deepest = jnp.zeros_like(best)
    for points in (earlier.ends, earlier.hits):
        usable = points <= jnp.minimum(best, shared_prompt)
        deepest = jnp.maximum(deepest, jnp.max(jnp.where(usable, points, 0)))
    if rule.family == "dense":
        boundary = jnp.minimum(best, shared_sequence) // rule.block * rule.block
        inside = boundary >= earlier.prompt
        deepest = jnp.maximum(deepest, jnp.max(jnp.where(inside, boundary, 0)))
    return deepest


def _kept_window(rule: Lowered, best: Array, shared_prompt: Array, earlier: Earlier) -> jax.Array:
    """The deepest block boundary whose last window of blocks is kept, by whichever earlier calls.

    Every resume point keeps the blocks that end there. In units of blocks these are intervals (low, high], cut where
    the earlier prompt stops agreeing with this one; a boundary is usable when the union covers the window before it.
    """
    need = (rule.window - 1 + rule.block - 1) // rule.block
    agreed = shared_prompt // rule.block
    points = jnp.concatenate([earlier.ends, earlier.hits]) // rule.block
    high = jnp.minimum(points, jnp.concatenate([agreed, agreed]))
    low = jnp.maximum(points - need, 0)
    empty = low >= high
    low, high = jax.lax.sort_key_val(jnp.where(empty, 0, low), jnp.where(empty, 0, high))
    # Sorted by their lower ends, intervals join while the next one begins at or before the reach so far.
    reach = jax.lax.cummax(high)
    before = jnp.concatenate([jnp.zeros_like(reach[:1]), reach[:-1]])
    start = jax.lax.cummax(jnp.where(low > before, low, 0))
    boundary = jnp.minimum(reach, best // rule.block)
    usable = start <= jnp.maximum(boundary - need, 0)
    kept = jnp.max(jnp.where(usable, boundary, 0)) * rule.block
    return jnp.where(need == 0, best, kept)  # a window of one token looks back at nothing


def _presets() -> dict[str, CacheRule]:
    engine: dict[str, Any] = {"full_hit": "minus_token", "last_token": "skipped"}
    return {
        "paper": CacheRule(),
        "paper-16": CacheRule(block=16),
        "none": CacheRule(reuse="none"),
        "prompt": CacheRule(reuse="prompt"),
        "prompt+generation": CacheRule(),
        "vllm": CacheRule(block=16, **engine),
        "vllm-hybrid": CacheRule(reuse="checkpoint", block=528, **engine),
        "vllm-window": CacheRule(reuse="window", block=16, window=128, **engine),
        "vllm-embeds": CacheRule(reuse="prompt", block=16, **engine),
        "sglang": CacheRule(**engine),
        "llama.cpp": CacheRule(**engine),
        "anthropic": CacheRule(reuse="prompt", min_tokens=1024, ttl=300.0),
        "openai": CacheRule(block=128, min_tokens=1024, last_token="skipped"),
        "deepseek": CacheRule(block=64, last_token="skipped"),
    }


cache_rules: Mapping[str, CacheRule] = types.MappingProxyType(_presets())
"""Named rules. Take a variant with ``dataclasses.replace(cache_rules["vllm"], block=32)``."""
