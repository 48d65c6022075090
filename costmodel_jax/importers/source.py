"""Reading log files: bytes to JSON values, with the file and line of whatever is wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from costmodel_jax.errors import InputError

__all__ = ["STDIN", "Options", "Problem", "Source"]

STDIN = "<stdin>"
BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that reading passed over.

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
      problems: what reading passed over, appended to while reading.
    """

    lenient: bool = False
    count_tokens: Callable[[str], int] | None = None
    problems: list[Problem] = dataclasses.field(default_factory=list)

    def skip(self, kind: str, error: InputError) -> None:
        """Raise ``error``, or note it when reading leniently."""
        if not self.lenient:
            raise error
        self.report(kind, error)

    def report(self, kind: str, error: InputError) -> None:
        """Note what no reader of this format needs, such as a record of an unknown shape, in either mode."""
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
    """One log file, decoded as asked.

    Line-based logs are streamed, so a file is never held whole unless it is one document or standard input. What
    detection looked at is kept only for the file looked at last: a folder may hold gigabytes of logs.
    """

    _last: ClassVar[Source | None] = None

    def __init__(self, path: str | Path, data: bytes | None = None) -> None:
        """Use ``data`` as the content where given (standard input); otherwise the file is read when needed."""
        self.path = str(path)
        self._given = data
        self._data: bytes | None = None
        self._head: list[Any] | None = None

    def __repr__(self) -> str:
        return f"Source({self.path!r})"

    @property
    def name(self) -> str:
        """File name without its folder."""
        return Path(self.path).name

    @property
    def data(self) -> bytes:
        """The whole content.

        Raises:
          InputError: when the file cannot be read.
        """
        if self.path == STDIN and self._given is None:
            self._given = sys.stdin.buffer.read()
        if self._given is not None:
            return self._given
        self._remember()
        if self._data is None:
            with self._open() as stream:
                self._data = stream.read()
        return self._data

    @property
    def empty(self) -> bool:
        """True if there is nothing but white space."""
        return next(self._lines(), None) is None

    @property
    def first(self) -> Any:
        """The first JSON value: of the document, or of the first line that holds one; ``None`` if there is neither.

        For detection only: errors are left to the importer that will read the file.
        """
        return next(iter(self.head(1)), None)

    def head(self, count: int = 20) -> list[Any]:
        """Up to ``count`` (at most 20) leading JSON values for detection; one, if the file is a single document."""
        self._remember()
        if self._head is None:
            self._head = self._leading(20)
        return self._head[:count]

    def document(self) -> Any:
        """The file as one JSON value.

        Raises:
          InputError: with the line of the fault.
        """
        data = self.data.removeprefix(BOM)
        try:
            return msgspec.json.decode(data)
        except RecursionError:
            raise InputError("nested too deeply to be a log", path=self.path) from None
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text; is this a log?", path=self.path) from None
        except msgspec.DecodeError as error:
            raise InputError(f"not valid JSON: {error}", path=self.path, line=_line(error, data)) from None

    def records(self, options: Options) -> Iterator[tuple[int, Any]]:
        """The JSON value of every line that is not blank, with its 1-based line number.

        Raises:
          InputError: at a line that is not JSON (lenient reading counts and skips it).
        """
        for number, line in self._lines():
            try:
                value = msgspec.json.decode(line)
            except RecursionError:
                options.skip("skipped_line", InputError("nested too deeply to be a log", path=self.path, line=number))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
                options.skip("skipped_line", InputError(f"not valid JSON: {reason}", path=self.path, line=number))
            else:
                yield number, value

    def values(self, options: Options) -> Iterator[tuple[int | None, Any]]:
        """The JSON values of a file that may be JSON Lines, one document, or an array of values.

        The line number is ``None`` for what comes out of a document that spans lines.

        Raises:
          InputError: at a line that is not JSON (lenient reading counts and skips it).
        """
        if self._one_value_a_line():
            for line, value in self.records(options):
                for part in value if isinstance(value, list) else (value,):
                    yield line, part
        else:
            value = self.document()
            for part in value if isinstance(value, list) else (value,):
                yield None, part

    def _one_value_a_line(self) -> bool:
        """False for a document that spans lines; true for lines, readable or not."""
        _, line = next(self._lines(), (1, b""))
        if _decodes(line) or line[:1] not in (b"{", b"["):
            return True
        return not _decodes(self.data.removeprefix(BOM))

    def _leading(self, count: int) -> list[Any]:
        values: list[Any] = []
        try:
            if not self._one_value_a_line():
                return [self.document()]
            for tried, (_, line) in enumerate(self._lines()):
                if len(values) == count or tried == 8 * count:
                    break
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    values.append(msgspec.json.decode(line))
        except InputError:
            return []
        return values

    def _open(self) -> io.BufferedIOBase:
        if self._given is not None or self.path == STDIN:
            return io.BytesIO(self.data)
        try:
            return Path(self.path).open("rb")
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=self.path) from None

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank, with their 1-based numbers."""
        with self._open() as stream:
            try:
                for number, line in enumerate(stream, start=1):
                    stripped = (line.removeprefix(BOM) if number == 1 else line).strip()
                    if stripped:
                        yield number, stripped
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", path=self.path) from None

    def _remember(self) -> None:
        last = Source._last
        if last is not self:
            if last is not None:
                last._data = last._head = None
            Source._last = self


def _decodes(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _line(error: Exception, data: bytes) -> int:
    """The line of a decode error that states a byte position."""
    words = str(error).replace(")", "").split()
    position = next((int(word) for word in reversed(words) if word.isdigit()), len(data.rstrip()))
    return data.count(b"\n", 0, position) + 1
