"""Policies, cache rules and architectures as short texts, such as ``keep-latest:5`` or ``vllm:block=32``.

A spec is a name, then after a colon fields as ``name=value``, separated by commas; a bare value is the first field. The
functions that parse and the ones that name are inverse: ``parse_policy(policy_name(policy)) == policy``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel_jax.architecture import Architecture, architectures
from costmodel_jax.caching import REUSE, CacheRule, cache_rules
from costmodel_jax.compaction import Compact, CompactWithMemory
from costmodel_jax.errors import CostModelError, InputError
from costmodel_jax.policies import (
    AsRecorded,
    ClearEvery,
    ClearToolResults,
    DropAtUserTurn,
    DropImmediately,
    KeepAll,
    KeepLatest,
    Policy,
)

__all__ = [
    "DEFAULT_ARCHITECTURES",
    "DEFAULT_CACHES",
    "DEFAULT_POLICIES",
    "MEMORY_FLOPS",
    "POLICIES",
    "Kind",
    "cache_name",
    "parse_arch",
    "parse_cache",
    "parse_policy",
    "policy_name",
]

MEMORY_FLOPS = 2.0 * 1_940_016_388
"""FLOPs per source position of a memory network of that many weights, if a position touches all: an upper bound."""

COMPACTION = {"trigger": 100_000, "keep_tail": 20_000, "summary": 2_000, "instruction": 500, "aligned": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of policy.

    Attributes:
      policy: its class.
      defaults: fields of a bare name, where they differ from the class's own defaults.
      title: one line on what it does.
    """

    policy: type[Policy]
    title: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """The names of its fields."""
        return [field.name for field in dataclasses.fields(self.policy)]  # type: ignore[arg-type]

    def make(self, values: Mapping[str, Any]) -> Policy:
        """A policy with these fields, the rest at the defaults of a bare name."""
        return self.policy(**{**self.defaults, **values})


POLICIES: Mapping[str, Kind] = types.MappingProxyType(
    {
        "keep-all": Kind(policy=KeepAll, title="nothing is ever hidden"),
        "drop": Kind(policy=DropImmediately, title="reasoning of earlier calls is never shown"),
        "keep-latest": Kind(
            policy=KeepLatest, defaults={"k": 5}, title="the reasoning of the k latest calls, a sliding window"
        ),
        "clear-every": Kind(policy=ClearEvery, defaults={"k": 5}, title="reasoning goes in batches, every k calls"),
        "drop-at-user-turn": Kind(policy=DropAtUserTurn, title="reasoning goes when the next user message arrives"),
        "clear-tool-results": Kind(
            policy=ClearToolResults,
            defaults={"trigger": 100_000, "keep": 3, "clear_at_least": 5_000},
            title="old tool results go in batches above a trigger",
        ),
        "compact": Kind(policy=Compact, defaults=COMPACTION, title="above a trigger the middle becomes a summary"),
        "compact-with-memory": Kind(
            policy=CompactWithMemory,
            defaults={**COMPACTION, "slots": 4_096, "memory_flops": MEMORY_FLOPS},
            title="the same, with soft memory rows behind the summary",
        ),
        "as-recorded": Kind(policy=AsRecorded, title="what the log says the client did"),
    }
)
"""Every policy the command line knows, by name."""

DEFAULT_POLICIES = (
    "keep-all",
    "drop",
    "keep-latest:1",
    "keep-latest:5",
    "clear-every:5",
    "drop-at-user-turn",
    "clear-tool-results",
    "compact",
    "compact-with-memory",
    "as-recorded",
)
DEFAULT_CACHES = ("paper-16", "prompt:block=16", "none", "vllm")
DEFAULT_ARCHITECTURES = ("Qwen3.6-27B",)

BASES: Mapping[str, Mapping[str, Any]] = types.MappingProxyType(
    {name: {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
     for name, rule in cache_rules.items()}
    | {"checkpoint": {"reuse": "checkpoint"}, "window": {"reuse": "window"}}
)  # fmt: skip
WORDS = {
    "reuse": REUSE,
    "full_hit": ("exact", "minus_token", "minus_block"),
    "last_token": ("counted", "skipped"),
}
CACHE_FIELDS = [field.name for field in dataclasses.fields(CacheRule)]


def parse_policy(text: str) -> Policy:
    """The policy a spec names, e.g. ``compact:100000,keep_tail=20000``.

    Raises:
      InputError: an unknown name or field, or a value that is out of range; the message lists what there is.
    """
    name, values = _split("policy", text)
    name = {"drop-immediately": "drop"}.get(name, name)
    if name not in POLICIES:
        raise InputError(f"policy {text!r}: unknown name{_near(name, POLICIES)}. Known: {', '.join(POLICIES)}")
    kind = POLICIES[name]
    try:
        return kind.make(_fields(f"policy {text!r}", values, kind.fields, kind.fields[:1]))
    except InputError:
        raise
    except CostModelError as error:
        raise InputError(f"policy {text!r}: {error}") from None


def policy_name(policy: Policy) -> str:
    """The shortest spec of a policy with concrete fields: those at the defaults of a bare name are left out, k is not.

    Raises:
      CostModelError: for a class that has no name on the command line.
    """
    name = next((name for name, kind in POLICIES.items() if type(policy) is kind.policy), None)
    if name is None:
        raise CostModelError(f"{type(policy).__name__} has no name; named: {', '.join(POLICIES)}")
    kind = POLICIES[name]
    usual = kind.make({})
    shown = []
    for position, field in enumerate(kind.fields):
        value = _plain(getattr(policy, field))
        if field == "k" or value != getattr(usual, field):
            shown.append(_text(value) if position == 0 else f"{field}={_text(value)}")
    return name + (f":{','.join(shown)}" if shown else "")


def parse_cache(text: str) -> CacheRule:
    """The rule a spec names: a preset, or ``checkpoint`` or ``window``, with overrides; a bare value is ``block``.

    Raises:
      InputError: an unknown name or field, or values that do not go together; the message lists what there is.
    """
    name, values = _split("cache", text)
    if name not in BASES:
        raise InputError(f"cache {text!r}: unknown name{_near(name, BASES)}. Known: {', '.join(BASES)}")
    fields = _fields(f"cache {text!r}", values, CACHE_FIELDS, ["block"])
    try:
        return CacheRule(**{**BASES[name], **fields})
    except CostModelError as error:
        raise InputError(f"cache {text!r}: {error}") from None


def cache_name(rule: CacheRule) -> str:
    """The shortest spec of a rule with concrete fields: the preset it is, or the nearest one and what differs."""
    given = {field: _plain(getattr(rule, field)) for field in CACHE_FIELDS}
    usual = {field.name: field.default for field in dataclasses.fields(CacheRule)}
    differences = {
        name: {field: value for field, value in given.items() if value != {**usual, **base}[field]}
        for name, base in BASES.items()
        if {**usual, **base}["reuse"] == rule.reuse
    }
    # Of equally near ones the plain rule of that name says most.
    name = min(differences, key=lambda name: (len(differences[name]), name not in REUSE and bool(differences[name])))
    shown = [f"{field}={_text(value)}" for field, value in differences[name].items()]
    return name + (f":{','.join(shown)}" if shown else "")


def parse_arch(text: str) -> Architecture:
    """The architecture a text names: a preset, a ``config.json``, or a folder that holds one.

    Raises:
      InputError: neither a preset nor a path; or a config that cannot be used.
    """
    if text in architectures:
        return architectures[text]
    if Path(text).exists():
        return Architecture.from_hf(text)
    raise InputError(
        f"architecture {text!r}: neither a preset{_near(text, architectures)} nor a config.json or its folder. "
        f"Presets: {', '.join(architectures)}"
    )


def _split(what: str, text: str) -> tuple[str, str]:
    name, _, values = text.strip().partition(":")
    name = name.strip().lower().replace("_", "-")
    if not name:
        raise InputError(f"{what} {text!r}: give a name")
    return name, values


def _fields(where: str, text: str, known: Iterable[str], bare: Iterable[str]) -> dict[str, Any]:
    """``name=value`` pairs; a value without a name is that of the first of the ``bare`` fields."""
    known, unnamed = list(known), list(bare)
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            if not unnamed:
                raise InputError(f"{where}: what is {part!r}? {_known_fields(known)}")
            name, value = unnamed.pop(0), part
        name = name.strip().replace("-", "_")
        if name not in known:
            raise InputError(f"{where}: unknown field {name!r}{_near(name, known)}. {_known_fields(known)}")
        if name in values:
            raise InputError(f"{where}: {name} is given twice")
        values[name] = _value(where, name, value.strip())
    return values


def _value(where: str, name: str, text: str) -> Any:
    """The value of a field, of the field's own type."""
    if name in WORDS:
        if text not in WORDS[name]:
            raise InputError(f"{where}: {name} = {text!r} must be one of {', '.join(WORDS[name])}")
        return text
    if name in ("aligned", "dense"):
        if text.lower() not in ("true", "yes", "false", "no"):
            raise InputError(f"{where}: {name} = {text!r} must be true or false")
        return text.lower() in ("true", "yes")
    if name in ("ttl", "window") and text.lower() == "none":
        return None
    if name in ("ttl", "memory_flops"):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= 0):
            raise InputError(f"{where}: {name} = {text!r} must be a number of at least 0")
        return number
    match = re.fullmatch(r"([+-]?\d[\d_]*)([kKmM]?)", text)
    if match is None:
        raise InputError(f"{where}: {name} = {text!r} must be a whole number, such as 16, 100_000 or 100k")
    return int(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]


def _known_fields(known: list[str]) -> str:
    return f"Fields: {', '.join(known)}" if known else "It takes no fields"


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _near(name: str, known: Iterable[str]) -> str:
    lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(lower), n=1)
    return f" (did you mean {lower[close[0]]}?)" if close else ""
