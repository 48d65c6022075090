"""API requests that continue each other: what each one adds to its conversation, and what it leaves out.

An API is stateless, so every request shows the whole history its client sends. What it leaves out, replaces or adds is
read off by comparing it with what the conversation held before. Where a log keeps only the newest messages, a prompt
that has more tokens than the request has characters gives that away.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import itertools
from collections.abc import Hashable, Sequence

from costmodel_jax.importers.assemble import Observation, Piece, Removal
from costmodel_jax.importers.fields import Place
from costmodel_jax.importers.history import Cause
from costmodel_jax.importers.threads import Thread
from costmodel_jax.schema import Usage

__all__ = ["Conversation", "Exchange", "Message"]

SYSTEM = ("system", "tools")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a request.

    Attributes:
      mark: a hash of its role and content.
      role: of the sender: ``system``, ``tools``, ``user``, ``assistant`` or ``tool``.
      pieces: what it adds to the context.
    """

    mark: str
    role: str
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Characters."""
        return sum(piece.size for piece in self.pieces)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request with its response.

    Attributes:
      place: where it stands.
      key: what makes two records the same call.
      messages: of the request, in order, system prompt and tools first.
      output: pieces of the response.
      usage: as measured; ``None`` where the response has none.
      model, time: of the response.
      identity: of the response; ``previous``: of the response whose conversation the server goes on with.
      hides_reasoning: the API never sends earlier reasoning again.
      cleared: tokens of tool results that the server cleared from this request, counted from its beginning.
      notes: what a reader of its numbers must know.
    """

    place: Place
    key: Hashable
    messages: tuple[Message, ...]
    output: tuple[Piece, ...]
    usage: Usage | None
    model: str | None = None
    time: float | None = None
    identity: str | None = None
    previous: str | None = None
    hides_reasoning: bool = False
    cleared: int = 0
    notes: tuple[str, ...] = ()


@dataclasses.dataclass
class _Known:
    """A message of a conversation; the mark of a response is not known until a request shows it again."""

    mark: str | None
    key: str
    role: str
    identity: str | None = None


class Conversation:
    """The exchanges that continue each other."""

    def __init__(self, first: Exchange) -> None:
        self.first = self.last = first
        self.known: list[_Known] = []
        self.thread = Thread(id="", path=first.place.path)
        self.models: collections.Counter[str] = collections.Counter()
        self.named = 0

    def continued_by(self, exchange: Exchange) -> bool:
        """Whether a request holds the latest message sent, or begins with the first request, and is not just that."""
        marks = [message.mark for message in exchange.messages]
        first = [message.mark for message in self.first.messages]
        latest = self.last.messages[-1].mark if self.last.messages else None
        return marks != first and (latest in marks or (bool(first) and marks[: len(first)] == first))

    def hides(self, exchange: Exchange) -> bool:
        """Whether a request must be a part of this conversation although its text does not show it."""
        if exchange.usage is None or self.first.usage is None or exchange.model != self.first.model:
            return False
        grown = (exchange.usage.prompt_tokens or 0) - (self.first.usage.prompt_tokens or 0)
        return grown > sum(message.size for message in exchange.messages if message.role not in SYSTEM)

    def add(self, exchange: Exchange, *, whole: bool) -> None:
        """Continue with an exchange whose request shows the whole history, or only what is new."""
        removed, fresh, resends = self._compared(exchange) if whole else self._appended(exchange)
        inputs: list[Piece] = []
        for message in fresh:
            key = self._key()
            self.known.append(_Known(message.mark, key, message.role))
            inputs += [dataclasses.replace(piece, key=key) for piece in message.pieces]
        reply = self._key()
        self.known.append(_Known(None, reply, "assistant", exchange.identity))
        cleared = exchange.cleared - (self.last.cleared if self.thread.keys else 0)
        self.thread.notes += [f"call {len(self.thread.keys)}: {note}" for note in exchange.notes]
        self.thread.keys.append(exchange.key)
        self.thread.observations.append(
            Observation(
                usage=exchange.usage,
                input=tuple(inputs),
                output=tuple(dataclasses.replace(piece, key=reply) for piece in exchange.output),
                time=exchange.time,
                removed=removed,
                resends_reasoning=resends,
                cleared=max(0, cleared),
            )
        )
        self.models.update([exchange.model] if exchange.model else [])
        self.last = exchange

    def _key(self) -> str:
        self.named += 1
        return f"message {self.named}"

    def _appended(self, exchange: Exchange) -> tuple[dict[str, Removal], list[Message], bool]:
        """A request that shows only what is new, after the response it names or else the latest one."""
        removed: dict[str, Removal] = {}
        places = [i for i, known in enumerate(self.known) if known.identity == exchange.previous is not None]
        if places:
            removed = {known.key: Removal(cause="rewind") for known in self.known[places[-1] + 1 :]}
            del self.known[places[-1] + 1 :]
        marks = {known.mark for known in self.known if known.role in SYSTEM}
        fresh = [message for message in exchange.messages if message.mark not in marks]
        user_turn = any(message.role == "user" for message in fresh)
        return removed, fresh, not (exchange.hides_reasoning and user_turn)

    def _compared(self, exchange: Exchange) -> tuple[dict[str, Removal], list[Message], bool]:
        """A request that shows the whole history: what left it, what is new, and whether reasoning came with it."""
        messages = exchange.messages
        self._recognise(messages)
        common = self._common(messages)
        # Most histories only append: nothing old is left here, and the comparison has nothing to do.
        old, new = self.known[common:], list(messages[common:])
        kept, fresh = self.known[:common], list[Message]()
        removed: dict[str, Removal] = {}
        marks = [known.mark or known.key for known in old], [message.mark for message in new]
        for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *marks, autojunk=False).get_opcodes():
            gone, came = old[i1:i2], new[j1:j2]
            if kind == "equal":
                kept += gone
            elif i2 < len(old) and [known.role for known in gone] == [message.role for message in came]:
                for known, message in zip(gone, came, strict=True):
                    cause: Cause = "clear_tool_results" if known.role == "tool" else "unknown"
                    removed[known.key] = Removal(cause=cause, left=max(1, message.size))
                    kept.append(_Known(message.mark, known.key, known.role))
            else:
                cause = _cause(gone, came, last=i2 == len(old))
                removed |= {known.key: Removal(cause=cause) for known in gone}
                fresh += [_summary(message) for message in came] if cause == "compaction" else came
        self.known = kept
        shows = any(piece.kind == "reasoning" for message in messages for piece in message.pieces)
        return removed, fresh, shows

    def _recognise(self, messages: Sequence[Message]) -> None:
        """Learn what a response looks like when it is sent again: it is the answer to the message before it."""
        answers = {m.mark: a.mark for m, a in itertools.pairwise(messages) if a.role == "assistant"}
        for before, known in itertools.pairwise(self.known):
            if known.mark is None and before.mark is not None:
                known.mark = answers.get(before.mark)

    def _common(self, messages: Sequence[Message]) -> int:
        """Length of the common prefix."""
        for i, (known, message) in enumerate(zip(self.known, messages, strict=False)):
            if known.mark != message.mark:
                return i
        return min(len(self.known), len(messages))


def _cause(gone: Sequence[_Known], came: Sequence[Message], *, last: bool) -> Cause:
    """The best cause for messages that left a history, at its end or in its middle, and what came in their place."""
    if not gone:
        return "unknown"
    if last and (not came or came[0].role == gone[0].role):
        return "rewind"
    if all(known.role == "tool" for known in gone):
        return "clear_tool_results"
    return "compaction" if came and len(gone) > 1 else "unknown"


def _summary(message: Message) -> Message:
    pieces = (piece if piece.kind == "tool" else dataclasses.replace(piece, kind="summary") for piece in message.pieces)
    return dataclasses.replace(message, pieces=tuple(pieces))
