"""`Example`: what a record becomes once it is tokenised and cut, and how it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Int

__all__ = ["Example", "as_ids", "decode_example", "encode_example", "same_example"]

Ids = Int[np.ndarray, " _"]
EMPTY = np.zeros(0, np.int32)


class Example(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Token ids of one or more compaction boundaries and of what follows the last; all int32.

    The teacher reads ``prefix | histories | response``; see `Batch` for the student.

    Attributes:
      id: unique within what is prepared together.
      group: the record it was cut from; held-out splits never separate a group.
      prefix: persistent instructions; may be empty.
      histories: per boundary, oldest first, the tokens that it replaced and no boundary before it had.
      summaries: per boundary; empty where there are none (Stage I) or none yet.
      response: what follows the last boundary for teacher and student alike.
      judged: stretches (start, stop) of ``response`` whose prediction counts, in order and apart.
      request: what asks the actor for a summary when it follows prefix and history; empty in Stage I.
    """

    id: str
    group: str
    prefix: np.ndarray = EMPTY
    histories: tuple[np.ndarray, ...]
    summaries: tuple[np.ndarray, ...] = ()
    response: np.ndarray
    judged: tuple[tuple[int, int], ...]
    request: np.ndarray = EMPTY

    @property
    def wants_summaries(self) -> bool:
        """Whether it can only be used once it has summaries."""
        return bool(len(self.request)) and len(self.summaries) != len(self.histories)

    @property
    def judged_tokens(self) -> int:
        """How many response tokens count."""
        return sum(stop - start for start, stop in self.judged)


def as_ids(ids: Iterable[int]) -> Ids:
    """Token ids as int32."""
    return np.fromiter(ids, np.int32)


def join_ids(parts: Sequence[Ids]) -> Ids:
    """Stretches of token ids one after the other."""
    return np.concatenate(parts).astype(np.int32) if parts else EMPTY


def encode_example(example: Example) -> bytes:
    """MessagePack, ids as little-endian int32."""
    return _ENCODER.encode(example)


def decode_example(data: bytes) -> Example:
    """What `encode_example` wrote.

    Raises:
      msgspec.ValidationError: for anything else.
    """
    return _DECODER.decode(data)


def same_example(left: Example, right: Example) -> bool:
    """Whether two examples hold the same."""
    return encode_example(left) == encode_example(right)


def _encoded(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.astype("<i4").tobytes()
    raise NotImplementedError(type(value))


def _decoded(kind: type, value: Any) -> Any:
    if kind is np.ndarray and isinstance(value, bytes):
        return np.frombuffer(value, "<i4").astype(np.int32)
    raise NotImplementedError(kind)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encoded)
_DECODER = msgspec.msgpack.Decoder(Example, dec_hook=_decoded)
