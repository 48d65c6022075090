"""An independent reading of a run: its prompts, call by call, from segments and edits alone.

It follows the words of ``schema.Edit`` on a plain list and shares no code with the importers or the library's own
replay, so that agreement between a run's prompts and what its log measured means something.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodel_jax.importers import Options, load_runs
from costmodel_jax.schema import Run


def prompts(run: Run) -> list[int]:
    """Prompt length of every call: the visible tokens of the history after the call's edits, plus the new input."""
    lengths = []
    recorded: list[int] = []  # tokens of every segment so far
    visible: list[bool] = []
    substitutes: list[tuple[int, int, int]] = []  # start, stop, tokens
    start, session = 0, run.calls[0].session
    for call in run.calls:
        if call.session is not None and call.session != session:
            session, start, substitutes = call.session, len(recorded), []
        for edit in call.edits:
            assert start <= edit.start < edit.stop <= len(recorded), "an edit leaves its session"
            for i in range(edit.start, edit.stop):
                visible[i] = False
            for begin, end, _ in substitutes:
                whole = edit.start <= begin and end <= edit.stop
                apart = end <= edit.start or edit.stop <= begin
                assert whole or apart, "an edit cuts through an earlier replacement"
            substitutes = [s for s in substitutes if not (edit.start <= s[0] and s[1] <= edit.stop)]
            if edit.segment is not None:
                substitutes.append((edit.start, edit.stop, edit.segment.tokens))
        shown = sum(tokens for i, tokens in enumerate(recorded) if i >= start and visible[i])
        shown += sum(tokens for _, _, tokens in substitutes)
        lengths.append(shown + sum(segment.tokens for segment in call.input))
        recorded += [segment.tokens for segment in (*call.input, *call.output)]
        visible += [True] * (len(call.input) + len(call.output))
    return lengths


def check(run: Run) -> None:
    """Assert what every imported run must satisfy."""
    assert Run.from_dict(run.to_dict()) == run
    replayed = prompts(run)
    for t, call in enumerate(run.calls):
        usage = call.usage
        if usage is not None and usage.prompt_tokens is not None:
            assert replayed[t] == usage.prompt_tokens, f"{run.id}: prompt of call {t}"
        if usage is not None and usage.output_tokens is not None:
            assert sum(segment.tokens for segment in call.output) == usage.output_tokens, f"{run.id}: output {t}"
        if usage is not None and usage.reasoning_tokens is not None:
            reasoning = sum(segment.tokens for segment in call.output if segment.kind == "reasoning")
            assert reasoning == usage.reasoning_tokens, f"{run.id}: reasoning {t}"


FIELDS = ("prompt_tokens", "cached_tokens", "cache_write_5m", "cache_write_1h", "output_tokens", "reasoning_tokens")


def per_call(run: Run) -> list[dict[str, int | None]]:
    """The usage fields of every call."""
    return [{field: getattr(call.usage, field, None) for field in FIELDS} for call in run.calls]


def totals(runs: list[Run]) -> dict[str, int | None]:
    """The usage fields summed over all calls; ``None`` where a call does not say."""
    calls = [usage for run in runs for usage in per_call(run)]
    summed: dict[str, int | None] = {"calls": len(calls)}
    for field in FIELDS:
        counts = [usage[field] for usage in calls]
        summed[field] = None if None in counts else sum(count for count in counts if count is not None)
    return summed


def compactions(runs: list[Run]) -> int:
    """Calls that follow a compaction."""
    return sum(any(edit.cause == "compaction" for edit in call.edits) for run in runs for call in run.calls)


def user_turns(runs: Sequence[Run]) -> int:
    """User messages, those never answered included (the notes count them); what a helper is told is no user's turn."""
    main = [run for run in runs if run.parent is None]
    seen = sum(segment.kind == "user" for run in main for call in run.calls for segment in call.input)
    return seen + unanswered(main)


def unanswered(runs: Sequence[Run]) -> int:
    """User messages behind the last call, which only a note counts."""
    notes = [note for run in runs for note in run.notes if "after the last call, which no call" in note]
    return sum(int(note.split()[0]) for note in notes)


def load(paths: Sequence[Path] | Path, **options: Any) -> list[Run]:
    """Runs of detected formats, each checked."""
    runs = load_runs(paths, options=Options(**options))
    for run in runs:
        check(run)
    return runs


def compare(runs: list[Run], expected: dict[str, Any]) -> None:
    """Assert the totals of a file as ``expected.json`` states them."""
    stated = expected.get("totals", expected)
    found = totals(runs)
    assert found["calls"] == stated.get("calls", stated.get("model_calls"))
    assert {field: found[field] for field in FIELDS} == {field: stated[field] for field in FIELDS}
    assert compactions(runs) == expected["compactions"]
    assert user_turns(runs) == expected["user_turns"]
    if "calls" in expected:
        calls = [usage for run in runs for usage in per_call(run)]
        assert calls == [{field: call[field] for field in FIELDS} for call in expected["calls"]]


def expected_files(shared: Path, folder: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files of one tool among the extra recordings, with their expected totals."""
    logs = shared / "logs"
    for name, expected in json.loads((logs / "expected.json").read_text())["files"].items():
        if name.startswith(f"{folder}/"):
            yield logs / name, expected


def expected_cases(shared: Path, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The hand-written cases whose folder matches ``name``, with what they expect."""
    for folder in sorted((shared / "logs" / "cases").glob(name)):
        yield folder, json.loads((folder / "expected.json").read_text())
