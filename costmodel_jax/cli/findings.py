"""What stood out, for a person: where the prefix broke, and whether edits paid."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel_jax.cli.breaks import Breaks, by_cause
from costmodel_jax.cli.payback import PaidEdit
from costmodel_jax.cli.screen import Screen, table
from costmodel_jax.cli.wording import calls_band, of, short_ids
from costmodel_jax.compaction import Compact
from costmodel_jax.grid import Grid
from costmodel_jax.policies import ClearToolResults
from costmodel_jax.schema import Run
from costmodel_jax.specs import POLICIES
from costmodel_jax.tables import compact_number, flops_unit

__all__ = ["show_breaks", "show_payback"]

SHOWN = 5
ROUNDING = ("block rounding", "append")  # causes that no one can mend


def show_breaks(screen: Screen, runs: Sequence[Run], breaks: Breaks) -> None:
    """What was processed again, by cause and then the largest."""
    ids = short_ids(runs)
    where = f"{breaks.policy} and {breaks.cache}, {of(breaks.explained, 'run')}"
    if not breaks.explained:
        return
    if not breaks.breaks:
        screen.say(f"The prefix never broke ({where}).")
        return
    causes = by_cause(found.explanation for found in breaks.breaks)
    unit, flops = flops_unit(spent for *_, spent in causes)
    made = table("cause", "calls", "tokens", unit, "of N", left=("cause",), least=20)
    for cause, calls, tokens, spent in causes:
        share = f"{100 * tokens / breaks.processed:.1f}%"
        made.add_row(cause, f"{calls:,}", compact_number(tokens), f"{spent / flops:,.2f}", share)
    screen.show(f"Processed again under {where}", made)
    broken = [found for found in breaks.breaks if found.explanation.cause not in ROUNDING]
    if broken:
        made = table("run", "call", "tokens", "cause", "from", left=("run", "cause", "from"))
        for found in broken[:SHOWN]:
            call = found.explanation
            made.add_row(ids[found.run], str(call.call), f"{call.recomputed:,}", call.cause, call.where)
        screen.show("Largest breaks", made)
        screen.say("costmodel explain PATH --run RUN shows every call.")
        screen.say()


def show_payback(screen: Screen, grid: Grid, cache: str | None, edits: Sequence[PaidEdit]) -> None:
    """When edits paid, policy by policy."""
    editing = [name for name, kind in POLICIES.items() if issubclass(kind.policy, (Compact, ClearToolResults))]
    asked = [name for name in grid.policies if name.split(":")[0] in editing]
    if not asked and not edits:
        return
    if cache is None:
        screen.say("Payback has a closed form only where generated text is reused; add --cache paper-16 or vllm.")
        return
    silent = [name for name in asked if not any(edit.policy == name for edit in edits)]
    if silent:
        screen.say(f"Never fired, so nothing to pay back: {', '.join(silent)}.")
    if not edits:
        return
    ids = short_ids(grid.runs)
    for name in dict.fromkeys(edit.policy for edit in edits):
        mine = [edit for edit in edits if edit.policy == name]
        columns = ("run", "call", "before", "after", "break-even", "calls", "followed", "paid")
        made = table(*columns, left=("run", "paid"))
        for edit in sorted(mine, key=lambda edit: edit.after - edit.before)[:SHOWN]:
            made.add_row(
                ids[edit.run],
                str(edit.call),
                compact_number(edit.before),
                compact_number(edit.after),
                compact_number(edit.break_even),
                calls_band(edit.calls),
                compact_number(edit.later),
                "yes" if edit.paid else "no",
            )
        screen.show(f"When edits of {name} pay back under {cache}", made)
        screen.say(f"{sum(edit.paid for edit in mine)} of {of(len(mine), 'edit')} paid before the next one.")
        screen.say()
    screen.say(
        "break-even: positions processed later that pay for the edit; calls: the same in calls, with a band over the "
        "run's own; followed: positions processed before the next edit."
    )
    if any(edit.policy == "as-recorded" for edit in edits):
        screen.say("as-recorded: a summary request that the log does not hold is not in the price.")
