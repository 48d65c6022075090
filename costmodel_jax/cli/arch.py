"""``costmodel arch``: where an architecture's prices come from."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import tyro

from costmodel_jax.architecture import Architecture, architectures
from costmodel_jax.cli.options import Output, arg, configuration
from costmodel_jax.cli.screen import Screen, table
from costmodel_jax.exchange import exchange_rate
from costmodel_jax.specs import parse_arch
from costmodel_jax.tables import compact_number

__all__ = ["HELP", "Command"]

HELP = "\n".join(
    [
        "Without a name, the presets.",
        "",
        "Example:",
        "  costmodel arch Qwen3.6-27B ./my-model/config.json",
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output):
    """Options of ``costmodel arch``."""

    names: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        arg(metavar="[NAME ...]", help="Presets, config.json files or their folders.", help_behavior_hint=""),
    ] = ()

    def run(self) -> int:
        """Show, and return the exit code."""
        screen = Screen(json=self.json, quiet=self.quiet)
        if not self.names:
            return self._list(screen)
        chosen = [parse_arch(name) for name in self.names]
        screen.answer(
            {
                "command": "arch",
                "configuration": configuration(self),
                "architectures": [_facts(one) | {"layers": one.table()} for one in chosen],
            }
        )
        for one in chosen:
            _show(screen, one)
        return 0

    def _list(self, screen: Screen) -> int:
        presets = [architectures[name] for name in architectures]
        screen.answer(
            {"command": "arch", "configuration": configuration(self), "architectures": [_facts(p) for p in presets]}
        )
        made = table("preset", "layers", "c GFLOP", "beta", "P*", left=("preset",))
        for preset in presets:
            facts = _facts(preset)
            rate = compact_number(facts["exchange_rate"], 6)
            made.add_row(
                preset.name, str(len(preset.layers)), f"{facts['linear'] / 1e9:,.4f}", f"{facts['pair']:,.0f}", rate
            )
        screen.show("Presets: c per processed position, beta per query-key pair, P* = c / beta", made)
        return 0


def _facts(architecture: Architecture) -> dict[str, Any]:
    prices = architecture.prices()
    every = architecture.prices(windowed=True, state=True, head=True, absorbed=True)
    return {
        "name": architecture.name,
        "family": architecture.family,
        "source": architecture.source,
        "parameters": architecture.parameters,
        "linear_weights": architecture.linear_weights,
        "linear": float(prices.linear),
        "pair": float(prices.pair),
        "exchange_rate": float(exchange_rate(prices)),
        "extensions": {
            "windows": [{"window": int(capped.window), "pair": float(capped.pair)} for capped in every.windows],
            "state": float(every.state),
            "head": float(every.head),
            "pair_generated": None if every.pair_generated is None else float(every.pair_generated),
        },
    }


def _show(screen: Screen, architecture: Architecture) -> None:
    made = table("layers", "mixer", "feed forward", "linear weights", "pair", "window", left=("mixer", "feed forward"))
    for row in architecture.table(fold=True):
        span = f"{row['layer']}" if row["layer"] == row["last"] else f"{row['layer']}-{row['last']}"
        window = "" if row["window"] is None else f"{row['window']:,}"
        made.add_row(
            span, str(row["mixer"]), str(row["feed_forward"]), f"{row['linear_weights']:,}", f"{row['pair']:,}", window
        )
    screen.show(f"{architecture.name}: layers that are alike, per layer", made)
    if not screen.json:
        screen.out.print(architecture.describe())
        screen.say()
