"""Brute-force counting, token by token: the independent judge of ``costmodel_jax.count``.

Every token is a Python integer (a negative one of its own where the run gives no ids), a prompt is a list of tokens, a
common prefix is found by comparing tokens, a cache is what earlier calls literally left behind, and pairs are added up
position by position. There are no closed forms here and nothing is shared with the library but the run format.

Policies and cache rules are read by class name and field name, so this file imports neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from costmodel_jax.schema import Call, Run, Segment

OK, INFEASIBLE, REASONING_UNKNOWN = 0, 1, 2
REASONING_POLICIES = ("DropImmediately", "KeepLatest", "ClearEvery", "DropAtUserTurn")
Tokens = list[int]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the client sends once: ``session`` numbers the history it belongs to, ``output`` is what comes back."""

    prompt: Tokens
    output: Tokens
    session: int
    time: float | None
    summary: bool = False
    extra: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry along the calls axis of ``Counts``; an entry without a call is all zeros."""

    mask: bool = False
    summary: bool = False
    prompt: int = 0
    reused: int = 0
    generated: int = 0
    processed: int = 0
    pairs: int = 0
    extra: float = 0.0


class InfeasibleError(Exception):
    """A compaction that could never bring the prompt below its trigger."""


@dataclass(eq=False, kw_only=True)
class Item:
    """A stretch of tokens in a history, with where it came from.

    ``start``/``stop`` is the range of recorded segments it stands for, ``recorded`` is False for what a policy or an
    edit put there, ``reasoning_of`` is the call (inside its session) whose output reasoning it is.
    """

    kind: str
    tokens: Tokens
    start: int = -1
    stop: int = -1
    recorded: bool = True
    reasoning_of: int | None = None


@dataclass(kw_only=True)
class Mint:
    """Hands out tokens that equal no other token."""

    last: int = 0

    def fresh(self, count: int) -> Tokens:
        self.last -= count
        return list(range(self.last, self.last + count))

    def segment(self, segment: Segment) -> Tokens:
        return self.fresh(segment.tokens) if segment.ids is None else list(segment.ids)


@dataclass(kw_only=True)
class Step:
    """One recorded call with its tokens."""

    call: Call
    input: list[Item]
    output: list[Item]

    @property
    def generated(self) -> Tokens:
        return join(self.output)


def join(items: list[Item]) -> Tokens:
    return [token for item in items for token in item.tokens]


def size(items: list[Item]) -> int:
    return sum(len(item.tokens) for item in items)


def sessions(run: Run, mint: Mint) -> Iterator[list[Step]]:
    """The calls of each session, with a token list for every recorded segment."""
    current: list[Step] = []
    session, number = run.calls[0].session, 0
    for call in run.calls:
        if call.session is not None and call.session != session:
            session = call.session
            yield current
            current = []
        sides: tuple[list[Item], list[Item]] = ([], [])
        for side, segments in zip(sides, (call.input, call.output), strict=True):
            for segment in segments:
                hideable = len(current) if side is sides[1] and segment.kind == "reasoning" else None
                item = Item(kind=segment.kind, tokens=mint.segment(segment), start=number, stop=number + 1)
                item.reasoning_of = hideable
                side.append(item)
                number += 1
        current.append(Step(call=call, input=sides[0], output=sides[1]))
    yield current


def render(run: Run, policy: Any) -> list[Request | None]:
    """Everything the client sends under a policy, in order; ``None`` stands where no summary request was needed.

    Raises:
      InfeasibleError: when a compaction's fixed floor exceeds its trigger.
    """
    mint = Mint()
    name = type(policy).__name__
    requests: list[Request | None] = []
    for number, steps in enumerate(sessions(run, mint)):
        if name in ("Compact", "CompactWithMemory"):
            requests.extend(_compacting(steps, policy, number, mint))
            continue
        if name == "AsRecorded":
            prompts = _as_recorded(steps, mint)
        elif name == "ClearToolResults":
            prompts = _clearing(steps, policy)
        else:
            prompts = [_reasoning(steps, t, policy) for t in range(len(steps))]
        for step, prompt in zip(steps, prompts, strict=True):
            requests.append(Request(prompt=prompt, output=step.generated, session=number, time=step.call.time))
    return requests


def _shown(steps: list[Step], t: int) -> list[Item]:
    """All that was recorded before call t generates: inputs of calls <= t, outputs of calls < t."""
    items: list[Item] = []
    for j in range(t + 1):
        items.extend(steps[j].input)
        if j < t:
            items.extend(steps[j].output)
    return items


def _reasoning(steps: list[Step], t: int, policy: Any) -> Tokens:
    return join([i for i in _shown(steps, t) if i.reasoning_of is None or _keeps(policy, steps, i.reasoning_of, t)])


def _keeps(policy: Any, steps: list[Step], j: int, t: int) -> bool:
    """Whether the prompt of call t shows the reasoning that call j generated."""
    match type(policy).__name__:
        case "KeepAll":
            return True
        case "DropImmediately":
            return False
        case "KeepLatest":
            return j in range(t - int(policy.k), t)
        case "ClearEvery":
            last_clear = max(call for call in range(t + 1) if call % int(policy.k) == 0)
            return j >= last_clear
        case "DropAtUserTurn":
            return not any(item.kind == "user" for call in range(j + 1, t + 1) for item in steps[call].input)
    raise TypeError(f"the oracle does not know the policy {type(policy).__name__}")


def _clearing(steps: list[Step], policy: Any) -> list[Tokens]:
    gone: list[Item] = []
    prompts = []
    for t in range(len(steps)):
        shown = [item for item in _shown(steps, t) if item not in gone]
        if size(shown) > int(policy.trigger):
            results = [item for item in shown if item.kind == "tool" and item.tokens]
            old = results[: max(len(results) - int(policy.keep), 0)]
            if size(old) >= max(int(policy.clear_at_least), 1):
                gone.extend(old)
                shown = [item for item in shown if item not in gone]
        prompts.append(join(shown))
    return prompts


def _as_recorded(steps: list[Step], mint: Mint) -> list[Tokens]:
    history: list[Item] = []
    prompts = []
    for step in steps:
        for edit in step.call.edits:
            history = [item for item in history if not (edit.start <= item.start and item.stop <= edit.stop)]
            if edit.segment is not None:
                tokens, place = mint.segment(edit.segment), sum(1 for item in history if item.start <= edit.start)
                stand_in = Item(kind="", tokens=tokens, start=edit.start, stop=edit.stop, recorded=False)
                history.insert(place, stand_in)
        history = history + step.input
        prompts.append(join(history))
        history = history + step.output
    return prompts


def _compacting(steps: list[Step], policy: Any, number: int, mint: Mint) -> list[Request | None]:
    requests: list[Request | None] = []
    history: list[Item] = []
    slots = int(getattr(policy, "slots", 0))
    summary = int(policy.summary)
    for t, step in enumerate(steps):
        request = None
        head, middle, tail = _split(history, policy)
        worthwhile = any(item.recorded and item.tokens for item in middle)
        if t > 0 and size(history) + size(step.input) > int(policy.trigger) and worthwhile:
            if size(head) + summary + slots + int(policy.keep_tail) + int(policy.reserve) > int(policy.trigger):
                raise InfeasibleError
            asked = join(history) + mint.fresh(int(policy.instruction))
            written = Item(kind="summary", tokens=mint.fresh(summary), recorded=False)
            request = Request(
                # A request that shares no prefix is one whose rendering has no token in common with any other.
                prompt=asked if policy.aligned else mint.fresh(len(asked)),
                output=written.tokens,
                session=number,
                time=step.call.time,
                summary=True,
                extra=float(getattr(policy, "memory_flops", 0.0)) * size(middle),
            )
            history = [*head, written, Item(kind="memory", tokens=mint.fresh(slots), recorded=False), *tail]
        history = history + step.input
        requests.append(request)
        requests.append(Request(prompt=join(history), output=step.generated, session=number, time=step.call.time))
        history = history + step.output
    return requests


def _split(history: list[Item], policy: Any) -> tuple[list[Item], list[Item], list[Item]]:
    """Head, middle and tail of the visible history."""
    head: list[Item] = []
    for item in history:
        if not item.recorded:
            break
        # A segment without tokens is not there: it does not end the leading system and tool definitions.
        leading = all(h.kind in ("system", "tools") for h in [*head, item] if h.tokens)
        if not leading and size([*head, item]) > int(policy.keep_head):
            break
        head.append(item)
    tail: list[Item] = []
    for item in reversed(history[len(head) :]):
        if not item.recorded or size([item, *tail]) > int(policy.keep_tail):
            break
        tail.insert(0, item)
    return head, history[len(head) : len(history) - len(tail)], tail


# What the server does with the requests.


def common_prefix(a: Tokens, b: Tokens) -> int:
    """How many leading tokens two lists share."""
    same = 0
    while same < min(len(a), len(b)) and a[same : same + 512] == b[same : same + 512]:
        same = min(same + 512, len(a), len(b))
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


@dataclass(kw_only=True)
class Cache:
    """What one session left on the server: prompts, sequences, resume points and kept blocks."""

    prompts: list[Tokens] = field(default_factory=list)
    sequences: list[Tokens] = field(default_factory=list)
    resume: list[tuple[Tokens, int]] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    names: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    def blocks(self, tokens: Tokens, upto: int, block: int) -> list[int]:
        """The names of the blocks of a sequence; equal names mean equal prefixes through the block's end."""
        names: list[int] = []
        for end in range(block, upto + 1, block):
            key = (names[-1] if names else -1, tuple(tokens[end - block : end]))
            names.append(self.names.setdefault(key, len(self.names)))
        return names


def serve(request: Request, cache: Cache, rule: Any) -> Entry:
    """Answer one request, and leave behind what the rule stores."""
    prompt, b = request.prompt, int(rule.block)
    size_ = len(prompt)

    def floor(tokens: int) -> int:
        return max(tokens, 0) // b * b

    if rule.full_hit == "exact":
        cap = floor(size_)
    elif rule.full_hit == "minus_token":
        cap = floor(size_ - 1)
    else:
        cap = max(floor(size_) - b, 0)
    processed_output = request.output if rule.last_token == "counted" else request.output[:-1]
    sequence = prompt + processed_output
    stored = cache.prompts if rule.reuse == "prompt" else cache.sequences
    longest = min(max((floor(common_prefix(prompt, other)) for other in stored), default=0), cap)

    if rule.reuse == "none":
        reused = 0
    elif rule.reuse in ("prompt", "prompt+generation"):
        reused = longest
    elif rule.reuse == "checkpoint":
        shared = [point for other, point in cache.resume if common_prefix(prompt, other) >= point]
        reused = max((point for point in shared if point <= longest), default=0)
    elif rule.reuse == "window":
        reused = _deepest(prompt, longest, cache, rule)
    else:
        raise ValueError(rule.reuse)

    cache.prompts.append(prompt)
    cache.sequences.append(sequence)
    points = [(prompt, floor(size_ - 1))]
    if longest > reused:
        points.append((prompt, longest))
    if rule.dense:
        points.extend((sequence, c) for c in range(size_, len(sequence) + 1) if c % b == 0)
    cache.resume.extend(points)
    if rule.reuse == "window":
        for tokens, point in points:
            names = cache.blocks(tokens, point, b)
            cache.kept.update(names[max(len(names) - _need(rule), 0) :])

    if reused < int(rule.min_tokens):
        reused = 0
    pairs = sum(range(reused + 1, size_ + 1))
    pairs += sum(range(size_ + 1, size_ + len(processed_output) + 1))
    return Entry(
        mask=True,
        summary=request.summary,
        prompt=size_,
        reused=reused,
        generated=len(processed_output),
        processed=len(prompt[reused:]) + len(processed_output),
        pairs=pairs,
        extra=request.extra,
    )


def _need(rule: Any) -> int:
    """The blocks that cover a window's reach behind the position being computed."""
    return next(blocks for blocks in range(int(rule.window)) if blocks * int(rule.block) >= int(rule.window) - 1)


def _deepest(prompt: Tokens, longest: int, cache: Cache, rule: Any) -> int:
    names = cache.blocks(prompt, longest, int(rule.block))
    for count in range(len(names), 0, -1):
        wanted = names[max(count - _need(rule), 0) : count]
        if all(name in cache.kept for name in wanted):
            return count * int(rule.block)
    return 0


def answer(requests: list[Request | None], rule: Any) -> list[Entry]:
    """Serve requests in order, one cache a session, forgetting after a pause longer than ``ttl``."""
    entries: list[Entry] = []
    session, cache, time = -1, Cache(), None
    for request in requests:
        if request is None:
            entries.append(Entry())
            continue
        if request.session != session:
            session, cache, time = request.session, Cache(), None
        if rule.ttl is not None:
            assert request.time is not None
            if time is not None and request.time - time > rule.ttl:
                cache = Cache()
            time = request.time
        entries.append(serve(request, cache, rule))
    return entries


def count_run(run: Run, policy: Any, rule: Any) -> tuple[list[Entry], int]:
    """The entries along the calls axis of ``Counts`` for one run, and the run's status.

    Returns:
      One entry a call, or two a call under ``Compact`` and ``CompactWithMemory`` (the summary request before it, then
      the call); no entries where the status is not 0.
    """
    if type(policy).__name__ in REASONING_POLICIES and run.evidence.reasoning == "unknown":
        return [], REASONING_UNKNOWN
    try:
        requests = render(run, policy)
    except InfeasibleError:
        return [], INFEASIBLE
    return answer(requests, rule), OK
