"""Checkpoints of a run: saved without stopping it, trusted only when complete, restored onto any mesh.

All use of Orbax is in this file. A checkpoint is the folder ``<run>/<step>`` that Orbax moves into place when it is
written, and counts only once `commit` has added its record. So a run killed at any moment leaves the one before intact.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from costmodel_jax.errors import InputError
from remory_jax.training import commit
from remory_jax.training.commit import Commit

__all__ = ["CheckpointError", "Checkpoints", "Restored"]

_LOG = logging.getLogger(__name__)
_TEMPORARY = "*.orbax-checkpoint-tmp"
_FULL = {errno.ENOSPC: "No space left", errno.EDQUOT: "Disk quota exceeded", errno.EFBIG: "File too large"}
_SHOWN = 8  # differences in one message


class CheckpointError(RuntimeError):
    """A checkpoint could not be written. The ones before it are untouched."""


class Restored(NamedTuple):
    """A checkpoint read back."""

    step: int
    state: Any
    metadata: dict[str, Any]


class _Choice(msgspec.Struct, frozen=True):
    """What process 0 found in the folder, for all."""

    commit: Commit | None = None
    bad: tuple[int, ...] = ()
    error: str | None = None


class Checkpoints:
    """The checkpoints of one run. On pods every process makes one and calls the same methods in the same order.

    Args:
      folder: where they lie; seen by every process.
      keep: how many are kept, the newest first. At least 2, so that one is left when the newest turns out damaged.

    Raises:
      ValueError: ``keep`` below 2, or a folder that is a URL.
    """

    def __init__(self, folder: str | PathLike[str], *, keep: int = 3) -> None:
        if keep < 2:
            raise ValueError(f"keep = {keep}: keep 2 or more, so that one is left when the newest is damaged")
        if "://" in str(folder):
            raise ValueError(
                f"folder = {folder}: a path of the file system is needed; mount the bucket and give its path"
            )
        self.folder = Path(folder).absolute()
        self.keep = keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._bad: set[int] = set()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, oldest first. Whether they are intact only reading them tells."""
        return sorted(step for step in self._found() if (self._path(step) / commit.RECORD).is_file())

    def save(self, step: int, state: Any, iterator: Any = None, metadata: Mapping[str, Any] | None = None) -> None:
        """Begin to save. Returns once the state has left the devices, so the next step may donate it.

        Waits for the save before it, whose error, if any, is raised here.

        Args:
          step: the step just done.
          state: pytree of arrays; PRNG keys are arrays too.
          iterator: a Grain iterator, or anything with the ``save`` and ``load`` of Orbax's StatefulCheckpointable.
          metadata: what JSON or msgspec can hold, such as config, data manifest and the actor's fingerprint.

        Raises:
          CheckpointError: this or the previous checkpoint could not be written, for example for want of space.
          InputError: the folder holds this step or a later one, which this run did not pass over on restoring.
        """
        self.wait()
        leaves = commit.named(state)
        record = Commit(
            step=step,
            processes=jax.process_count(),
            leaves={name: commit.kind(leaf) for name, leaf in leaves.items()},
            metadata=commit.plain(metadata),
        )
        items: dict[str, Any] = {"state": {name: leaf for name, leaf in leaves.items() if leaf.size}}
        if iterator is not None:
            items["iterator"] = iterator
        self._agree(lambda: self._make_room(step))
        try:
            response = ocp.save_checkpointables_async(self._path(step), items)
        except OSError as error:
            raise self._explain(step, error) from error
        self._pending = self._thread.submit(self._finish, record, response)

    def check(self) -> None:
        """Raise the error of a save that has failed in the meantime; never waits."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until what was begun is finished.

        Raises:
          CheckpointError: it could not be written; raised once.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, then end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """Step and metadata of the newest intact checkpoint, or None where no save was ever finished.

        Half-written and damaged ones are passed over, each with a warning in the log that says why.

        Raises:
          InputError: checkpoints were finished here and not one is intact: starting over must be a decision.
        """
        self.wait()
        choice = self._agree(self._choose)
        self._bad |= set(choice.bad)
        return None if choice.commit is None else (choice.commit.step, choice.commit.metadata)

    def restore_latest(
        self,
        abstract_state: Any,
        iterator: Any = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        allow: Collection[str] = (),
        partial: bool = False,
    ) -> Restored | None:
        """Read the newest intact checkpoint, as `latest` finds it, or return None where there is none.

        Args:
          abstract_state: the state's tree of `jax.ShapeDtypeStruct` with the shardings to restore to, on any mesh;
            without sharding an array goes to the first local device.
          iterator: the iterator to set to its place; freshly made, from the same data.
          metadata: what this run would store. Entries it shares with the checkpoint must agree.
          allow: paths into metadata that may differ, such as ``config.optimizer.peak_lr`` or ``actor``.
          partial: take only the arrays that ``abstract_state`` names, such as parameters without optimizer.

        Raises:
          InputError: metadata, arrays or the number of processes differ; names each difference.
        """
        found = self.latest()
        if found is None:
            return None
        return self.restore(found[0], abstract_state, iterator, metadata=metadata, allow=allow, partial=partial)

    def restore(
        self,
        step: int,
        abstract_state: Any,
        iterator: Any = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        allow: Collection[str] = (),
        partial: bool = False,
    ) -> Restored:
        """Read the checkpoint of one step; arguments and errors as `restore_latest`, its files are not hashed."""
        self.wait()
        path = self._path(step)
        try:
            record = commit.read(path)
        except commit.DamagedError as error:
            raise InputError(f"no checkpoint of step {step}: {error}; there are {self.steps()}", path=path) from error
        _refuse(path, record, metadata, allow)
        if iterator is not None and record.processes != jax.process_count():
            raise InputError(
                f"was saved by {record.processes} processes, each with its place in the data, and this run has "
                f"{jax.process_count()}. Run as many, or pass iterator=None and start the data anew",
                path=path,
            )
        abstract = commit.named(abstract_state)
        unfit = commit.misfits(record, abstract, partial)
        if unfit:
            raise InputError(f"does not fit this model or optimizer: {_some(unfit)}", path=path)
        wanted = {name: _placed(leaf) for name, leaf in abstract.items()}
        items: dict[str, Any] = {"state": {name: leaf for name, leaf in wanted.items() if leaf.size}}
        if iterator is not None:
            items["iterator"] = iterator
        context = ocp.Context()
        context.pytree.loading.partial_load = partial
        with context:
            read = ocp.load_checkpointables(path, items)["state"]
        leaves = [
            read[name] if leaf.size else jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)
            for name, leaf in wanted.items()
        ]
        state = jax.tree.unflatten(jax.tree.structure(abstract_state), leaves)
        return Restored(step, state, record.metadata)

    def _path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def _found(self) -> list[int]:
        """Steps of all folders, finished or not."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit() and path.is_dir())

    def _choose(self) -> _Choice:
        """On process 0: the newest intact checkpoint."""
        for path in sorted(self.folder.glob(_TEMPORARY)):
            _LOG.warning("checkpoint %s passed over: half-written, the run ended during the save", path)
        bad: list[int] = []
        damaged: list[str] = []
        for step in reversed(self._found()):
            path = self._path(step)
            why = commit.damage(path)
            if why is None:
                return _Choice(commit=commit.read(path), bad=tuple(bad))
            _LOG.warning("checkpoint %s passed over: %s", path, why)
            bad.append(step)
            if (path / commit.RECORD).is_file():
                damaged.append(f"{path.name}: {why}")
        if not damaged:
            return _Choice(bad=tuple(bad))
        lost = "; ".join(damaged)
        return _Choice(
            error=f"{self.folder}: no checkpoint is intact ({lost}). Bring one back, or remove the folder to start over"
        )

    def _make_room(self, step: int) -> _Choice:
        """On process 0: remove what a killed save left, refuse to write over what another run may need."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(_TEMPORARY):
            shutil.rmtree(path)
        later = [found for found in self.steps() if found >= step and found not in self._bad]
        if later:
            return _Choice(
                error=f"{self.folder} holds checkpoints of steps {later} and step {step} is to be saved; restore from "
                "it to go on, or give another folder"
            )
        if self._path(step).exists():
            shutil.rmtree(self._path(step))
        return _Choice()

    def _agree(self, choose: Callable[[], _Choice]) -> _Choice:
        """Process 0's choice on all processes, so that all fail or go on together."""
        choice = _Choice()
        if jax.process_index() == 0:
            try:
                choice = choose()
            except OSError as error:
                choice = _Choice(error=f"{self.folder}: {error}")
        if jax.process_count() > 1:
            data = np.frombuffer(msgspec.json.encode(choice), np.uint8)
            length = int(multihost_utils.broadcast_one_to_all(np.asarray(data.size, np.int32)))
            sent = data if jax.process_index() == 0 else np.zeros(length, np.uint8)
            choice = msgspec.json.decode(np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes(), type=_Choice)
        if choice.error is not None:
            raise InputError(choice.error)
        return choice

    def _finish(self, record: Commit, response: Any) -> None:
        """In the thread: wait for the files, write the record, remove the oldest."""
        try:
            response.result()
            if jax.process_index() == 0:
                commit.write(self._path(record.step), record)
        except Exception as error:  # Orbax and TensorStore raise many kinds, and each means the same here
            raise self._explain(record.step, error) from error
        if jax.process_index() == 0:
            self._prune(record.step)

    def _prune(self, newest: int) -> None:
        self._bad.discard(newest)
        kept = [step for step in self.steps() if step not in self._bad][-self.keep :]
        for step in self._found():
            if step not in kept:
                path = self._path(step)
                (path / commit.RECORD).unlink(missing_ok=True)  # first: half removed must not look finished
                shutil.rmtree(path, ignore_errors=True)

    def _explain(self, step: int, error: Exception) -> CheckpointError:
        """The error a person reads; frees what the attempt had taken."""
        text = str(error)
        full = any(getattr(error, "errno", None) == code or words in text for code, words in _FULL.items())
        if jax.process_index() == 0:
            for path in self.folder.glob(_TEMPORARY):
                shutil.rmtree(path, ignore_errors=True)
        steps = [good for good in self.steps() if good not in self._bad]
        kept = f"the last good one, of step {steps[-1]}, is untouched" if steps else "there is none before it"
        mend = f"Free space in {self.folder}, then run the same command to go on from there. " if full else ""
        return CheckpointError(
            f"the checkpoint of step {step} was not saved, {kept}. {mend}"
            f"Cause: {text.splitlines()[0][:500] if text else error!r}"
        )


def _refuse(path: Path, record: Commit, metadata: Mapping[str, Any] | None, allow: Collection[str]) -> None:
    current = commit.plain(metadata)
    saved = {key: value for key, value in record.metadata.items() if key in current}
    found = commit.differences(saved, current, allow)
    if found:
        raise InputError(
            f"belongs to another run: {_some(found)}. Give another folder, or allow these by name",
            path=path,
        )


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _some(found: list[str]) -> str:
    rest = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
