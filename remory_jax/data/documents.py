"""Plain text as passages: text files, and the documentation that every Python carries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from remory_jax.data.problems import Problems
from remory_jax.data.records import Passage

__all__ = ["python_topics", "read_texts"]

_RULE = re.compile(r"^[*=\-~^]{3,}$", re.MULTILINE)  # underlines of headings
_BLANK = re.compile(r"\n{3,}")


def python_topics() -> Iterator[Passage]:
    """The documentation topics of Python (``help("EXCEPTIONS")``): 79 texts, 465,000 characters of real English.

    They are part of the standard library of the running Python, so another minor version has other texts.
    """
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield Passage(id=f"python:{name}", text=_BLANK.sub("\n\n", _RULE.sub("", topics[name])).strip())


def read_texts(paths: Sequence[str | Path], problems: Problems) -> Iterator[Passage]:
    """One passage per text file (``.txt``, ``.md``, ``.rst`` of folders, or any file that is named)."""
    for path in map(Path, paths):
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md", ".rst"))
            if not files:
                problems.report("unreadable", "the folder holds no .txt, .md or .rst files", path=path)
        else:
            files = [path]
        for file in files:
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            try:
                text = file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                problems.report("unreadable", f"cannot be read as UTF-8 text ({type(error).__name__})", path=file)
                continue
            if text:
                yield Passage(id=name, text=text)
            else:
                problems.report("empty_text", "the file holds nothing but white space", path=file)
