"""``costmodel breakeven``: when an edit pays back, in closed form from numbers, or edit by edit from a log."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any

from costmodel_jax.cli.findings import show_payback
from costmodel_jax.cli.options import Output, Point, Reading, arg, configuration
from costmodel_jax.cli.payback import EDITING, holds_under, paid_edits
from costmodel_jax.cli.reading import load
from costmodel_jax.cli.screen import Screen, table
from costmodel_jax.cli.wording import calls_band
from costmodel_jax.errors import InputError
from costmodel_jax.exchange import (
    calls_to_payback,
    edit_delta,
    exchange_rate,
    keep_delta,
    rebuild_cost,
    retention_horizon,
    summary_request_cost,
)
from costmodel_jax.grid import count_grid
from costmodel_jax.groups import compiling_quickly
from costmodel_jax.policies import AsRecorded
from costmodel_jax.pricing import Prices
from costmodel_jax.specs import parse_arch, parse_cache, parse_policy, policy_name
from costmodel_jax.tables import compact_number, flops_unit

__all__ = ["HELP", "Command"]

HELP = "\n".join(
    [
        "From numbers in tokens (3k = 3000), or from a log and a --policy that edits.",
        "",
        "Examples:",
        "  costmodel breakeven --prefix 3k --replaced 60k --by 2k --tail 20k",
        "  costmodel breakeven --prefix 20k --reasoning 2k --answer 100 --remaining 5k",
        "  costmodel breakeven session.jsonl --policy compact:100k",
    ]
)


def amount(flag: str, text: str) -> float:
    """A number of tokens or FLOPs: ``3000``, ``3_000``, ``3k``, ``1.5M``, ``2e12``.

    Raises:
      InputError: naming the flag.
    """
    scale = {"k": 1e3, "m": 1e6}.get(text[-1:].lower(), 1.0)
    try:
        number = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"--{flag} {text!r} must be a number of at least 0, such as 3000, 3k or 2e12")
    return number


def _tokens(help: str) -> Any:
    return arg(metavar="N", help=help, help_behavior_hint="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output, Point, Reading):
    """Options of ``costmodel breakeven``."""

    prefix: Annotated[str, _tokens("H: tokens before the edit, reused before and after. 0 by default.")] = "0"
    replaced: Annotated[str | None, _tokens("b: tokens that go.")] = None
    by: Annotated[str, _tokens("s: tokens that come instead. 0 by default.")] = "0"
    tail: Annotated[str, _tokens("Tokens behind the edit that stay, and are rebuilt. 0 by default.")] = "0"
    remaining: Annotated[str | None, _tokens("L: positions that later calls will process.")] = None
    per_call: Annotated[
        tuple[str, ...],
        arg(
            metavar="[N [N N]]",
            help="Positions a call processes: one number, or low, middle and high.",
            help_behavior_hint="",
        ),
    ] = ()
    instruction: Annotated[str, _tokens("Tokens that ask for the summary. 500 by default.")] = "500"
    k_gen: Annotated[
        str | None, arg(metavar="FLOPS", help="Price of producing the replacement, instead.", help_behavior_hint="")
    ] = None
    reasoning: Annotated[str | None, _tokens("r: reasoning tokens to keep or to drop.")] = None
    answer: Annotated[str, _tokens("a: answer tokens behind the reasoning. 0 by default.")] = "0"
    linear: Annotated[
        str | None, arg(metavar="FLOPS", help="c, instead of an architecture's.", help_behavior_hint="")
    ] = None
    pair: Annotated[
        str | None, arg(metavar="FLOPS", help="beta, instead of an architecture's.", help_behavior_hint="")
    ] = None
    w: Annotated[float, arg(metavar="W", help="Price of a generated position relative to a prefilled one.")] = 1.0

    def run(self) -> int:
        """Answer, and return the exit code."""
        screen = Screen(json=self.json, quiet=self.quiet)
        if (self.linear is None) != (self.pair is None):
            raise InputError("--linear and --pair go together: c and beta in FLOPs")
        if self.linear is not None and self.pair is not None:
            prices, name = Prices(linear=amount("linear", self.linear), pair=amount("pair", self.pair)), "given prices"
        else:
            architecture = parse_arch(self.arch)
            prices, name = architecture.prices(), architecture.name
        document: dict[str, Any] = {
            "command": "breakeven",
            "configuration": configuration(self),
            "prices": {"name": name, "linear": float(prices.linear), "pair": float(prices.pair)},
            "exchange_rate": exchange_rate(prices),
        }
        if self.paths:
            document |= self._from_log(screen, prices)
        elif self.replaced is None and self.reasoning is None:
            raise InputError(
                "give --replaced (an edit), --reasoning (keeping or dropping a block), or a log with --policy; "
                "see costmodel breakeven --help"
            )
        else:
            self._numbers(), self._band()  # what is wrong is said before anything else is
            screen.say(
                f"{name}: c {compact_number(float(prices.linear))}FLOP per position, "
                f"beta {float(prices.pair):,.0f} FLOP per pair, P* {compact_number(float(exchange_rate(prices)))}"
            )
            screen.say()
            if self.replaced is not None:
                document["edit"] = self._edit(screen, prices)
            if self.reasoning is not None:
                document["keep"] = self._keep(screen, prices)
        screen.answer(document)
        return 0

    def _from_log(self, screen: Screen, prices: Prices) -> dict[str, Any]:
        """Every edit a policy makes in the runs of a log."""
        policy, rule = parse_policy(self.policy), parse_cache(self.cache)
        if not isinstance(policy, EDITING):
            raise InputError(f"--policy {self.policy} edits no history; use compact, clear-tool-results or as-recorded")
        if not holds_under(rule):
            raise InputError(
                f"--cache {self.cache}: payback has a closed form only where generated text is found again for ever; "
                "use paper-16 or vllm"
            )
        loaded = load(self, screen)
        with compiling_quickly(loaded.runs):
            grid = count_grid(loaded.runs, {policy_name(policy): policy}, {self.cache: rule})
            edits = paid_edits(grid, self.cache, prices, self.w)
        show_payback(screen, grid, self.cache, edits)
        if not edits and isinstance(policy, AsRecorded):
            screen.say("No run records an edit of its history, so there is nothing to pay back.")
        return {"loaded": loaded.to_dict(), "edits": [dataclasses.asdict(edit) for edit in edits]}

    def _edit(self, screen: Screen, prices: Prices) -> list[dict[str, Any]]:
        """One edit, with the ways to pay for the replacement side by side."""
        numbers = self._numbers()
        prefix, by, tail = numbers["prefix"] or 0.0, numbers["by"] or 0.0, numbers["tail"] or 0.0
        replaced, k_given, left = numbers["replaced"] or 0.0, numbers["k_gen"], numbers["remaining"]
        history, instruction = prefix + replaced + tail, numbers["instruction"] or 0.0
        ways = {"no request": 0.0}
        if k_given is not None:
            ways = {"as given": k_given}
        elif by:
            ways = {
                f"summary, {word}": float(summary_request_cost(prices, history, instruction, by, aligned, w=self.w))
                for word, aligned in (("aligned", True), ("not aligned", False))
            } | {"no request": 0.0}
        edit = {"H": prefix, "b": replaced, "s": by, "tail": tail}
        rebuild = float(rebuild_cost(prices, prefix, by + tail))
        unit, flops = flops_unit([rebuild, *ways.values()])
        columns = ["way", f"K_gen {unit}", f"rebuild {unit}", "break-even"]
        columns += (["calls"] if self.per_call else []) + ([f"at L {unit}"] if left is not None else [])
        made = table(*columns, left=("way",))
        answers = []
        for way, k_gen in ways.items():
            payback = calls_to_payback(prices, **edit, k_gen=k_gen, positions_per_call=self._band())
            delta = None if left is None else float(edit_delta(prices, **edit, L=left, k_gen=k_gen))
            calls = (float(payback.fewest), float(payback.expected), float(payback.most))
            answers.append(
                {
                    "way": way, "k_gen": k_gen, "rebuild": rebuild, "break_even": float(payback.positions),
                    "calls": calls if self.per_call else None, "remaining": left, "delta": delta,
                }
            )  # fmt: skip
            cells = [way, f"{k_gen / flops:,.2f}", f"{rebuild / flops:,.2f}", _positions(float(payback.positions))]
            cells += [calls_band(calls)] if self.per_call else []
            made.add_row(*cells, *([f"{delta / flops:+,.2f}"] if delta is not None else []))
        screen.show(
            f"Replace {replaced:,.0f} tokens after a prefix of {prefix:,.0f} by {by:,.0f}; {tail:,.0f} behind stay",
            made,
        )
        screen.say("break-even: positions processed later from which on the edit is cheaper.")
        if left is not None:
            screen.say(f"at L: what the edit costs more (+) or less (-) if {left:,.0f} more positions follow.")
        return answers

    def _keep(self, screen: Screen, prices: Prices) -> dict[str, Any]:
        """One block of reasoning: to keep or to drop."""
        numbers = self._numbers()
        prefix, reasoning, answer = numbers["prefix"] or 0.0, numbers["reasoning"] or 0.0, numbers["answer"] or 0.0
        horizon = float(retention_horizon(prices, prefix, reasoning, answer))
        document: dict[str, Any] = {"retention_horizon": horizon, "remaining": None, "delta": None}
        screen.say(
            f"Keep {reasoning:,.0f} reasoning tokens after a prefix of {prefix:,.0f} and before an answer of "
            f"{answer:,.0f}: cheaper for fewer than L* = {_positions(horizon)} later positions where generated text is "
            "reused; never cheaper where prompts alone are."
        )
        left = numbers["remaining"]
        if left is not None:
            deltas = {
                word: float(keep_delta(prices, prefix, reasoning, answer, left, rho))
                for word, rho in (("generation", 1.0), ("prompt", 0.0))
            }
            document |= {"remaining": left, "delta": deltas}
            unit, flops = flops_unit(deltas.values())
            screen.say(
                f"With {left:,.0f} more positions keeping costs {deltas['generation'] / flops:+,.2f} {unit} where "
                f"generated text is reused, {deltas['prompt'] / flops:+,.2f} {unit} where prompts alone are."
            )
        return document

    def _numbers(self) -> dict[str, float | None]:
        flags = ("prefix", "replaced", "by", "tail", "remaining", "instruction", "k_gen", "reasoning", "answer")
        texts = {flag: getattr(self, flag) for flag in flags}
        return {flag: None if text is None else amount(flag.replace("_", "-"), text) for flag, text in texts.items()}

    def _band(self) -> tuple[float, float, float]:
        numbers = [amount("per-call", text) for text in self.per_call] or [1.0]
        if len(numbers) not in (1, 3):
            raise InputError("--per-call takes one number, or three: low, middle and high")
        return (numbers[0], numbers[len(numbers) // 2], numbers[-1])


def _positions(value: float) -> str:
    return f"{value:,.4g}" if value < 1000 else compact_number(value)
