"""TFDS builders: local files to ArrayRecord, problems in the metadata, nothing downloaded and no TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from toy import lines

from costmodel_jax import InputError
from remory_jax.data import Passage, Trajectory
from remory_jax.data.builders import (
    AgentTrajectories,
    MMFineReason,
    OpenPerfectBlend,
    conversation_of,
    passage_of,
    trajectory_of,
)

CHAT = {"conversations": [{"from": "human", "value": "h\u00e9"}, {"from": "gpt", "value": "yo"}], "id": 3}
RUN = {
    "id": "r",
    "calls": [{"input": [{"kind": "user", "text": "do"}], "output": [{"kind": "assistant", "text": "ok"}]}],
}


def test_passages(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [{"question": "q", "answer": "a"}, {"question": ""}, "{", {"text": "t"}])
    found = tfds.data_source(
        "mm_fine_reason", split="train", data_dir=tmp_path / "tfds", builder_kwargs={"files": [file]}
    )
    assert [passage_of(row) for row in found] == [Passage(id="a:1", text="q\n\na"), Passage(id="a:4", text="t")]
    metadata = MMFineReason(files=[file], data_dir=tmp_path / "tfds").info.metadata
    assert metadata["problems"] == {"empty_text": 1, "unreadable": 1}
    assert metadata["first_problems"][0].startswith(f"{file}:2: ")
    with pytest.raises(InputError, match=r"a\.jsonl:2: .*\[empty_text\]"):
        MMFineReason(files=[file], data_dir=tmp_path / "other", on_problem="fatal").download_and_prepare()


def test_conversations_and_trajectories(tmp_path: Path) -> None:
    chat = lines(tmp_path / "chat.jsonl", [CHAT])
    builder = OpenPerfectBlend(files=[chat], data_dir=tmp_path / "tfds")
    builder.download_and_prepare()
    (conversation,) = map(conversation_of, builder.as_data_source(split="train"))
    assert conversation.id == "chat:1:3"
    assert [(turn.role, turn.text) for turn in conversation.turns] == [("user", "h\u00e9"), ("assistant", "yo")]

    runs = lines(tmp_path / "runs.jsonl", [RUN, {"messages": [{"role": "assistant", "content": "hi"}]}])
    builder = AgentTrajectories(files=[runs], data_dir=tmp_path / "tfds")
    builder.download_and_prepare()
    first, second = map(trajectory_of, builder.as_data_source(split="train"))
    assert isinstance(first, Trajectory)
    assert first == Trajectory.from_dict(json.loads(json.dumps(RUN)))
    assert second.id == "runs:2"


def test_other_files_are_another_dataset(tmp_path: Path) -> None:
    folders = set()
    for number in range(2):
        file = lines(tmp_path / "a.jsonl", [{"text": f"words {number}"}])
        builder = MMFineReason(files=[file], data_dir=tmp_path / "tfds")
        builder.download_and_prepare()
        assert passage_of(builder.as_data_source(split="train")[0]).text == f"words {number}"
        folders.add(builder.data_path)
    assert len(folders) == 2


def test_tensorflow_is_never_imported(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [{"text": "words"}])
    program = (
        "import sys; from remory_jax.data.builders import MMFineReason\n"
        f"builder = MMFineReason(files=[{str(file)!r}], data_dir={str(tmp_path / 'tfds')!r})\n"
        "builder.download_and_prepare(); assert len(builder.as_data_source(split='train')) == 1\n"
        "print([name for name in ('tensorflow', 'torch', 'requests') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
