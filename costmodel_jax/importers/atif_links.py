"""How ATIF documents hang together: embedded and referenced helpers, and files that continue each other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.importers import fields
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.source import Source

__all__ = ["Trajectory", "chains", "documents", "parents", "references"]

CONTINUATION = re.compile(r"-cont-\d+$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One trajectory document: a file of its own or one embedded in its parent's.

    Attributes:
      value: the document.
      source, place: where it stands.
      id: its trajectory id, session id, or file stem.
      above: id of the document it is embedded in.
    """

    value: dict[str, Any]
    source: Source
    place: Place
    id: str
    above: str | None = None


def documents(value: dict[str, Any], source: Source, place: Place, above: str | None = None) -> list[Trajectory]:
    """The trajectory and those embedded in it, at any depth."""
    pending = [(value, place, above)]
    found: list[Trajectory] = []
    while pending:
        value, place, above = pending.pop()
        name = fields.text(value, "trajectory_id") or fields.text(value, "session_id")
        name = name or (Path(source.path).stem if above is None else f"{above}/{len(found)}")
        found.append(Trajectory(value=value, source=source, place=place, id=name, above=above))
        inner = fields.items(value, "subagent_trajectories")
        for i, child in reversed(list(enumerate(inner))):
            if isinstance(child, dict):
                pending.append((child, place.at(f"subagent_trajectories[{i}]"), name))
    return found


def references(step: Any) -> list[dict[str, Any]]:
    """The helpers' trajectories that a step's observation refers to."""
    found = []
    for result in fields.items(step, "observation", "results"):
        named = fields.record(result).get("subagent_trajectory_ref")
        found += [named] if isinstance(named, dict) else [ref for ref in fields.items(named) if fields.record(ref)]
    return found


def parents(found: Sequence[Trajectory]) -> dict[int, str]:
    """Who spawned whom, by the id of the object: embedded, referenced, or stated by the helper itself."""
    told: dict[tuple[str, str], str] = {}
    for trajectory in found:
        folder = Path(trajectory.source.path).parent
        for step in fields.items(trajectory.value, "steps"):
            for reference in references(step):
                for name in ("trajectory_id", "session_id"):
                    told.setdefault((name, fields.text(reference, name) or ""), trajectory.id)
                path = fields.text(reference, "trajectory_path")
                told.setdefault(("file", str(folder / Path(path or "").name)), trajectory.id)
    spawned = {}
    for trajectory in found:
        named = [
            trajectory.above,
            told.get(("trajectory_id", fields.text(trajectory.value, "trajectory_id") or "-")),
            told.get(("session_id", fields.text(trajectory.value, "session_id") or "-")),
            told.get(("file", trajectory.source.path)) if trajectory.above is None else None,
            fields.text(trajectory.value, "agent", "extra", "parent_session_id"),
        ]
        parent = next((name for name in named if name and name != trajectory.id), None)
        if parent is not None:
            spawned[id(trajectory)] = parent
    return spawned


def chains(found: Sequence[Trajectory]) -> dict[int, str]:
    """Files that continue each other, named by the session that began."""
    by_file = {trajectory.source.path: trajectory for trajectory in found if trajectory.above is None}
    following = {fields.text(trajectory.value, "continued_trajectory_ref") for trajectory in found}
    named: dict[int, str] = {}
    for trajectory in sorted(found, key=lambda trajectory: trajectory.source.name in following):
        link: Trajectory | None = trajectory
        name = CONTINUATION.sub("", trajectory.id)
        continued = name != trajectory.id
        while link is not None and id(link) not in named:
            next_file = fields.text(link.value, "continued_trajectory_ref")
            if next_file is None and not continued:
                break
            named[id(link)] = name
            continued = True
            path = Path(link.source.path).parent / Path(next_file or "").name
            link = by_file.get(str(path)) if next_file is not None else None
    return named
