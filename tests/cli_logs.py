"""Small logs for the tests of the command line, and a way to run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel_jax.cli import main

__all__ = ["SECRET", "Answer", "claude_session", "run_document", "write_runs", "written"]

SECRET = "XYZZY-never-print-this"
"""Stands in the text of every log that has text."""


class Answer:
    """What a command line said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """Stdout as one JSON document, in which NaN and infinity are no numbers."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def written(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Answer:
    """Run a command line in this process."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Answer(code, captured.out, captured.err)


def run_document(
    name: str, calls: int = 6, *, measured: bool = False, scale: int = 1, time: bool = False
) -> dict[str, Any]:
    """An agent-run/1 document: every call reasons and answers; tools answer, and a user at every third call.

    Args:
      name: id of the run.
      calls: how many.
      measured: with the usage of a server that reuses everything a 16-token block holds.
      scale: multiplies all lengths.
      time: with times, 10 seconds apart.
    """
    made: list[dict[str, Any]] = []
    shown = 0
    for t in range(calls):
        new: list[dict[str, Any]] = [{"kind": "system", "tokens": 300 * scale}] if t == 0 else []
        new.append({"kind": "user" if t % 3 == 0 else "tool", "tokens": (40 + 7 * t) * scale})
        out = [{"kind": "reasoning", "tokens": 50 * scale}, {"kind": "assistant", "tokens": 11 * scale}]
        prompt = shown + sum(part["tokens"] for part in new)
        call: dict[str, Any] = {"input": new, "output": out}
        if measured:
            call["usage"] = {
                "prompt_tokens": prompt, "cached_tokens": shown // 16 * 16, "output_tokens": 61 * scale,
                "reasoning_tokens": 50 * scale,
            }  # fmt: skip
        if time:
            call["time"] = 10.0 * t
        made.append(call)
        shown = prompt + 61 * scale
    evidence = {"cached": "measured", "reasoning": "billed"} if measured else {}
    return {"schema": "agent-run/1", "id": name, "task": name, "calls": made, "evidence": evidence}


def write_runs(path: Path, *documents: dict[str, Any]) -> Path:
    """Runs as JSON Lines."""
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def claude_session(path: Path, calls: int = 3) -> Path:
    """A Claude Code session whose texts hold the secret."""
    lines: list[dict[str, Any]] = []
    parent = None
    for t in range(calls):
        stamp = f"2026-03-01T10:0{t}:00.000Z"
        common = {"sessionId": "34a5d834-621e-4b7c-a0d7-c2e6e4db5a18", "timestamp": stamp, "isSidechain": False}
        user = {"type": "user", "uuid": f"u{t}", "parentUuid": parent, "message": {"role": "user", "content": SECRET}}
        usage = {
            "input_tokens": 4, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 2_000 + 400 * t,
            "output_tokens": 30,
        }  # fmt: skip
        message = {
            "id": f"msg_{t}", "role": "assistant", "type": "message", "model": "claude-test",
            "content": [{"type": "text", "text": f"{SECRET} {t}"}], "usage": usage,
        }  # fmt: skip
        answer = {"type": "assistant", "uuid": f"a{t}", "parentUuid": f"u{t}", "requestId": f"r{t}", "message": message}
        lines += [{**user, **common}, {**answer, **common}]
        parent = f"a{t}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
