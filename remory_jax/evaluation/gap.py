"""The gap table: how much of what a summary lost each condition gives back, with paired bootstrap intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from costmodel_jax.statistics import paired_bootstrap
from remory_jax.evaluation.conditions import CONDITIONS, Measured

__all__ = ["Gap", "gap_rows", "gap_table", "shown"]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """One condition over all held-out examples.

    Attributes:
      condition: its name.
      positions: mean number of input positions before the response.
      reverse_kl, forward_kl: weighted means over judged positions, in nats.
      agreement: share of judged positions whose likeliest token is the teacher's.
      closed: ``1 - KL(condition) / KL(summary)`` in reverse KL.
      low, high: the paired bootstrap interval of ``closed``.
    """

    condition: str
    positions: float
    reverse_kl: float
    forward_kl: float
    agreement: float
    closed: float
    low: float
    high: float


def gap_table(measured: Measured, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> list[Gap]:
    """A row per condition.

    Whole records are drawn again, all their examples and all conditions together: the intervals are paired.

    Args:
      level: of the interval.

    Raises:
      ValueError: the summary is as good as the full context, so there is no gap to close.
    """
    weights = measured.weights.astype(np.float64)
    mass = weights.sum()

    def sums(values: Any) -> Any:
        return (np.asarray(values, np.float64) * weights).sum(axis=1)

    base = sums(measured.conditions["summary"].reverse)
    if not base.sum() > 0:
        raise ValueError("KL(summary) is 0: the summary is as good as the full context, and there is no gap to close")
    table = []
    for name in (name for name in CONDITIONS if name in measured.conditions):
        judged = measured.conditions[name]
        reverse = sums(judged.reverse)
        left = paired_bootstrap(
            reverse, base, cluster=measured.records, resamples=resamples, seed=seed, level=level
        )  # of KL(condition) / KL(summary)
        table.append(
            Gap(
                condition=name,
                positions=float(np.mean(judged.positions)),
                reverse_kl=float(reverse.sum() / mass),
                forward_kl=float(sums(judged.forward).sum() / mass),
                agreement=float(sums(judged.agree).sum() / mass),
                closed=float(1 - reverse.sum() / base.sum()),
                low=1 - float(left.high),
                high=1 - float(left.low),
            )
        )
    return table


def gap_rows(table: list[Gap]) -> list[dict[str, float | str]]:
    """The table as records, for CSV and JSON."""
    return [asdict(gap) for gap in table]


def shown(table: list[Gap]) -> Table:
    """The table as people read it, at 80 columns; q is the student, p the teacher."""
    view = Table(box=None, pad_edge=False)
    view.add_column("condition", no_wrap=True)
    for name in ("positions", "KL(q|p)", "KL(p|q)", "top-1", "closed", "interval"):
        view.add_column(name, justify="right", no_wrap=True)
    for gap in table:
        view.add_row(
            gap.condition,
            f"{gap.positions:,.1f}",
            f"{gap.reverse_kl:.4f}",
            f"{gap.forward_kl:.4f}",
            f"{gap.agreement:.3f}",
            f"{gap.closed:.3f}",
            f"{gap.low:.3f} to {gap.high:.3f}",
        )
    return view
