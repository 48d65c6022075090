"""TFDS builders of the three sources, built from local files into ArrayRecord; nothing is ever downloaded.

Example:
  >>> import tensorflow_datasets as tfds
  >>> from remory_jax.data import builders
  >>> passages = tfds.data_source(  # doctest: +SKIP
  ...     "mm_fine_reason", split="train", data_dir="out/tfds", builder_kwargs={"files": ["data/mmfinereason"]}
  ... )
  >>> builders.passage_of(passages[0])  # doctest: +SKIP
  Passage(id='...', text='...')
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import tensorflow_datasets as tfds

from remory_jax.data.problems import OnProblem, Problems
from remory_jax.data.readers import data_files, read_conversations, read_passages, read_trajectories
from remory_jax.data.records import Conversation, Passage, Trajectory, Turn

__all__ = [
    "AgentTrajectories",
    "MMFineReason",
    "OpenPerfectBlend",
    "conversation_of",
    "passage_of",
    "trajectory_of",
]

_EDGE = 1 << 20  # bytes at either end of a file that tell it from others


class _LocalBuilder(tfds.core.GeneratorBasedBuilder, abc.ABC):
    """Records of local files as a TFDS dataset with one split, ``train``.

    What was passed over is in ``builder.info.metadata``: counts by reason and the first problems with file and row.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}
    features: ClassVar[dict[str, Any]]

    def __init__(
        self,
        *,
        files: Sequence[str | Path],
        on_problem: OnProblem = "skip",
        file_format: str = "array_record",
        **more: Any,
    ) -> None:
        """Name the files.

        Args:
          files: Parquet or JSON Lines files, or folders of them. Other files make another dataset: their names, sizes
            and edges (1 MiB) name its folder.
          on_problem: what a malformed record does.
          file_format: of what is built.
          more: as for any builder, such as ``data_dir``.
        """
        self._files = data_files(files)
        self._problems = Problems(on_problem)
        more.setdefault("config", tfds.core.BuilderConfig(name=f"files-{_fingerprint(self._files)}"))
        super().__init__(file_format=file_format, **more)

    def _info(self) -> Any:
        self._metadata = tfds.core.MetadataDict()
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            features=tfds.features.FeaturesDict(self.features),
            metadata=self._metadata,
            disable_shuffling=True,  # the order of the files; pipelines shuffle
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # nothing is downloaded
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(self._rows())
        self._metadata["problems"] = self._problems.summary()
        self._metadata["first_problems"] = [str(problem) for problem in self._problems.list]

    @abc.abstractmethod
    def _rows(self) -> Iterator[dict[str, Any]]:
        """Fields of each record."""


class MMFineReason(_LocalBuilder):
    """MMFineReason-Full-2.3M: question, reasoning and answer as one text; images are left out."""

    features: ClassVar[dict[str, Any]] = {"id": tfds.features.Text(), "text": tfds.features.Text()}

    def _rows(self) -> Iterator[dict[str, Any]]:
        for record in read_passages(self._files, self._problems):
            yield {"id": record.id, "text": record.text}


class OpenPerfectBlend(_LocalBuilder):
    """Open-PerfectBlend and other rows of ``conversations: [{from, value}]`` or chat messages."""

    features: ClassVar[dict[str, Any]] = {
        "id": tfds.features.Text(),
        "roles": tfds.features.Sequence(tfds.features.Text()),
        "texts": tfds.features.Sequence(tfds.features.Text()),
        "more": tfds.features.Text(),
    }

    def _rows(self) -> Iterator[dict[str, Any]]:
        for record in read_conversations(self._files, self._problems):
            yield {
                "id": record.id,
                "roles": [turn.role for turn in record.turns],
                "texts": [turn.text for turn in record.turns],
                "more": msgspec.json.encode([record.tools, [turn.extra for turn in record.turns]]).decode(),
            }


class AgentTrajectories(_LocalBuilder):
    """Agent trajectories: ``agent-run/1`` whose segments carry token ids or text, or chat messages."""

    features: ClassVar[dict[str, Any]] = {
        "id": tfds.features.Text(),
        "kind": tfds.features.Text(),
        "json": tfds.features.Text(),
    }

    def _rows(self) -> Iterator[dict[str, Any]]:
        for record in read_trajectories(self._files, self._problems):
            kind = "trajectory" if isinstance(record, Trajectory) else "conversation"
            value = record.to_dict() if isinstance(record, Trajectory) else record
            yield {"id": record.id, "kind": kind, "json": msgspec.json.encode(value).decode()}


def passage_of(row: dict[str, Any]) -> Passage:
    """The record of an element of `MMFineReason`."""
    return Passage(id=_text(row["id"]), text=_text(row["text"]))


def conversation_of(row: dict[str, Any]) -> Conversation:
    """The record of an element of `OpenPerfectBlend`."""
    tools, extras = msgspec.json.decode(_text(row["more"]))
    turns = [
        {"role": _text(role), "text": _text(text), "extra": extra}
        for role, text, extra in zip(row["roles"], row["texts"], extras, strict=True)
    ]
    return Conversation(id=_text(row["id"]), turns=tuple(msgspec.convert(turns, list[Turn])), tools=tuple(tools))


def trajectory_of(row: dict[str, Any]) -> Trajectory | Conversation:
    """The record of an element of `AgentTrajectories`."""
    if _text(row["kind"]) == "conversation":
        return msgspec.json.decode(_text(row["json"]), type=Conversation)
    return Trajectory.from_dict(msgspec.json.decode(_text(row["json"])))


def _text(value: Any) -> str:
    """TFDS gives text back as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _fingerprint(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(_EDGE))
            opened.seek(max(0, size - _EDGE))
            digest.update(opened.read(_EDGE))
    return digest.hexdigest()[:16]
