"""Threads of calls to runs: a call that stands in several files counts once, and every run gets its facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from costmodel_jax.errors import InputError
from costmodel_jax.importers.assemble import Observation, assemble
from costmodel_jax.importers.fields import evidence
from costmodel_jax.importers.source import Options
from costmodel_jax.schema import Run

__all__ = ["Thread", "count_once", "fold", "runs_of"]


@dataclasses.dataclass(kw_only=True)
class Thread:
    """The calls of one agent thread in one file.

    Attributes:
      id: the run's id to be.
      path: the file, for messages.
      keys: of every call, what makes two records the same call.
      observations: the calls, in order.
      model, parent, chain, task, solved: as in ``Run``.
      reasoning_shown: without a reasoning counter: whether the log shows reasoning; ``None`` if it could not.
      notes: what a reader of the numbers must know.
      inherited: how many leading calls belong to another run.
    """

    id: str
    path: str
    keys: list[Hashable] = dataclasses.field(default_factory=list)
    observations: list[Observation] = dataclasses.field(default_factory=list)
    model: str | None = None
    parent: str | None = None
    chain: str | None = None
    task: str | None = None
    solved: bool | None = None
    reasoning_shown: bool | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    inherited: int = 0


def count_once(threads: Sequence[Thread]) -> None:
    """Give every call that occurs in several threads to the longest one, so that conversations stay whole.

    A thread that only copies another is left with no calls of its own. One that went on from a copy keeps its new
    calls; what it copied is inherited history, and both get the same ``chain``.
    """
    owner: dict[Hashable, Thread] = {}
    for thread in sorted(threads, key=lambda thread: -len(thread.keys)):
        first = next((owner[key] for key in thread.keys if key in owner), None)
        kept = list(zip(thread.keys, thread.observations, strict=True))
        leading = next((i for i, key in enumerate(thread.keys) if key not in owner), len(kept))
        carried: Observation | None = None
        thread.keys, thread.observations = [], []
        for i, (key, observation) in enumerate(kept):
            if i >= leading and key in owner:
                carried = observation if carried is None else fold(carried, observation)
                continue
            if carried is not None:
                observation = fold(carried, observation)
                carried = None
            thread.keys.append(key)
            thread.observations.append(observation)
        thread.inherited = leading
        for key in thread.keys:
            owner.setdefault(key, thread)
        if first is not None and leading < len(thread.keys):
            first.chain = first.chain or first.id
            thread.chain = first.chain
            thread.notes.append(f"the first {leading} calls of this file belong to run {first.id} and count there")


def fold(earlier: Observation, later: Observation) -> Observation:
    """A call that is not counted here, folded into the input of the next one."""
    return dataclasses.replace(
        later,
        input=(*earlier.input, *earlier.output, *later.input),
        compacted=earlier.compacted or later.compacted,
        removed={**earlier.removed, **later.removed},
        cleared=earlier.cleared + later.cleared,
    )


def runs_of(threads: Iterable[Thread], format: str, options: Options) -> list[Run]:
    """Assemble every thread that has calls of its own.

    Raises:
      InputError: if a call lacks a count (lenient reading skips the run).
    """
    runs = []
    for thread in threads:
        try:
            calls = assemble(thread.observations, path=thread.path, inherited=thread.inherited)
        except InputError as error:
            options.skip("skipped_run", error)
            continue
        if calls:
            runs.append(
                Run(
                    id=thread.id,
                    calls=calls,
                    task=thread.task,
                    chain=thread.chain,
                    model=thread.model,
                    solved=thread.solved,
                    format=format,
                    parent=thread.parent,
                    evidence=evidence([call.usage for call in calls], reasoning_shown=thread.reasoning_shown),
                    notes=tuple(thread.notes),
                )
            )
    return runs
