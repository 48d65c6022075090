"""The members of an Inspect ``.eval`` archive: a zip of JSON documents, read in memory and within bounds."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import msgspec

from costmodel_jax.errors import InputError
from costmodel_jax.importers.source import Source

__all__ = ["is_archive", "samples"]

MEMBER_LIMIT = 2**29  # bytes of one document: half a gigabyte
TOTAL_LIMIT = 2**32  # bytes of all documents
READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
METHODS = {12: "bzip2", 14: "lzma", 93: "zstd"}


def is_archive(source: Source) -> bool:
    """True for a zip file that holds what Inspect puts into one; never raises."""
    try:
        if source.first is not None or source.data[:4] != b"PK\x03\x04":
            return False
        with zipfile.ZipFile(io.BytesIO(source.data)) as archive:
            names = archive.namelist()
    except (InputError, zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        names = []
    # A damaged archive is still meant to be one: reading it says what is wrong.
    known = any(name.startswith(("samples/", "_journal/")) or name == "header.json" for name in names)
    return known or source.name.endswith(".eval")


def samples(source: Source) -> Iterator[tuple[str, Any]]:
    """The documents below ``samples/`` with their names; of two members of one name the later counts.

    Raises:
      InputError: if the file is no zip, or a member is damaged, too large, compressed in a way that Python cannot
        read, or named as if it were outside the archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(source.data)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            total = 0
            for name, info in members.items():
                _check_name(name, source)
                if not name.startswith("samples/") or not name.endswith(".json"):
                    continue
                data = _bytes(archive, info, source)
                total += len(data)
                if total > TOTAL_LIMIT:
                    raise InputError(f"holds more than {TOTAL_LIMIT} bytes of samples; split it", path=source.path)
                yield PurePosixPath(name).stem, _decoded(data, source)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("not a readable zip archive: it is cut off or damaged", path=source.path) from None


def _check_name(name: str, source: Source) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[:1]:
        raise InputError("a member's name leads outside the archive; this is no log of Inspect", path=source.path)


def _bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, source: Source) -> bytes:
    if info.compress_type not in READABLE:
        method = METHODS.get(info.compress_type, f"method {info.compress_type}")
        raise InputError(
            f"a sample is compressed with {method}, which this Python's zipfile cannot read; "
            "convert the log with `inspect log convert --to json`",
            path=source.path,
        )
    with archive.open(info) as member:
        data = member.read(MEMBER_LIMIT + 1)
    if len(data) > MEMBER_LIMIT:
        raise InputError(f"a sample is larger than {MEMBER_LIMIT} bytes", path=source.path)
    return data


def _decoded(data: bytes, source: Source) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data)  # older logs hold NaN, which is Python's JSON only
    except (ValueError, RecursionError):
        raise InputError("a sample is not valid JSON", path=source.path) from None
