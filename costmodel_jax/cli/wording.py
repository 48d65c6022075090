"""Numbers, ids and cache rules in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from costmodel_jax.caching import CacheRule
from costmodel_jax.schema import Run

__all__ = ["calls_band", "describe_rule", "folded", "of", "short_ids"]

LONG, SHORT = 24, 8  # characters of a run id


def of(count: int, one: str, many: str = "") -> str:
    """``1 run``, ``2 runs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def calls_band(calls: Iterable[float]) -> str:
    """``7 (3-20)``: calls to payback, and over busy and light calls."""
    fewest, expected, most = calls
    if not math.isfinite(expected):
        return "never"
    up = [f"{math.ceil(value):,}" if math.isfinite(value) else "never" for value in (fewest, expected, most)]
    return f"{up[1]} ({up[0]}-{up[2]})" if up[0] != up[2] else up[1]


def folded(spec: str, width: int = 24) -> str:
    """A spec on lines of about ``width`` characters, broken behind its commas."""
    lines = [""]
    for part in re.findall(r"[^,]+,?", spec):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append(" ")
        lines[-1] += part
    return "\n".join(lines)


def describe_rule(rule: CacheRule) -> str:
    """A cache rule in words."""
    if rule.reuse == "none":
        return "no reuse"
    parts = [str(rule.reuse), f"block {rule.block}"]
    parts += [f"full hit {rule.full_hit.replace('_', ' ')}"] if rule.full_hit != "exact" else []
    parts += [f"window {rule.window}"] if rule.window is not None else []
    parts += ["dense"] if rule.dense else []
    parts += [f"from {rule.min_tokens} tokens"] if rule.min_tokens else []
    parts += [f"for {rule.ttl:g} s"] if rule.ttl is not None else []
    return ", ".join([*parts, *(["last token skipped"] if rule.last_token == "skipped" else [])])


def short_ids(runs: Sequence[Run]) -> dict[str, str]:
    """Ids for narrow tables: long ones cut to their beginning, as far as it is unique among the runs."""
    ids = [run.id for run in runs]
    shown = {}
    for own in ids:
        if len(own) <= LONG:
            shown[own] = own
            continue
        unique = (n for n in range(SHORT, len(own)) if sum(other.startswith(own[:n]) for other in ids) == 1)
        length = next(unique, len(own))
        shown[own] = own if length + 1 >= len(own) else f"{own[:length]}…"
    return shown
