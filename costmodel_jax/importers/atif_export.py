"""The chat export that Harbor writes beside ATIF trajectories: conversations by episode, without usage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Run

__all__ = ["export_runs", "is_export"]


def is_export(value: Any) -> bool:
    """True for a row of an export."""
    return isinstance(value, dict) and isinstance(value.get("conversations"), list) and "episode" in value


def export_runs(source: Source, rows: Sequence[Any], options: Options) -> list[Run]:
    """Runs of an export: a row per episode repeats the conversation so far, so a trial's last row holds it all."""
    groups: dict[tuple[str | None, ...], list[Any]] = {}
    for row in rows:
        key = tuple(fields.text(row, name) for name in ("run_id", "trial_name", "task"))
        groups.setdefault(key, []).append(row)
    runs = []
    for episodes in groups.values():
        last = episodes[-1]
        try:
            place = Place(path=source.path, field="conversations")
            turns = chat.transcript(last["conversations"], place)
            if not turns:
                continue
            note = f"read from the last of {len(episodes)} episodes; calls that a context summary took out are missing"
            runs.append(
                Run(
                    id=fields.text(last, "trial_name") or Path(source.path).stem,
                    calls=chat.calls(turns, source, options),
                    task=fields.text(last, "task"),
                    model=fields.text(last, "model"),
                    format="atif",
                    evidence=chat.evidence(turns, shows_reasoning=False),
                    notes=(note,) if len(episodes) > len(turns) else (),
                )
            )
        except InputError as error:
            options.skip("skipped_run", error)
    return runs
