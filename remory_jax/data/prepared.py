"""A folder of prepared examples: ArrayRecord files, their lengths, and a manifest that says where all of it is from."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import grain
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordWriter

from costmodel_jax.errors import InputError
from remory_jax.data.buckets import Lengths
from remory_jax.data.examples import Example, Ids, as_ids, decode_example, encode_example
from remory_jax.data.generations import GENERATIONS, Generated, read_generations
from remory_jax.data.problems import Problems

__all__ = ["ExampleList", "Prepared", "file_entry", "write_prepared"]

FORMAT = 1
MANIFEST = "manifest.json"
INDEX = "index.parquet"
_CHUNK = 4096  # rows of the index held back while writing


class ExampleList:
    """Examples in memory, as `make_pipeline` takes them."""

    def __init__(self, examples: Iterable[Example]) -> None:
        self._examples = list(examples)

    @cached_property
    def lengths(self) -> Lengths:
        """Of all examples."""
        return Lengths.of(self._examples)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int, /) -> Example:
        return self._examples[index]

    def describe(self) -> dict[str, Any]:
        """Count and hash of the examples."""
        digest = hashlib.sha256()
        for example in self._examples:
            digest.update(encode_example(example))
        return {"examples": len(self._examples), "sha256": digest.hexdigest()}


class Prepared:
    """A prepared folder, read where needed.

    What `launch.prepare_data summaries` wrote beside the examples since is joined to them.

    Args:
      folder: of `write_prepared`.

    Raises:
      InputError: no such folder, another format, or a file that is not the one the manifest lists.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _manifest(self.folder)
        for entry in self.manifest["files"]:
            found = self.folder / entry["name"]
            if not found.is_file() or found.stat().st_size != entry["size"]:
                raise InputError(
                    f"is missing or not {entry['size']} bytes, as {MANIFEST} says; prepare again", path=found
                )
        names = [entry["name"] for entry in self.manifest["files"] if entry["name"].endswith(".array_record")]
        self._records = grain.sources.ArrayRecordDataSource([str(self.folder / name) for name in names])
        self._generated: dict[str, Generated] = read_generations(self.folder / GENERATIONS)

    def __len__(self) -> int:
        return int(self.manifest["examples"])

    def __getitem__(self, index: int, /) -> Example:
        example = decode_example(self._records[index])
        generated = self._generated.get(example.id)
        return example if generated is None else generated.join(example)

    def longer_summary(self, index: int) -> Ids | None:
        """The longer last summary that was generated to compare with, if there is one."""
        generated = self._generated.get(self.lengths.ids[index])
        return None if generated is None or generated.longer is None else as_ids(generated.longer.ids)

    @cached_property
    def lengths(self) -> Lengths:
        """Of all examples, from the index file."""
        columns = pq.read_table(self.folder / INDEX).to_pydict()
        if self._generated:
            for i, name in enumerate(columns["id"]):
                if name in self._generated:
                    example = self[i]
                    columns["summaries"][i] = [len(summary) for summary in example.summaries]
                    columns["response"][i] = len(example.response)
                    columns["judged"][i] = example.judged_tokens
        names = ("id", "group", "prefix", "histories", "summaries", "response", "judged", "asked")
        return Lengths.of_columns(*(columns[name] for name in names))

    def describe(self) -> dict[str, Any]:
        """The files with their hashes, and those of the template; small enough for a checkpoint."""
        files = list(self.manifest["files"])
        if self._generated:
            files.append(file_entry(self.folder / GENERATIONS))
        return {"examples": len(self), "files": files, "rendering": self.manifest.get("rendering")}


def write_prepared(
    folder: str | Path,
    examples: Iterable[Example],
    *,
    problems: Problems,
    rendering: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    sources: Sequence[Mapping[str, Any]] = (),
    shard: int = 50_000,
) -> dict[str, Any]:
    """Write examples; the folder appears whole or not at all.

    Args:
      folder: must not exist.
      problems: whose counts go into the manifest once all examples were made.
      rendering: hashes of tokenizer and template (`Renderer.describe`).
      settings: how records were cut.
      sources: entries of the files that were read (`file_entry`), or other descriptions.
      shard: examples of a file.

    Returns:
      The manifest.

    Raises:
      InputError: the folder exists, nothing came out, or two examples have one id.
    """
    folder = Path(folder)
    if folder.exists():
        raise InputError("exists already; name another folder or delete this one", path=folder)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir(parents=True)
    try:
        names = _write_examples(partial, examples, shard)
        count = pq.read_metadata(partial / INDEX).num_rows
        if not count:
            reasons = ", ".join(f"{n} {reason}" for reason, n in problems.summary().items()) or "no records at all"
            raise InputError(f"no example came out ({reasons}); nothing was written", path=folder)
        manifest = {
            "format": FORMAT,
            "examples": count,
            "files": [file_entry(partial / name) for name in names],
            "sources": list(sources),
            "rendering": dict(rendering or {}),
            "settings": dict(settings or {}),
            "problems": problems.summary(),
        }
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        (partial / MANIFEST).write_bytes(encoded + b"\n")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    written: dict[str, Any] = msgspec.json.decode(encoded)
    return written


def file_entry(path: str | Path) -> dict[str, Any]:
    """Name, size and SHA-256 of a file."""
    path = Path(path)
    try:
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return {"name": path.name, "size": path.stat().st_size, "sha256": digest}
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error


def _write_examples(folder: Path, examples: Iterable[Example], shard: int) -> list[str]:
    names: list[str] = []
    seen: set[str] = set()
    rows: list[dict[str, Any]] = []
    writer: Any = None
    try:
        with pq.ParquetWriter(folder / INDEX, _SCHEMA) as index:
            for count, example in enumerate(examples):
                if example.id in seen:
                    raise InputError(f"two examples have the id {example.id!r}; give records ids of their own")
                seen.add(example.id)
                if count % shard == 0:
                    if writer is not None:
                        writer.close()
                    names.append(f"examples-{len(names):05d}.array_record")
                    writer = ArrayRecordWriter(str(folder / names[-1]), "group_size:1")
                writer.write(encode_example(example))
                rows.append(_row(example))
                if len(rows) == _CHUNK:
                    index.write_table(pa.Table.from_pylist(rows, _SCHEMA))
                    rows = []
            index.write_table(pa.Table.from_pylist(rows, _SCHEMA))
    finally:
        if writer is not None and writer.is_open():
            writer.close()
    return [*names, INDEX]


_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("prefix", pa.int32()),
        ("histories", pa.list_(pa.int32())),
        ("summaries", pa.list_(pa.int32())),
        ("response", pa.int32()),
        ("judged", pa.int32()),
        ("asked", pa.bool_()),
    ]
)


def _row(example: Example) -> dict[str, Any]:
    return {
        "id": example.id,
        "group": example.group,
        "prefix": len(example.prefix),
        "histories": [len(history) for history in example.histories],
        "summaries": [len(summary) for summary in example.summaries],
        "response": len(example.response),
        "judged": example.judged_tokens,
        "asked": bool(len(example.request)) or bool(example.summaries),
    }


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes())
    except OSError:
        raise InputError(
            f"holds no {MANIFEST}; make a prepared folder with `python -m launch.prepare_data`", path=folder
        ) from None
    except msgspec.DecodeError as error:
        raise InputError(f"is not JSON ({error})", path=path) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise InputError(f"format = {found}; this version reads {FORMAT}: prepare the data again", path=path)
    return manifest
