"""What a row of a sweep says of its run, beside numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from costmodel_jax.schema import Run

__all__ = ["Facts"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """One entry per run in every list; see `costmodel_jax.tables.RUN_COLUMNS`. `cluster` is its chain or task."""

    run: list[str]
    cluster: list[str]
    lengths: list[str]
    cached: list[str]
    reasoning: list[str]
    format: list[str | None]
    model: list[str | None]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Facts:
        """Take them from runs, which need not be kept."""
        return cls(
            run=[run.id for run in runs],
            cluster=[run.chain or run.task or run.id for run in runs],
            lengths=[run.evidence.lengths for run in runs],
            cached=[run.evidence.cached for run in runs],
            reasoning=[run.evidence.reasoning for run in runs],
            format=[run.format for run in runs],
            model=[run.model for run in runs],
        )

    def part(self, which: slice) -> Facts:
        """Of some runs."""
        return Facts(**{field.name: getattr(self, field.name)[which] for field in fields(self)})
