"""From what a log measured to segments: the one place where prompt counts become history.

Most logs give P, R and G per call and texts, not segment lengths. The new input of call t is P_t minus what was
already shown; text lengths only apportion it. Where P_t is smaller than that, the history shrank: that is an edit,
recorded with its size and the best cause the log supports, and never clamped to zero. The prompt that ``AsRecorded``
renders therefore equals the measured prompt at every call.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from costmodel_jax.errors import InputError
from costmodel_jax.schema import Call, Edit, Kind, Segment, Usage

__all__ = ["Observation", "Piece", "apportion", "assemble"]

CHARACTERS_PER_TOKEN = 4.0  # only until the run itself has shown its own ratio


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A text in the log that became part of a prompt or an output.

    Attributes:
      kind: its segment kind.
      size: length of the text in characters; it apportions a measured count.
      tokens: its own token count, where the log or a tokenizer gives one.
      name, error, arguments_hash, result_hash: tool facts, as in ``Segment``.
    """

    kind: Kind
    size: int = 0
    tokens: int | None = None
    name: str | None = None
    error: bool | None = None
    arguments_hash: str | None = None
    result_hash: str | None = None

    def segment(self, tokens: int, kind: Kind | None = None) -> Segment:
        """The piece as a segment of ``tokens`` tokens."""
        return Segment(
            kind=kind or self.kind,
            tokens=tokens,
            name=self.name,
            error=self.error,
            arguments_hash=self.arguments_hash,
            result_hash=self.result_hash,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observation:
    """One model call as the log shows it.

    Attributes:
      usage: what the server measured; ``None`` where the log has no usage, then every piece needs ``tokens``.
      input: pieces that entered the context since the previous call of the session, in order.
      output: pieces the call generated, in order.
      time: seconds at which the call was sent.
      session: as in ``Call``.
      compacted: the client compacted its history just before this call.
      resends_reasoning: ``False`` where the client is known not to send earlier reasoning again.
    """

    usage: Usage | None
    input: Sequence[Piece] = ()
    output: Sequence[Piece] = ()
    time: float | None = None
    session: str | int | None = None
    compacted: bool = False
    resends_reasoning: bool = True


@dataclasses.dataclass
class _Shown:
    """A segment in the client's history: the recorded range it stands for, and what is left of it."""

    start: int
    stop: int
    kind: Kind
    tokens: int


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split ``total`` into integers proportional to ``weights`` that sum to it exactly (largest remainder)."""
    scale = sum(weights)
    if scale <= 0:
        weights, scale = [1.0] * len(weights), float(len(weights))
    shares = [total * weight / scale for weight in weights]
    parts = [int(share) for share in shares]
    order = sorted(range(len(parts)), key=lambda i: parts[i] - shares[i])
    for i in order[: total - sum(parts)]:
        parts[i] += 1
    return parts


def assemble(observations: Sequence[Observation], *, path: str | None = None) -> tuple[Call, ...]:
    """Turn logged calls into the calls of a ``Run``.

    Args:
      observations: the calls of one thread, in order, each once.
      path: the log file, for messages.

    Raises:
      InputError: at a call whose prompt or output length is neither measured nor countable.
    """
    ratio = _characters_per_token(observations)
    calls: list[Call] = []
    history: list[_Shown] = []
    seen = 0
    session: str | int | None = None
    for t, observation in enumerate(observations):
        if t and observation.session is not None and observation.session != session:
            history = []
        session = observation.session if observation.session is not None else session
        prompt, generated, reasoning = _lengths(t, observation, sum(entry.tokens for entry in history), path)
        edits: list[Edit] = []
        if not observation.resends_reasoning:
            edits += _drop_reasoning(history)
        cached = observation.usage.cached_tokens if observation.usage is not None else None
        if observation.compacted and history:
            edits += _compact(history, seen, prompt, cached)
        shown = sum(entry.tokens for entry in history)
        incoming = _input_pieces(observation, calls, first=not history)
        if prompt < shown:
            # How much arrived is not measured when the history shrank; the run's own ratio estimates it.
            arrived = min(prompt, round(sum(piece.size for piece in incoming) / ratio))
            edits += _shrink(history, shown + arrived - prompt, cached, incoming)
            shown = sum(entry.tokens for entry in history)
        inputs = _input_segments(incoming, prompt - shown, ratio, first=not history)
        outputs = _output_segments(observation.output, generated, reasoning)
        for segment in (*inputs, *outputs):
            history.append(_Shown(seen, seen + 1, segment.kind, segment.tokens))
            seen += 1
        calls.append(
            Call(
                input=tuple(inputs),
                output=tuple(outputs),
                usage=observation.usage,
                time=observation.time,
                session=observation.session,
                edits=tuple(edits),
            )
        )
    return tuple(calls)


def _lengths(t: int, observation: Observation, shown: int, path: str | None) -> tuple[int, int, int | None]:
    """Prompt, output and reasoning length of a call."""
    usage = observation.usage or Usage()
    prompt, generated, reasoning = usage.prompt_tokens, usage.output_tokens, usage.reasoning_tokens
    if prompt is None:
        counted = [piece.tokens for piece in observation.input]
        if None not in counted:
            prompt = shown + sum(count for count in counted if count is not None)
    if generated is None:
        counted = [piece.tokens for piece in observation.output]
        if None not in counted:
            generated = sum(count for count in counted if count is not None)
            reasoning = sum(piece.tokens or 0 for piece in observation.output if piece.kind == "reasoning")
    if prompt is None or generated is None:
        field = "prompt" if prompt is None else "output"
        raise InputError(
            f"call {t} (counting from 0) has no {field} token count; a missing count is never read as zero. "
            "Name a tokenizer that is already on disk with --tokenizer to estimate it",
            path=path,
        )
    return prompt, generated, reasoning


def _characters_per_token(observations: Sequence[Observation]) -> float:
    """The run's own ratio of text length to tokens, from calls that only appended."""
    ratios = []
    for before, after in itertools.pairwise(observations):
        if before.usage is None or after.usage is None or after.compacted:
            continue
        lengths = (before.usage.prompt_tokens, before.usage.output_tokens, after.usage.prompt_tokens)
        size = sum(piece.size for piece in after.input)
        if None not in lengths and size:
            added = (lengths[2] or 0) - (lengths[0] or 0) - (lengths[1] or 0)
            if added > 0:
                ratios.append(size / added)
    return statistics.median(ratios) if ratios else CHARACTERS_PER_TOKEN


def _input_pieces(observation: Observation, calls: Sequence[Call], *, first: bool) -> list[Piece]:
    """The pieces that share the new input, one at least."""
    pieces = list(observation.input)
    if observation.compacted and not any(piece.kind == "summary" for piece in pieces):
        pieces.insert(0, Piece(kind="summary"))
    if not pieces:
        answered = bool(calls) and any(segment.name is not None for segment in calls[-1].output)
        pieces.append(Piece(kind="tool" if answered and not first else "user"))
    return pieces


def _input_segments(pieces: list[Piece], total: int, ratio: float, *, first: bool) -> list[Segment]:
    """Apportion ``total`` new tokens over the pieces."""
    if all(piece.tokens is not None for piece in pieces) and sum(piece.tokens or 0 for piece in pieces) == total:
        return [piece.segment(piece.tokens or 0) for piece in pieces]
    # A system prompt or a summary whose text is not in the log is what the other texts do not explain.
    unseen: Piece | None = None
    if first and not any(piece.kind in ("system", "tools") for piece in pieces):
        unseen = Piece(kind="system")
        pieces = [unseen, *pieces]
    else:
        unseen = next((piece for piece in pieces if piece.kind in ("summary", "system") and not piece.size), None)
    if unseen is None:
        return [
            piece.segment(part)
            for piece, part in zip(pieces, apportion(total, [piece.size for piece in pieces]), strict=True)
        ]
    sizes = [piece.size for piece in pieces if piece is not unseen]
    explained = min(total, round(sum(sizes) / ratio))
    parts = iter(apportion(explained, sizes) if sizes else [])
    return [piece.segment(total - explained if piece is unseen else next(parts)) for piece in pieces]


def _output_segments(pieces: Sequence[Piece], generated: int, reasoning: int | None) -> list[Segment]:
    """Apportion the output: the billed reasoning to reasoning pieces, the rest to what is visible."""
    counted = bool(pieces) and all(piece.tokens is not None for piece in pieces)
    if counted and sum(piece.tokens or 0 for piece in pieces) == generated:
        return [piece.segment(piece.tokens or 0) for piece in pieces]
    visible = [piece for piece in pieces if piece.kind != "reasoning"]
    thoughts = [piece for piece in pieces if piece.kind == "reasoning"]
    order = list(pieces)
    if reasoning and not thoughts:
        thoughts = [Piece(kind="reasoning")]
        order = [*thoughts, *order]
    if not visible and (reasoning is None or reasoning < generated):
        visible = [Piece(kind="assistant")]
        order = [*order, *visible]
    if reasoning is None:
        # Its length is unknown, so it stays inside the answer and the run says so in its evidence.
        parts = dict(zip(map(id, visible), apportion(generated, [piece.size for piece in visible]), strict=True))
    else:
        parts = dict(zip(map(id, thoughts), apportion(reasoning, [piece.size for piece in thoughts]), strict=True))
        rest = apportion(generated - reasoning, [piece.size for piece in visible])
        parts |= dict(zip(map(id, visible), rest, strict=True))
    return [piece.segment(parts[id(piece)]) for piece in order if id(piece) in parts]


def _drop_reasoning(history: list[_Shown]) -> list[Edit]:
    edits = [
        Edit(start=entry.start, stop=entry.stop, cause="reasoning_dropped")
        for entry in history
        if entry.kind == "reasoning" and entry.tokens
    ]
    history[:] = [entry for entry in history if entry.kind != "reasoning"]
    return edits


def _compact(history: list[_Shown], seen: int, prompt: int, cached: int | None) -> list[Edit]:
    """Hide everything after the kept head: what was read from the cache, or else the system prompt and tools."""
    kept, tokens = 0, 0
    for entry in history:
        inside = tokens + entry.tokens <= cached if cached else entry.kind in ("system", "tools")
        if not inside or tokens + entry.tokens > prompt:
            break
        kept, tokens = kept + 1, tokens + entry.tokens
    dropped = history[kept:]
    if not dropped:
        return []
    # A hit inside a segment shows that its beginning survived, which only a part of the segment can express.
    left = max(0, min(cached or 0, prompt) - tokens) if cached else 0
    return [_replace(history, kept, len(history), left, "compaction")]


def _shrink(history: list[_Shown], amount: int, cached: int | None, incoming: Sequence[Piece]) -> list[Edit]:
    """Remove ``amount`` tokens from the history, where the log's evidence puts the break."""
    positions = [0]
    for entry in history:
        positions.append(positions[-1] + entry.tokens)
    head = next((i for i, entry in enumerate(history) if entry.kind not in ("system", "tools")), len(history))
    from_cache = next((i for i, position in enumerate(positions) if position >= (cached or 0)), len(history))
    first = max(head, from_cache)
    thoughts = [i for i in range(first, len(history)) if history[i].kind == "reasoning"]
    if any(piece.kind == "user" for piece in incoming) and sum(history[i].tokens for i in thoughts) >= amount:
        return _shrink_reasoning(history, thoughts, amount)
    while first > 0 and positions[-1] - positions[first] < amount:
        first -= 1
    last = next(i for i in range(first, len(history) + 1) if positions[i] - positions[first] >= amount)
    return [_replace(history, first, last, positions[last] - positions[first] - amount, "unknown")]


def _shrink_reasoning(history: list[_Shown], thoughts: Sequence[int], amount: int) -> list[Edit]:
    """Drop reasoning segments, oldest first, until ``amount`` tokens are gone."""
    edits = []
    for i in thoughts:
        if not amount:
            break
        removed = min(amount, history[i].tokens)
        if removed:
            edits.append(_replace(history, i, i + 1, history[i].tokens - removed, "reasoning_dropped"))
            amount -= removed
    history[:] = [entry for entry in history if entry.tokens or entry.kind != "reasoning"]
    return edits


def _replace(history: list[_Shown], first: int, last: int, left: int, cause: str) -> Edit:
    """Replace entries ``first`` to ``last`` of the history by ``left`` tokens, and say so as an edit."""
    start, stop = history[first].start, max(entry.stop for entry in history[first:last])
    kind = history[first].kind
    history[first:last] = [_Shown(start, stop, kind, left)]
    segment = Segment(kind=kind, tokens=left) if left else None
    return Edit(start=start, stop=stop, segment=segment, cause=cause)  # type: ignore[arg-type]
