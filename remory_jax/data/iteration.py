"""The iterator of batches: where it stands is one number, the same in every process."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any

import grain
import jax
import msgspec

from costmodel_jax.errors import CostModelError
from remory_jax.data.batch import Batch

__all__ = ["BatchIterator", "Batches"]

_FILE = "batches.json"


class Batches(grain.IterDataset[Batch]):
    """Batches of this process in a fixed order, to be iterated; see `make_pipeline` and `batches_of`.

    Attributes:
      identity: what decides the order and content of global batches, JSON-able. The number of processes is no part of
        it: batch i is the same global batch whoever loads it.
    """

    def __init__(
        self, batches: grain.MapDataset[Batch], identity: Mapping[str, Any], *, threads: int = 1, prefetch: int = 2
    ) -> None:
        self.identity: dict[str, Any] = json.loads(msgspec.json.encode(dict(identity), order="sorted"))
        options = grain.ReadOptions(
            num_threads=threads if prefetch else 0, prefetch_buffer_size=prefetch if threads else 0
        )
        super().__init__(batches.to_iter_dataset(options))

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self._parent.__iter__(), self.identity)


class BatchIterator(grain.DatasetIterator[Batch]):
    """Iterates `Batches`; saved and restored by Orbax as it is.

    Its state is the number of global batches given out. So it can be restored by any number of processes: each goes on
    with its part of the next global batch.

    Attributes:
      any_process_count: whether another number of processes can go on from a saved position.
    """

    any_process_count = True

    def __init__(self, parent: grain.DatasetIterator[Batch], identity: Mapping[str, Any]) -> None:
        super().__init__(parent)
        self._identity = dict(identity)

    def __next__(self) -> Batch:
        batch: Batch = next(self._parent)
        return batch

    def get_state(self) -> dict[str, Any]:
        """JSON-able: ``next_batch`` and the identity of the data."""
        return {"next_batch": int(self._parent.get_state()["next_index"]), "identity": self._identity}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken, forwards or back.

        Raises:
          CostModelError: the state is of other data, of another seed, batch size or buckets; says which.
        """
        given = state.get("identity")
        if not isinstance(given, Mapping) or "next_batch" not in state:
            raise CostModelError("this is no state of a BatchIterator; it holds `next_batch` and `identity`")
        other = sorted(
            key for key in {*given, *self._identity} if given.get(key, None) != self._identity.get(key, None)
        )
        if other:
            changes = "; ".join(
                f"{key} was {_shown(given.get(key))}, is {_shown(self._identity.get(key))}" for key in other
            )
            raise CostModelError(
                f"the saved position is one of other batches ({changes}). Resume with what it was saved with, or start "
                "the data anew by not restoring the iterator"
            )
        self._parent.set_state({"next_index": int(state["next_batch"])})

    # What Orbax calls. Grain's own writes a file per process and so ties a checkpoint to the number of processes.

    async def save(self, directory: Any) -> Awaitable[None]:
        """Write the state as of now, by process 0, when Orbax gets to it."""
        state = json.dumps(self.get_state(), indent=1, sort_keys=True)

        async def write() -> None:
            path = await directory.await_creation()
            if jax.process_index() == 0:
                await asyncio.to_thread((path / _FILE).write_text, state)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Take over the saved state."""

        async def read() -> None:
            path = directory / _FILE
            if not await asyncio.to_thread(path.exists):
                raise CostModelError(f"{path}: the checkpoint holds no position in the data")
            self.set_state(json.loads(await asyncio.to_thread(path.read_text)))

        return read()

    def __str__(self) -> str:
        return "BatchIterator"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."
