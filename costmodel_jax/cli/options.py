"""What the commands share on the command line: which logs to read and how, and what to price them under."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from costmodel_jax import specs
from costmodel_jax.architecture import Architecture
from costmodel_jax.caching import CacheRule, cache_rules
from costmodel_jax.errors import InputError
from costmodel_jax.policies import Policy
from costmodel_jax.pricing import Prices

__all__ = ["Axes", "File", "Output", "Point", "Reading", "Texts", "Weights", "arg", "configuration"]

arg = tyro.conf.arg
Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
File = Path | None
EXTENSIONS = ("windowed", "state", "head", "absorbed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """How a command answers."""

    json: Annotated[bool, arg(help="JSON alone on stdout; all else goes to stderr.")] = False
    quiet: Annotated[bool, arg(help="Nothing on stderr but errors.")] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """Logs and how to read them."""

    paths: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        arg(
            metavar="[PATH ...]",
            help="Log files, folders to search through, or - for standard input.",
            help_behavior_hint="",
        ),
    ] = ()
    format: Annotated[str, arg(metavar="NAME", help="Log format; see 'costmodel import --help'.")] = "auto"
    lenient: Annotated[bool, arg(help="Skip what cannot be read, and count it.")] = False
    tokenizer: Annotated[
        str | None,
        arg(
            metavar="PATH",
            help="For logs without token counts: a Hugging Face tokenizer folder, its tokenizer.json, or the name of "
            "one in the local cache. Lengths are then modelled, not measured.",
            help_behavior_hint="",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
    """Policies, cache rules, architectures and w. Every combination is priced."""

    policy: Annotated[Texts, arg(metavar="SPEC", help="Policy.", help_behavior_hint="(repeatable)")] = ()
    cache: Annotated[Texts, arg(metavar="SPEC", help="Cache rule.", help_behavior_hint="(repeatable)")] = ()
    arch: Annotated[
        Texts, arg(metavar="NAME", help="Preset, config.json or its folder.", help_behavior_hint="(repeatable)")
    ] = ()
    extension: Annotated[
        Texts,
        arg(
            metavar="NAME",
            help=f"Price more than the paper does: {', '.join(EXTENSIONS)}.",
            help_behavior_hint="(repeatable)",
        ),
    ] = ()

    def policies(self, defaults: tuple[str, ...] = specs.DEFAULT_POLICIES) -> dict[str, Policy]:
        """Policies by name, in order.

        Raises:
          InputError: for a spec that names none.
        """
        return {specs.policy_name(p): p for p in map(specs.parse_policy, self.policy or defaults)}

    def caches(self, defaults: tuple[str, ...] = specs.DEFAULT_CACHES) -> dict[str, CacheRule]:
        """Cache rules by name, in order; a preset keeps the name it was given under.

        Raises:
          InputError: for a spec that names none.
        """
        named = {}
        for text in self.cache or defaults:
            rule = specs.parse_cache(text)
            named[text if text in cache_rules else specs.cache_name(rule)] = rule
        return named

    def architectures(self) -> dict[str, Architecture]:
        """Architectures by name, in order; the second of two that share a name goes by its path.

        Raises:
          InputError: for what is neither a preset nor a usable config.
        """
        named: dict[str, Architecture] = {}
        for text in self.arch or specs.DEFAULT_ARCHITECTURES:
            architecture = specs.parse_arch(text)
            same = named.get(architecture.name, architecture) == architecture
            named[architecture.name if same else text] = architecture
        return named

    def prices(self, architecture: Architecture) -> Prices:
        """Prices of an architecture with the extensions asked for.

        Raises:
          InputError: for an unknown extension.
        """
        unknown = [name for name in self.extension if name not in EXTENSIONS]
        if unknown:
            raise InputError(f"--extension {unknown[0]}: unknown; known: {', '.join(EXTENSIONS)}")
        return architecture.prices(**dict.fromkeys(self.extension, True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Values of w."""

    w: Annotated[
        tuple[float, ...],
        tyro.conf.UseAppendAction,
        arg(
            metavar="W",
            help="Price of a generated position relative to a prefilled one, 1 by default.",
            help_behavior_hint="(repeatable)",
        ),
    ] = ()

    def weights(self) -> tuple[float, ...]:
        """At least one.

        Raises:
          InputError: for a w below 1.
        """
        for w in self.w:
            if not 1.0 <= w < float("inf"):
                raise InputError(f"--w {w:g}: a generated position costs at least as much as a prefilled one, w >= 1")
        return self.w or (1.0,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One policy, one cache rule, one architecture."""

    policy: Annotated[str, arg(metavar="SPEC", help="Policy; see costmodel price --help.")] = "as-recorded"
    cache: Annotated[str, arg(metavar="SPEC", help="Cache rule.")] = "paper-16"
    arch: Annotated[str, arg(metavar="NAME", help="Preset, config.json or its folder.")] = "Qwen3.6-27B"


def configuration(command: Any) -> dict[str, Any]:
    """A command's fields as plain data, for echoing in its JSON output."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(command).items()}
