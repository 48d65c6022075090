"""tau-bench results: runs of chat messages with a simulated user, and few-shot dialogues as text. Neither has usage.

Format: the results file of ``sierra-research/tau-bench`` (a list of runs with ``task_id``, ``trial``, ``reward`` and
``traj``), and its JSON Lines of ``messages_display`` texts, where a line that starts with a speaker's name begins a
message. The simulated user is another model and is not counted; tool definitions are in neither file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.errors import InputError
from costmodel_jax.importers import chat, fields
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import Run

__all__ = ["IMPORTER"]

SPEAKER = re.compile(r"(system|user|assistant|tool): ?")
NOTE = "tool definitions are not in the log: prompts lack them"


def detect(source: Source) -> bool:
    """Runs with task id and messages, or lines of dialogue texts."""
    first = source.first
    if isinstance(first, list):
        first = first[0] if first else None
    return _is_run(first) or _is_text(first)


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("traj"), list) and "task_id" in value


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("messages_display"), str)


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read every run; a run that occurs in two files counts once."""
    runs: list[Run] = []
    seen: set[str] = set()
    for source in sources:
        try:
            for number, (line, value) in enumerate(source.values(options)):
                try:
                    run = _run(value, number, source, line, options)
                except InputError as error:
                    options.skip("skipped_run", error)
                    continue
                mark = fields.digest([value.get(name) for name in ("task_id", "trial", "traj", "messages_display")])
                if run is not None and mark not in seen:
                    seen.add(mark)
                    runs.append(run)
        except InputError as error:
            options.skip("skipped_file", error)
    return runs


def _run(value: Any, number: int, source: Source, line: int | None, options: Options) -> Run | None:
    stem = Path(source.path).stem
    place = Place(path=source.path, line=line, field=f"[{number}]")
    if _is_run(value):
        messages = value["traj"]
        task, trial = _number(value.get("task_id")), _number(value.get("trial"))
        name = f"{stem}/task{task or number}-trial{trial or 0}"
    elif _is_text(value):
        messages, task, name = _dialogue(value["messages_display"]), None, f"{stem}/{number}"
    else:
        raise place.error("is neither a run with task_id and traj nor a messages_display text")
    turns = chat.transcript(messages, place.at("traj"))
    if not turns:
        return None
    reward = value.get("reward")
    return Run(
        id=name,
        calls=chat.calls(turns, source, options),
        task=task,
        solved=reward >= 1 if isinstance(reward, (int, float)) else None,
        format="tau_bench",
        evidence=chat.evidence(turns, shows_reasoning=False),
        notes=(NOTE, *chat.unanswered(messages)),
    )


def _number(value: Any) -> str | None:
    return str(value) if isinstance(value, int) else None


def _dialogue(text: str) -> list[dict[str, str]]:
    """The messages of a dialogue; lines without a speaker go on with the message before them."""
    messages: list[dict[str, str]] = []
    for line in text.split("\n"):
        speaker = SPEAKER.match(line)
        if speaker is not None:
            messages.append({"role": speaker[1], "content": line[speaker.end() :]})
        elif messages:
            messages[-1]["content"] += f"\n{line}"
    return messages


IMPORTER = Importer(
    name="tau_bench",
    title="tau-bench results",
    convention="no usage: lengths are counted with a tokenizer",
    key="one assistant message of a run; equal runs count once",
    reuse="unknown",
    reasoning="unknown",
    detect=detect,
    read=read,
)
