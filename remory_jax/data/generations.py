"""What the actor wrote for prepared examples: summaries of histories, and replies; JSON Lines that can be continued."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec
import numpy as np

from costmodel_jax.errors import InputError
from remory_jax.data.examples import Example, Ids, as_ids, join_ids
from remory_jax.data.template import Template

__all__ = ["GENERATIONS", "Generate", "Generated", "Generation", "generate_missing", "read_generations"]

GENERATIONS = "generations.jsonl"
Kind = Literal["summary", "longer", "reply"]
Generate = Callable[[Sequence[Sequence[int]]], Sequence[Sequence[int]]]
"""Prompts to what the actor writes after each, end-of-turn token not included."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file.

    Attributes:
      id: of the example.
      kind: ``summary`` of the history up to ``boundary``; ``longer``: another, longer one at the last boundary, to
        compare with (summary++); ``reply``: a response of the actor's own.
      boundary: which summary; -1 for a reply.
      prompt: hash of the ids it was generated from.
      ids: what was generated.
    """

    id: str
    kind: Kind
    boundary: int
    prompt: str
    ids: tuple[int, ...]


class Generated:
    """What was generated for one example."""

    def __init__(self) -> None:
        self.summaries: dict[int, Generation] = {}
        self.longer: Generation | None = None
        self.reply: Generation | None = None

    def add(self, line: Generation) -> None:
        """Take over a line; a later one replaces an earlier one of its kind."""
        if line.kind == "reply":
            self.reply = line
        elif line.kind == "longer":
            self.longer = line
        else:
            self.summaries[line.boundary] = line

    def join(self, example: Example) -> Example:
        """The example with its summaries, once all are there, and with the actor's reply in place of the recorded one.

        Raises:
          InputError: a line was generated for another example of the same id.
        """
        if self.summaries and len(self.summaries) == len(example.histories):
            found = tuple(as_ids(self.summaries[i].ids) for i in range(len(example.histories)))
            _check(
                example, self.summaries[0], _digest(join_ids([example.prefix, example.histories[0], example.request]))
            )
            example = msgspec.structs.replace(example, summaries=found)
        if self.reply is not None:
            _check(example, self.reply, _digest(reply_prompt(example)))
            start = example.judged[0][0]
            response = join_ids([example.response[:start], as_ids(self.reply.ids)])
            example = msgspec.structs.replace(example, response=response, judged=((start, len(response)),))
        return example


@runtime_checkable
class _Examples(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Example: ...


def read_generations(path: Path) -> dict[str, Generated]:
    """What a file holds by example id; nothing where there is no file. A last line that was cut off is left out.

    Raises:
      InputError: any other line that cannot be read.
    """
    found: dict[str, Generated] = {}
    if path.exists():
        for line in _lines(path):
            found.setdefault(line.id, Generated()).add(line)
    return found


def generate_missing(
    examples: _Examples,
    path: Path,
    generate: Generate,
    *,
    kind: Kind = "summary",
    template: Template | None = None,
    end: Sequence[int] = (),
    batch: int = 8,
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Generate what is missing and append it line by line, so that a stopped run goes on where it was.

    Summary i is asked for after ``prefix | s_open summary_{i-1} s_close | history_i | request``, so that it covers all
    before it; a longer one likewise, so ``generate`` is to write more. A reply follows ``prefix | histories | response
    up to its first judged token``.

    Args:
      examples: prepared ones.
      path: the file to append to.
      generate: the actor, greedy or not.
      template: markers around an earlier summary; none by default.
      end: ids that close a reply, which belong to it (the end-of-turn token).
      batch: prompts at one time.
      limit: examples to look at, from the first; ``None`` for all.
      progress: told (done, total) examples.

    Returns:
      How many lines were written.
    """
    _drop_partial_line(path)
    done = read_generations(path)
    total = len(examples) if limit is None else min(limit, len(examples))
    written = 0
    with path.open("ab") as stream:
        for start in range(0, total, batch):
            chosen = [examples[i] for i in range(start, min(start + batch, total))]
            for boundary, jobs in _jobs(chosen, done, kind, template or Template()):
                answers = generate([prompt.tolist() for _, prompt in jobs])
                for (example, prompt), answer in zip(jobs, answers, strict=True):
                    ids = (*map(int, answer), *(end if kind == "reply" else ()))
                    line = Generation(id=example.id, kind=kind, boundary=boundary, prompt=_digest(prompt), ids=ids)
                    done.setdefault(line.id, Generated()).add(line)
                    stream.write(msgspec.json.encode(line) + b"\n")
                    written += 1
                stream.flush()
                os.fsync(stream.fileno())
            progress(min(start + batch, total), total)
    return written


def reply_prompt(example: Example) -> Ids:
    """What the actor's own reply is generated from."""
    return join_ids([example.prefix, *example.histories, example.response[: example.judged[0][0]]])


def _jobs(
    examples: Sequence[Example],
    done: dict[str, Generated],
    kind: Kind,
    template: Template,
) -> Iterator[tuple[int, list[tuple[Example, Ids]]]]:
    """Prompts that have no answer yet, boundary by boundary: a later summary reads the earlier one."""
    nothing = Generated()
    if kind == "reply":
        jobs = [(e, reply_prompt(e)) for e in examples if done.get(e.id, nothing).reply is None]
        if jobs:
            yield -1, jobs
        return
    for boundary in range(max((len(e.histories) for e in examples), default=0)):
        jobs = []
        for e in examples:
            known = done.get(e.id, nothing)
            if kind == "longer":
                wanted = boundary == len(e.histories) - 1 and known.longer is None
            else:
                wanted = boundary < len(e.histories) != len(e.summaries) and boundary not in known.summaries
            if wanted and len(e.request):
                jobs.append((e, _summary_prompt(e, boundary, known, template)))
        if jobs:
            yield boundary, jobs


def _summary_prompt(example: Example, boundary: int, known: Generated, template: Template) -> Ids:
    earlier: list[Ids] = []
    if boundary:
        line = known.summaries.get(boundary - 1)
        before = example.summaries[boundary - 1] if line is None else as_ids(line.ids)
        earlier = [as_ids(template.s_open), before, as_ids(template.s_close)]
    return join_ids([example.prefix, *earlier, example.histories[boundary], example.request])


def _lines(path: Path) -> Iterator[Generation]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield msgspec.json.decode(line, type=Generation)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):  # the writer was stopped
                    return
                raise InputError(f"is no generation ({error})", path=path, line=number) from None


def _drop_partial_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)


def _digest(ids: Ids) -> str:
    return hashlib.sha256(np.asarray(ids, "<i4").tobytes()).hexdigest()[:16]


def _check(example: Example, line: Generation, prompt: str) -> None:
    if line.prompt != prompt:
        raise InputError(
            f"the {line.kind} of example {example.id!r} in {GENERATIONS} was generated from other tokens: "
            "the data were prepared differently then. Delete the file and generate again"
        )
