"""Codex CLI rollouts: one JSON record a line, token counts as events between the items of the conversation.

``last_token_usage`` is one call, its input includes the cached part and its output the reasoning; ``total_token_usage``
is cumulative and may start again. An event whose totals repeat the previous event's is no call, nor is one that counts
nothing. A forked session begins with its parent's history, stamped anew: those calls belong to the parent.
Source: the ``token_count`` event and ``session_meta`` of the Codex CLI's protocol.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from costmodel_jax.errors import InputError
from costmodel_jax.importers.codex_rollout import Rollout, read_rollout
from costmodel_jax.importers.fields import text
from costmodel_jax.importers.importer import Importer
from costmodel_jax.importers.pieces import unanswered_note
from costmodel_jax.importers.places import folders, newest
from costmodel_jax.importers.source import STDIN, Options, Source
from costmodel_jax.importers.threads import Thread, runs_of
from costmodel_jax.schema import Run

__all__ = ["IMPORTER"]

NAME = "codex"
RECORDS = ("session_meta", "turn_context", "response_item", "event_msg", "compacted")
SESSION = re.compile(r"[0-9A-Za-z-]{8,64}")
BURST = 1.0  # seconds within which a fork's copy of its parent is written
SIBLINGS = 1000  # files looked at for a parent that was not given


def detect(source: Source) -> bool:
    """Records with a type of the protocol and a payload."""
    return any(
        isinstance(value, dict) and value.get("type") in RECORDS and isinstance(value.get("payload"), dict)
        for value in source.head()
    )


def read(sources: Sequence[Source], options: Options) -> list[Run]:
    """Read all sessions; what a fork repeats of its parent counts once, in the parent.

    A parent that is not among ``sources`` is looked for beside the fork, to find where the fork's own calls begin.
    """
    rollouts = [read_rollout(source, options) for source in sources]
    known: dict[str, Rollout] = {}
    for rollout in rollouts:
        if rollout.uncounted:
            options.report("skipped_file", InputError("has answers but no token counts", path=rollout.path))
        known.setdefault(rollout.id or rollout.path, rollout)
    threads = [_thread(rollout) for rollout in rollouts]
    for rollout, thread in zip(rollouts, threads, strict=True):
        _inherit(rollout, thread, known)
    roots = {root for rollout in rollouts if (root := _root(rollout, known)) is not None}
    for rollout, thread in zip(rollouts, threads, strict=True):
        thread.chain = _root(rollout, known) or (rollout.id if rollout.id in roots else None)
    return runs_of(threads, NAME, options)


def _thread(rollout: Rollout) -> Thread:
    thread = Thread(
        id=rollout.id or Path(rollout.path).stem,
        path=rollout.path,
        keys=rollout.keys,
        observations=rollout.observations,
        model=next((model for model, _ in rollout.models.most_common(1)), None),
        parent=rollout.spawned,
    )
    if rollout.aborted:
        thread.notes.append(f"turns cut off: {rollout.aborted}; a call cut off with one may never have been counted")
    if rollout.waiting:
        thread.notes.append(unanswered_note(rollout.waiting))
    return thread


def _inherit(rollout: Rollout, thread: Thread, known: dict[str, Rollout]) -> None:
    """Find how many leading calls a session repeats: of an earlier file of its own, or of the session it comes from."""
    same, origin = known[rollout.id or rollout.path], rollout.forked or rollout.spawned
    parent = same if same is not rollout else None
    if parent is None and origin is not None and origin != rollout.id:
        parent = known.get(origin) or _beside(rollout.path, origin)
        if parent is not None:
            known.setdefault(origin, parent)
    if parent is not None:
        thread.inherited = _repeated(rollout.keys, parent.keys)
        if thread.inherited:
            thread.notes.append(
                f"its first {thread.inherited} calls repeat session {parent.id} and belong to it; what they left in "
                "the context is input of the first call here"
            )
    elif origin is not None:
        _without_parent(rollout, thread, origin)


def _beside(path: str, wanted: str) -> Rollout | None:
    """The session ``wanted``, from the folder of a file that names it or from the tree of sessions above."""
    if path == STDIN or not SESSION.fullmatch(wanted):
        return None
    folder = Path(path).resolve().parent
    tree = next((above for above in folder.parents if above.name == "sessions"), folder)
    candidates = [*sorted(tree.rglob(f"*{wanted}*.jsonl")), *sorted(folder.glob("*.jsonl"))[:SIBLINGS]]
    for candidate in candidates:
        lenient = Options(lenient=True)
        try:
            _, first = next(Source(candidate).records(lenient), (1, None))
            if text(first, "payload", "id") == wanted:
                return read_rollout(Source(candidate), lenient)
        except InputError:
            continue
    return None


def _repeated(keys: Sequence[object], earlier: Sequence[object]) -> int:
    """How many leading calls two sessions share."""
    pairs = zip(keys, earlier, strict=False)
    return next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(keys), len(earlier)))


def _without_parent(rollout: Rollout, thread: Thread, origin: str) -> None:
    """A fork whose parent is not at hand: its copy shows by being written in one burst, if at all."""
    began = rollout.began if rollout.began is not None else float("inf")
    late = (i for i, time in enumerate(rollout.times) if time is None or not 0 <= time - began < BURST)
    thread.inherited = next(late, len(rollout.times))
    if thread.inherited:
        thread.notes.append(
            f"its first {thread.inherited} calls were written at once when it was forked from session {origin}, so "
            "they are taken to repeat that session"
        )
    elif rollout.forked is not None:
        thread.notes.append(
            f"forked from session {origin}, which is not at hand: calls that repeat it cannot be told apart"
        )


def _root(rollout: Rollout, known: dict[str, Rollout]) -> str | None:
    """The session at the beginning of a line of forks; ``None`` if this is no fork."""
    seen: set[str] = set()
    origin = rollout.forked
    while origin is not None and origin not in seen:
        seen.add(origin)
        before = known[origin].forked if origin in known else None
        if before is None:
            return origin
        origin = before
    return rollout.forked


def _logs() -> list[Path]:
    """Rollouts below ``CODEX_HOME`` (by default ``~/.codex``), those put into its archive included."""
    roots = folders("CODEX_HOME", Path.home() / ".codex")
    places = ("sessions", "archived_sessions")
    return newest(path for root in roots for place in places for path in (root / place).rglob("rollout-*.jsonl"))


IMPORTER = Importer(
    name=NAME,
    title="Codex CLI rollout",
    convention="per call (last_token_usage), input includes the cached part, output the reasoning",
    key="a token count whose cumulative totals differ from the previous one's",
    reuse="measured",
    reasoning="billed",
    detect=detect,
    read=read,
    logs=_logs,
)
