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
from collections.abc import Mapping, Sequence

import msgspec

from costmodel_jax.errors import InputError
from costmodel_jax.importers.history import History, Removal
from costmodel_jax.schema import Call, Edit, Kind, Segment, Usage

__all__ = ["Observation", "Piece", "Removal", "apportion", "assemble"]

CHARACTERS_PER_TOKEN = 4.0  # only until the run itself has shown its own ratio


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A text in the log that became part of a prompt or an output.

    Attributes:
      kind: its segment kind.
      size: length of the text in characters; it apportions a measured count.
      tokens: its own token count, where the log or a tokenizer gives one.
      key: a name by which a later ``Observation.removed`` may take it out of the context.
      name, error, arguments_hash, result_hash: tool facts, as in ``Segment``.
    """

    kind: Kind
    size: int = 0
    tokens: int | None = None
    key: str | None = None
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
      time: seconds at which the call was sent; a time before the previous call's is not believed.
      session: as in ``Call``.
      compacted: the client compacted its history just before this call.
      resends_reasoning: ``False`` where the client is known not to send earlier reasoning again.
      removed: pieces the log shows to have left the context just before this call, by their keys.
      cleared: tokens of earlier tool results that were cleared just before this call, where the log states them.
    """

    usage: Usage | None
    input: Sequence[Piece] = ()
    output: Sequence[Piece] = ()
    time: float | None = None
    session: str | int | None = None
    compacted: bool = False
    resends_reasoning: bool = True
    removed: Mapping[str, Removal] = dataclasses.field(default_factory=dict)
    cleared: int = 0


def apportion(total: int, weights: Sequence[int | float]) -> list[int]:
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


def assemble(observations: Sequence[Observation], *, path: str | None = None, inherited: int = 0) -> tuple[Call, ...]:
    """Turn logged calls into the calls of a ``Run``.

    Args:
      observations: the calls of one thread, in order, each once.
      path: the log file, for messages.
      inherited: how many leading calls belong to another run that this one was forked from. They are not among the
        calls returned; what they left in the context is input of the first call that is. Their user messages are
        turns of that other run, so here they are context of kind ``system``.

    Raises:
      InputError: at a call whose prompt or output length is neither measured nor countable.
    """
    ratio = _characters_per_token(observations)
    calls: list[Call] = []
    history = History()
    session: str | int | None = None
    latest: float | None = None
    for t, observation in enumerate(observations):
        if t and observation.session is not None and observation.session != session:
            history.clear()
            latest = None
        session = observation.session if observation.session is not None else session
        begins = not history.entries
        edits = _stated_edits(history, observation, ratio)
        prompt, generated, reasoning = _lengths(t, observation, history.tokens, path)
        incoming = _input_pieces(observation, calls)
        if prompt < history.tokens:
            edits += _measured_edits(history, observation, prompt, incoming, ratio)
        inputs = _input_segments(incoming, prompt - history.tokens, ratio, begins=begins)
        outputs = _output_segments(observation.output, generated, reasoning)
        if t == inherited and inherited:
            inputs = [(entry.key, _context(entry.segment)) for entry in history.entries] + inputs
            history, edits, calls = History(), [], []
        for key, segment in (*inputs, *outputs):
            history.append(segment, key)
        time = observation.time
        if time is not None and latest is not None and time < latest:
            time = None
        latest = time if time is not None else latest
        calls.append(
            Call(
                input=tuple(segment for _, segment in inputs),
                output=tuple(segment for _, segment in outputs),
                usage=observation.usage,
                time=time,
                session=session if t == inherited else observation.session,
                edits=tuple(edits),
            )
        )
    return tuple(calls) if len(observations) > inherited else ()


def _context(segment: Segment) -> Segment:
    return msgspec.structs.replace(segment, kind="system") if segment.kind == "user" else segment


def _stated_edits(history: History, observation: Observation, ratio: float) -> list[Edit]:
    """What the log says the client did to its history."""
    edits: list[Edit] = []
    if not observation.resends_reasoning:
        edits += history.drop_reasoning()
    if observation.removed:
        edits += history.remove(observation.removed, ratio)
    if observation.cleared:
        edits += history.clear_tools(observation.cleared)
    if observation.compacted and history.entries:
        usage = observation.usage or Usage()
        edits += history.compact(usage.prompt_tokens, usage.cached_tokens)
    return edits


def _measured_edits(
    history: History, observation: Observation, prompt: int, incoming: Sequence[Piece], ratio: float
) -> list[Edit]:
    """What the measured prompt shows beyond that: a history longer than the prompt must have shrunk."""
    # How much arrived is not measured when the history shrank; the run's own ratio estimates it.
    arrived = min(prompt, round(sum(piece.size for piece in incoming) / ratio))
    cached = observation.usage.cached_tokens if observation.usage is not None else None
    user_turn = any(piece.kind == "user" for piece in incoming)
    least = history.tokens - prompt
    return history.shrink(least, least + arrived, cached, user_turn=user_turn)


def _lengths(t: int, observation: Observation, shown: int, path: str | None) -> tuple[int, int, int | None]:
    """Prompt, output and reasoning length of a call."""
    usage = observation.usage or Usage()
    prompt, generated, reasoning = usage.prompt_tokens, usage.output_tokens, usage.reasoning_tokens
    if prompt is None:
        added = _counted(observation.input, observation)
        prompt = None if added is None else shown + added
    if generated is None:
        generated = _counted(observation.output, observation)
        reasoning = sum(piece.tokens or 0 for piece in observation.output if piece.kind == "reasoning")
    if prompt is None or generated is None:
        field = "prompt" if prompt is None else "output"
        raise InputError(
            f"call {t} (counting from 0) has no {field} token count; a missing count is never read as zero. "
            "Name a tokenizer that is already on disk with --tokenizer to estimate it",
            path=path,
        )
    return prompt, generated, reasoning


def _counted(pieces: Sequence[Piece], observation: Observation) -> int | None:
    """The sum of the pieces' own counts; ``None`` if one lacks it, or if the log has usage but nothing to count."""
    counts = [piece.tokens for piece in pieces if piece.tokens is not None]
    if len(counts) < len(pieces) or (not pieces and observation.usage is not None):
        return None
    return sum(counts)


def _characters_per_token(observations: Sequence[Observation]) -> float:
    """The run's own ratio of text length to tokens, from calls that only appended."""
    ratios = []
    for before, after in itertools.pairwise(observations):
        if before.usage is None or after.usage is None or after.compacted or after.removed or after.cleared:
            continue
        if after.session is not None and after.session != before.session:
            continue
        earlier, generated, later = before.usage.prompt_tokens, before.usage.output_tokens, after.usage.prompt_tokens
        size = sum(piece.size for piece in after.input)
        if earlier is None or generated is None or later is None or not size:
            continue
        again = generated if after.resends_reasoning else generated - (before.usage.reasoning_tokens or 0)
        if later > earlier + again:
            ratios.append(size / (later - earlier - again))
    return statistics.median(ratios) if ratios else CHARACTERS_PER_TOKEN


def _input_pieces(observation: Observation, calls: Sequence[Call]) -> list[Piece]:
    """The pieces that share the new input, one at least."""
    pieces = list(observation.input)
    if observation.compacted and not any(piece.kind == "summary" for piece in pieces):
        pieces.insert(0, Piece(kind="summary"))
    if not pieces:
        # What no message of the log explains is the client's own, unless a tool was just called.
        called = bool(calls) and any(segment.name is not None for segment in calls[-1].output)
        pieces.append(Piece(kind="tool" if called else "system"))
    return pieces


def _input_segments(pieces: list[Piece], total: int, ratio: float, *, begins: bool) -> list[tuple[str | None, Segment]]:
    """Apportion ``total`` new tokens over the pieces."""
    if all(piece.tokens is not None for piece in pieces) and sum(piece.tokens or 0 for piece in pieces) == total:
        return [(piece.key, piece.segment(piece.tokens or 0)) for piece in pieces]
    # What the texts do not explain (tool definitions, a prompt that is not logged) is the system's or a summary's.
    if begins and not any(piece.kind in ("system", "tools") for piece in pieces):
        pieces = [Piece(kind="system"), *pieces]
    rest = next((i for i, piece in enumerate(pieces) if _takes_the_rest(piece, begins=begins)), None)
    sizes = [float(piece.size) for piece in pieces]
    explained = sum(sizes) / ratio
    if rest is not None and explained < total:
        sizes[rest] += (total - explained) * ratio
    parts = apportion(total, sizes)
    return [(piece.key, piece.segment(part)) for piece, part in zip(pieces, parts, strict=True)]


def _takes_the_rest(piece: Piece, *, begins: bool) -> bool:
    return piece.kind == "summary" or (piece.kind in ("system", "tools") and (begins or not piece.size))


def _output_segments(
    pieces: Sequence[Piece], generated: int, reasoning: int | None
) -> list[tuple[str | None, Segment]]:
    """Apportion the output: the billed reasoning to reasoning pieces, the rest to what is visible."""
    if pieces and all(p.tokens is not None for p in pieces) and sum(p.tokens or 0 for p in pieces) == generated:
        return [(piece.key, piece.segment(piece.tokens or 0)) for piece in pieces]
    if reasoning is None:
        # Its length is unknown, so it stays inside the answer and the run says so in its evidence.
        pieces = [piece for piece in pieces if piece.kind != "reasoning"]
    elif reasoning and not any(piece.kind == "reasoning" for piece in pieces):
        pieces = [Piece(kind="reasoning"), *pieces]
    if (reasoning is None or reasoning < generated) and all(piece.kind == "reasoning" for piece in pieces):
        pieces = [*pieces, Piece(kind="assistant")]
    thoughts = [piece.size for piece in pieces if piece.kind == "reasoning"]
    visible = [piece.size for piece in pieces if piece.kind != "reasoning"]
    hidden = iter(apportion(reasoning or 0, thoughts))
    shown = iter(apportion(generated - (reasoning or 0), visible))
    parts = [next(hidden) if piece.kind == "reasoning" else next(shown) for piece in pieces]
    return [(piece.key, piece.segment(part)) for piece, part in zip(pieces, parts, strict=True)]
