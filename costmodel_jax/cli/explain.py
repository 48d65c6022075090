"""``costmodel explain``: one run, call by call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from costmodel_jax.caching import CacheRule
from costmodel_jax.cli.breaks import by_cause
from costmodel_jax.cli.floors import fixed_floor
from costmodel_jax.cli.options import Output, Point, Reading, arg, configuration
from costmodel_jax.cli.reading import load
from costmodel_jax.cli.screen import Screen, table
from costmodel_jax.cli.wording import describe_rule, of
from costmodel_jax.compaction import Compact
from costmodel_jax.errors import CostModelError, InfeasibleError, InputError
from costmodel_jax.explain import CAUSES, CallExplanation, Explanation, explain
from costmodel_jax.groups import compiling_quickly
from costmodel_jax.inference import InferredRule, infer_cache_rule
from costmodel_jax.policies import AsRecorded, Policy
from costmodel_jax.pricing import Prices
from costmodel_jax.schema import Run
from costmodel_jax.specs import parse_arch, parse_cache, parse_policy, policy_name
from costmodel_jax.tables import compact_number, flops_unit

__all__ = ["HELP", "Command"]

HELP = "\n".join(
    [
        "Example:",
        "  costmodel explain session.jsonl --run 86ae --policy drop --cache vllm",
        "",
        "Causes:",
        *(f"  {cause:<21} {meaning}" for cause, meaning in CAUSES.items() if len(meaning) < 56),
    ]
)
LISTED = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output, Point, Reading):
    """Options of ``costmodel explain``."""

    run_id: Annotated[
        str | None,
        arg(name="run", metavar="ID", help="Which run: its id, or how it begins.", help_behavior_hint=""),
    ] = None

    def run(self) -> int:
        """Explain, and return the exit code."""
        screen = Screen(json=self.json, quiet=self.quiet)
        policy, cache, architecture = parse_policy(self.policy), parse_cache(self.cache), parse_arch(self.arch)
        run = choose(load(self, screen).runs, self.run_id)
        with compiling_quickly([run]):
            explanation = _explained(run, policy, cache, architecture.prices())
            inferred = _inferred(run)
        screen.answer(
            {
                "command": "explain",
                "configuration": configuration(self),
                "run": run.id,
                "policy": policy_name(policy),
                "cache": {"name": self.cache, **dataclasses.asdict(cache)},
                "architecture": architecture.name,
                "shrank_but_dearer": explanation.shrank_but_dearer,
                "calls": explanation.to_rows(),
                "inferred_rule": None if inferred is None else dataclasses.asdict(inferred),
                "notes": list(run.notes),
            }
        )
        screen.say(f"Run {run.id} under {policy_name(policy)} and {self.cache} ({describe_rule(cache)})")
        screen.say()
        _show(screen, run, explanation, measured=isinstance(policy, AsRecorded))
        if inferred is not None:
            screen.say(f"Measured by the server: {inferred.describe()}")
        return 0


def choose(runs: Sequence[Run], wanted: str | None) -> Run:
    """The run of an id, or of an id that begins so.

    Raises:
      InputError: if there is no such run, or several; the message lists ids.
    """
    matching = [run for run in runs if wanted is None or run.id == wanted] or [
        run for run in runs if wanted is not None and run.id.startswith(wanted)
    ]
    if len(matching) == 1:
        return matching[0]
    listed = matching or list(runs)
    ids = ", ".join(run.id for run in listed[:LISTED]) + (f", ... {len(listed)} in all" if len(listed) > LISTED else "")
    if wanted is None:
        raise InputError(f"there are several runs; choose one with --run: {ids}")
    raise InputError(f"--run {wanted}: {'several runs begin so' if matching else 'no such run'}; there are {ids}")


def _explained(run: Run, policy: Policy, cache: CacheRule, prices: Prices) -> Explanation:
    try:
        return explain(run, policy, cache, prices)
    except InfeasibleError as error:
        if not isinstance(policy, Compact):
            raise
        floor, window = fixed_floor(run, policy), int(policy.trigger)
        raise InfeasibleError(f"{error} (they hold {floor:,} tokens, the trigger is {window:,})") from None


def _inferred(run: Run) -> InferredRule | None:
    try:
        return infer_cache_rule(run)
    except CostModelError:
        return None  # the log has no cache counters


def _show(screen: Screen, run: Run, explanation: Explanation, *, measured: bool) -> None:
    unit, flops = flops_unit(call.flops or 0.0 for call in explanation.calls)
    hits = [call.usage.cached_tokens if call.usage is not None else None for call in run.calls]
    shown = measured and any(hit is not None for hit in hits)
    columns = ["call", "P", "R", *(["server"] if shown else []), "again", "new", "G", unit, "cause"]
    made = table(*columns, left=("cause",))
    for call in explanation.calls:
        where = f" at {call.where}" if call.where else ""
        hit: Any = hits[call.call]
        made.add_row(
            f"{call.call}{'s' if call.summary else ''}",
            f"{call.prompt:,}",
            f"{call.reused:,}",
            *(["" if hit is None else f"{hit:,}"] if shown else []),
            f"{call.recomputed:,}",
            f"{call.new:,}",
            f"{call.generated:,}",
            f"{(call.flops or 0.0) / flops:,.1f}",
            call.cause + where,
        )
    beside = "; server: R it measured" if shown else ""
    screen.show(f"P = R reused + processed again + new; G generated{beside}", made)
    if any(call.summary for call in explanation.calls):
        screen.say("Calls marked s are summary requests, sent before the call of that number.")
    _show_sums(screen, explanation.calls)
    if explanation.shrank_but_dearer:
        screen.say("! This policy shows fewer prompt tokens than keep-all and costs more.")


def _show_sums(screen: Screen, calls: Sequence[CallExplanation]) -> None:
    again = sum(call.recomputed for call in calls)
    processed = sum(call.prompt - call.reused + call.generated for call in calls)
    parts = ", ".join(
        f"{cause} {compact_number(tokens)} ({of(count, 'call')})" for cause, count, tokens, _ in by_cause(calls)
    )
    share = 100 * again / processed if processed else 0.0
    screen.say(
        f"{again:,} of {processed:,} processed positions ({share:.1f}%) were known before"
        + (f": {parts}." if parts else ".")
    )
