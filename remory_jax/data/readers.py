"""Local Parquet and JSON Lines files to records. Nothing is downloaded, and no row is passed over in silence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from costmodel_jax.errors import CostModelError, InputError
from costmodel_jax.importers.source import Options, Source
from costmodel_jax.schema import SCHEMA
from remory_jax.data.problems import Problems, RefusedError
from remory_jax.data.records import ROLES, Conversation, Passage, Record, Trajectory, Turn

__all__ = ["data_files", "read_conversations", "read_passages", "read_rows", "read_trajectories"]

R = TypeVar("R", bound=Record)
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json")

# MMFineReason's subsets name their columns differently; the first that holds text is taken.
QUESTION = ("question", "ori_question", "original_question", "prompt", "problem")
REASONING = ("qwen3vl_235b_thinking_response", "thinking_response", "reasoning", "response", "solution")
ANSWER = ("answer", "original_answer")
TEXT = ("text", "content", "document")
EXTRA = ("tool_calls", "name", "tool_call_id", "reasoning_content")  # what chat templates render beside the content
_MARKS = re.compile(r"</?(?:think|answer)>")


def data_files(paths: Sequence[str | Path]) -> list[Path]:
    """Parquet and JSON Lines files, folders searched through, in an order that does not depend on the file system.

    Raises:
      InputError: a path that does not exist, or nothing found at all.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise InputError("no such file or folder; data are read from local files only", path=path)
    if not found:
        raise InputError(f"no {', '.join(SUFFIXES)} files in {', '.join(map(str, paths)) or 'an empty list of paths'}")
    return found


def read_rows(
    files: Sequence[Path], problems: Problems, *, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """Rows of files as (file, row, fields): 1-based lines of JSON Lines, 0-based rows of Parquet and of JSON arrays.

    Args:
      columns: Parquet columns to read where they exist; the others, such as images, are never decoded.
    """
    for file in files:
        rows = _parquet(file, problems, columns) if file.suffix == ".parquet" else _json(file, problems)
        for row, value in rows:
            if isinstance(value, dict):
                yield file, row, value
            else:
                problems.report("wrong_shape", f"a row is an object, not {_kind(value)}", path=file, row=row)


def read_passages(files: Sequence[Path], problems: Problems) -> Iterator[Passage]:
    """Question, reasoning and answer of each row as one text, in that order; or its single ``text``. No images."""
    return _records(files, problems, _passage, ("id", *QUESTION, *REASONING, *ANSWER, *TEXT))


def read_conversations(files: Sequence[Path], problems: Problems) -> Iterator[Conversation]:
    """Rows with ``conversations: [{from, value}]`` or ``messages: [{role, content}]``."""
    return _records(files, problems, _conversation, ("id", "conversations", "messages", "tools"))


def read_trajectories(files: Sequence[Path], problems: Problems) -> Iterator[Trajectory | Conversation]:
    """``agent-run/1`` rows whose segments carry ids or text; rows of chat messages come out as conversations."""
    return _records(files, problems, _trajectory, None)


def _records(
    files: Sequence[Path],
    problems: Problems,
    parse: Callable[[str, dict[str, Any]], R],
    columns: Sequence[str] | None,
) -> Iterator[R]:
    for file, row, value in read_rows(files, problems, columns=columns):
        try:
            yield parse(f"{file.stem}:{row}", value)
        except (CostModelError, msgspec.MsgspecError) as error:
            reason = error.reason if isinstance(error, RefusedError) else "wrong_shape"
            problems.report(reason, str(error), path=file, row=row)


def _passage(name: str, row: dict[str, Any]) -> Passage:
    own = _text(row, TEXT)
    parts = [own] if own else [_text(row, columns) for columns in (QUESTION, REASONING, ANSWER)]
    kept: list[str] = []
    for part in parts:
        part = _MARKS.sub("", part).strip()
        if part and not any(earlier.endswith(part) for earlier in kept):  # reasoning often ends with the answer
            kept.append(part)
    if not kept:
        raise RefusedError(
            "empty_text", "has no text in any column that is read; see QUESTION, REASONING, ANSWER and TEXT"
        )
    return Passage(id=_id(row, name), text="\n\n".join(kept))


def _conversation(name: str, row: dict[str, Any]) -> Conversation:
    listed = row.get("messages") if row.get("conversations") is None else row["conversations"]
    if not isinstance(listed, list):
        raise CostModelError("has neither `conversations`, a list of {from, value}, nor `messages` of {role, content}")
    turns = tuple(_turn(i, message) for i, message in enumerate(listed))
    if not any(turn.text.strip() for turn in turns):
        raise RefusedError("empty_text", "no message holds any text")
    if not any(turn.role == "assistant" for turn in turns):
        raise CostModelError("no message is from the assistant (gpt), so there is nothing to continue with")
    tools = row.get("tools") or ()
    tools = msgspec.json.decode(tools) if isinstance(tools, str) else tools
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, dict) for tool in tools):
        raise CostModelError(f"tools is {_kind(tools)}; give a list of objects")
    return Conversation(id=_id(row, name), turns=turns, tools=tuple(tools))


def _turn(i: int, message: Any) -> Turn:
    if not isinstance(message, dict):
        raise CostModelError(f"message {i} is {_kind(message)}; give an object")
    role = message.get("from", message.get("role"))
    if not isinstance(role, str) or role not in ROLES:
        raise CostModelError(f"message {i}: its from/role is none of {', '.join(ROLES)}")
    content = message.get("value") if "value" in message else message.get("content")
    if isinstance(content, list):  # parts of a chat message; pictures are left out
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(text for text in texts if isinstance(text, str))
    if content is None and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise CostModelError(f"message {i}: its value/content is {_kind(content)}; give text")
    extra = {key: message[key] for key in EXTRA if message.get(key)}
    return Turn(role=ROLES[role], text=content, extra=extra)


def _trajectory(name: str, row: dict[str, Any]) -> Trajectory | Conversation:
    if "calls" not in row and isinstance(row.get("messages"), list):
        return _conversation(name, row)
    if row.get("schema") != SCHEMA and not {"id", "calls"} <= row.keys():
        raise CostModelError(f"is neither {SCHEMA} (`id` and `calls`) nor chat messages (`messages`)")
    return Trajectory.from_dict(row)


def _text(row: dict[str, Any], columns: Sequence[str]) -> str:
    for column in columns:
        value = row.get(column)
        if value is not None and not isinstance(value, str):
            raise CostModelError(f"{column} is {_kind(value)}; it must be text")
        if value and value.strip():
            return value
    return ""


def _id(row: dict[str, Any], name: str) -> str:
    """The file and row, which are unique, and the row's own id where it has one."""
    own = row.get("id")
    return f"{name}:{own}" if isinstance(own, (str, int)) and str(own) else name


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reporting(Options):
    """Reading of JSON that reports to `Problems`."""

    sink: Problems

    def skip(self, kind: str, error: InputError) -> None:
        self.sink.report("unreadable", error.message, path=error.path, row=error.line)


def _json(file: Path, problems: Problems) -> Iterator[tuple[int, Any]]:
    try:
        for count, (line, value) in enumerate(Source(file).values(_Reporting(sink=problems))):
            yield count if line is None else line, value
    except InputError as error:
        if error.path is None:  # raised by what was done with a row
            raise
        problems.report("unreadable", error.message, path=error.path, row=error.line)


def _parquet(file: Path, problems: Problems, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
    row = 0
    try:
        with pq.ParquetFile(file) as opened:
            names = [name for name in opened.schema_arrow.names if columns is None or name in columns]
            if columns is not None and not names:
                problems.report("wrong_shape", f"has none of the columns {', '.join(columns)}", path=file)
                return
            for batch in opened.iter_batches(batch_size=256, columns=names):
                for value in batch.to_pylist():
                    yield row, value
                    row += 1
    except (pa.ArrowException, OSError) as error:
        problems.report("unreadable", f"not a whole Parquet file ({type(error).__name__})", path=file, row=row or None)
