"""Reading log files: bytes to JSON values, with the file and line of whatever is wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from costmodel_jax.errors import InputError

__all__ = ["STDIN", "Options", "Problem", "Source"]

STDIN = "<stdin>"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that lenient reading passed over.

    Attributes:
      kind: what it was, one word per kind: ``skipped_line``, ``skipped_record``, ``skipped_run``, ``skipped_file``.
      message: the whole message, with file and line.
    """

    kind: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to read.

    Attributes:
      lenient: skip what cannot be read and count it in ``problems`` instead of raising.
      count_tokens: text to a token count, for logs without usage (a tokenizer the user named); ``None`` refuses them.
      problems: what lenient reading passed over, appended to while reading.
    """

    lenient: bool = False
    count_tokens: Callable[[str], int] | None = None
    problems: list[Problem] = dataclasses.field(default_factory=list)

    def skip(self, kind: str, error: InputError) -> None:
        """Raise ``error``, or note it when reading leniently."""
        if not self.lenient:
            raise error
        self.problems.append(Problem(kind=kind, message=str(error)))

    def tokens(self, text: str, source: Source) -> int:
        """Count the tokens of a text that the log gives no count for.

        Raises:
          InputError: when no tokenizer was named.
        """
        if self.count_tokens is None:
            raise InputError(
                "this log has no token usage; name a tokenizer that is already on disk with --tokenizer "
                "(a Hugging Face tokenizer folder, or its tokenizer.json)",
                path=source.path,
            )
        return self.count_tokens(text)


class Source:
    """One log file, read once and decoded as asked."""

    def __init__(self, path: str | Path, data: bytes | None = None) -> None:
        """Use ``data`` as the content where given (standard input); otherwise the file is read when first needed."""
        self.path = str(path)
        self._data = data

    def __repr__(self) -> str:
        return f"Source({self.path!r})"

    @property
    def name(self) -> str:
        """File name without its folder."""
        return Path(self.path).name

    @functools.cached_property
    def data(self) -> bytes:
        """The whole content.

        Raises:
          InputError: when the file cannot be read.
        """
        if self._data is not None:
            return self._data
        if self.path == STDIN:
            return sys.stdin.buffer.read()
        try:
            return Path(self.path).read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=self.path) from None

    @property
    def empty(self) -> bool:
        """True if there is nothing but white space."""
        return not self.data.strip()

    @functools.cached_property
    def first(self) -> Any:
        """The first JSON value: of the document, or of the first line that holds one; ``None`` if there is neither.

        For detection only: errors are left to the importer that will read the file.
        """
        return next(iter(self.head(1)), None)

    def head(self, count: int = 20) -> list[Any]:
        """Up to ``count`` leading JSON values for detection (one, if the file is a single document)."""
        values = []
        for _, line in _lines(self.data, limit=8 * count):
            try:
                values.append(msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if len(values) == count:
                break
        if not values and self.data.lstrip()[:1] in (b"{", b"["):
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                values.append(msgspec.json.decode(self.data))
        return values

    def document(self) -> Any:
        """The file as one JSON value.

        Raises:
          InputError: with the line of the fault.
        """
        try:
            return msgspec.json.decode(self.data)
        except RecursionError:
            raise InputError("nested too deeply to be a log", path=self.path) from None
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text; is this a log?", path=self.path) from None
        except msgspec.DecodeError as error:
            raise InputError(f"not valid JSON: {error}", path=self.path, line=self._line(error)) from None

    def records(self, options: Options) -> Iterator[tuple[int, Any]]:
        """The JSON value of every line that is not blank, with its 1-based line number.

        Raises:
          InputError: at a line that is not JSON (lenient reading counts and skips it).
        """
        for number, line in _lines(self.data):
            try:
                value = msgspec.json.decode(line)
            except RecursionError:
                options.skip("skipped_line", InputError("nested too deeply to be a log", path=self.path, line=number))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
                options.skip("skipped_line", InputError(f"not valid JSON: {reason}", path=self.path, line=number))
            else:
                yield number, value

    def _line(self, error: Exception) -> int | None:
        """The line of a decode error that states a byte position."""
        words = str(error).replace(")", "").split()
        position = next((int(word) for word in reversed(words) if word.isdigit()), len(self.data))
        return self.data.count(b"\n", 0, position) + 1


def _lines(data: bytes, limit: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, without copying the whole file."""
    start, number, given = 0, 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        line = data[start:end].strip()
        start = end + 1
        if line:
            yield number, line
            given += 1
            if given == limit:
                return
