"""Memory over many compactions: what each one encodes, decided before anything is run.

Two rules are in use. "reencode" (Qwen3.8-27B) encodes everything after the prefix of the restored context anew, old
summary, markers and soft rows included, followed by the new history, under the new summary. "keep_frontier"
(GLM-5.3-Flash) leaves old rows as they are, encodes the new history alone as it reads after them, and appends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from remory_jax.memory.pyramid import Node, Plan, merge_frontier
from remory_jax.memory.sequences import Call, Contract, Encode, Memory, Rows, Tokens, as_ids, no_rows, restored

__all__ = ["Compaction", "Engine", "plan_compaction", "run"]

Engine = Literal["reencode", "keep_frontier"]


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """A compaction that has passed every check and not yet run.

    Args:
      contract, engine, prefix, summary: as asked for.
      leaves: the call that encodes blocks; None where there is nothing new to encode.
      conditioning: the call for the summary's states; None where the engine has none.
      input_depths: of each block's deepest input row, without a ceiling.
      kept: nodes of the previous memory that stay, and
      kept_rows: their rows.
      hierarchy: merges over kept nodes and leaves, and the frontier, in source positions.
      source_tokens: positions that will have been remembered.
      source_memory_slots: soft rows in the source.
      verbatim: ids to keep instead of rows, when not None.
    """

    contract: Contract
    engine: Engine
    prefix: tuple[int, ...]
    summary: tuple[int, ...]
    leaves: Call | None
    conditioning: Call | None
    input_depths: tuple[int, ...]
    kept: tuple[Node, ...]
    kept_rows: Rows
    hierarchy: Plan
    source_tokens: int
    source_memory_slots: int
    verbatim: tuple[int, ...] | None = None

    @property
    def depth_saturated(self) -> bool:
        """Whether an input is deeper than the depth table reaches."""
        deepest = max(self.input_depths, default=0)
        return max(deepest, self.hierarchy.max_depth - 1) >= self.contract.max_depth


def plan_compaction(
    contract: Contract,
    *,
    prefix: Sequence[int],
    history: Sequence[int],
    summary: Sequence[int],
    previous: Memory | None = None,
    engine: Engine = "reencode",
    context_limit: int | None = None,
    verbatim: bool = False,
) -> Compaction:
    """Decide and check a compaction.

    Args:
      prefix: ids of the persistent instructions; the same at every compaction of a run.
      history: ids since the last compaction; may be empty after one.
      summary: ids of the new summary, without markers.
      previous: the memory before.
      engine: rule for what came before.
      context_limit: longest sequence that the actor takes.
      verbatim: keep a history that is no longer than its rows would be as it is, when no soft rows came before (ours).

    Raises:
      ValueError: a changed prefix, nothing to remember, no summary, or a sequence longer than the limit.
      BudgetError: rows that no merging brings within the budget.
    """
    prefix, history, summary = tuple(prefix), tuple(history), tuple(summary)
    if previous is not None and previous.prefix != prefix:
        raise ValueError("the prefix (persistent instructions) is not the previous memory's; start a new run for it")
    earlier = () if previous is None else previous.verbatim
    if not history and not earlier and (previous is None or not len(previous.rows)):
        raise ValueError("history is empty and there is no earlier memory: nothing to remember")
    if engine == "reencode" and not summary:
        raise ValueError("summary is empty; this engine conditions memory on a summary")
    keeps = engine == "keep_frontier"
    source, skipped = (_continued if keeps else _reread)(contract, prefix, history, previous)
    conditioning = None if keeps else _conditioning(contract, prefix, summary)
    _check_limit(context_limit, history=source, summary=None if conditioning is None else conditioning.tokens)

    start, length = len(prefix) + skipped, len(source.ids) - len(prefix) - skipped
    cuts = [(left, min(left + contract.block_tokens, length)) for left in range(0, length, contract.block_tokens)]
    depth_of = np.zeros(len(source.ids), np.int64)
    if previous is not None and len(source.rows) and not keeps:
        depth_of[source.start : source.stop] = previous.slot_depths
    depths = tuple(int(np.max(depth_of[start + left : start + right])) for left, right in cuts)
    kept = previous.nodes if keeps and previous is not None and not earlier else ()
    offset = previous.source_tokens if kept and previous is not None else 0
    new = [
        Node(depth=depth + 1, start=offset + left, stop=offset + right)
        for depth, (left, right) in zip(depths, cuts, strict=True)
    ]
    hierarchy = merge_frontier(
        [*kept, *new],
        ratio=contract.compression_ratio,
        slots_per_node=contract.slots_per_node,
        budget=contract.memory_budget,
    )
    if hierarchy.merges:
        _check_limit(context_limit, parents=_parent_tokens(contract, prefix, source.rows[:0]))
    whole = (*earlier, *history)
    short = verbatim and not len(source.rows) and len(whole) <= hierarchy.slots
    leaves = Call(
        operation="recursive_leaves" if not keeps and previous is not None else "leaves",
        tokens=source,
        start=start,
        stop=start + length,
        depths=tuple(min(depth, contract.max_depth - 1) for depth in depths),
    )
    return Compaction(
        contract=contract,
        engine=engine,
        prefix=prefix,
        summary=summary,
        leaves=leaves if length else None,
        conditioning=conditioning,
        input_depths=depths,
        kept=kept,
        kept_rows=source.rows if kept else source.rows[:0],
        hierarchy=hierarchy,
        source_tokens=len(whole) if short else offset + length,
        source_memory_slots=len(source.rows),
        verbatim=whole if short else None,
    )


def _reread(
    contract: Contract, prefix: tuple[int, ...], history: tuple[int, ...], previous: Memory | None
) -> tuple[Tokens, int]:
    """Everything after the prefix is the source."""
    if previous is None:
        ids = as_ids((*prefix, *history))
        return Tokens(ids=ids, prefix=len(prefix), start=len(prefix), rows=no_rows(None)), 0
    return restored(contract, previous, history), 0


def _continued(
    contract: Contract, prefix: tuple[int, ...], history: tuple[int, ...], previous: Memory | None
) -> tuple[Tokens, int]:
    """Old rows, then the new history, which alone is the source: no summary and no markers."""
    earlier = () if previous is None else previous.verbatim
    rows = no_rows(previous) if previous is None or earlier else previous.rows
    held = (contract.placeholder,) * len(rows)
    ids = as_ids((*prefix, *held, *earlier, *history))
    return Tokens(ids=ids, prefix=len(prefix), start=len(prefix), rows=rows), len(rows)


def _conditioning(contract: Contract, prefix: tuple[int, ...], summary: tuple[int, ...]) -> Call:
    marks = contract.template
    before = (*prefix, *marks.s_open)
    tokens = Tokens(
        ids=as_ids((*before, *summary, *marks.s_close)), prefix=len(prefix), start=len(before), rows=no_rows(None)
    )
    return Call(operation="summary", tokens=tokens, start=len(before), stop=len(before) + len(summary))


def _check_limit(limit: int | None, **sequences: Tokens | None) -> None:
    for name, tokens in sequences.items():
        if limit is not None and tokens is not None and len(tokens.ids) > limit:
            raise ValueError(
                f"the sequence with the {name} has {len(tokens.ids)} tokens and the actor takes {limit}; compact "
                "earlier, or use an actor with a longer context (nothing was dropped)"
            )


def run(compaction: Compaction, encode: Encode) -> Memory:
    """Run a compaction's calls in order.

    Args:
      encode: runs one call, as `remory_jax.memory.encoder.ActorEncoder` does.

    Raises:
      FloatingPointError: rows that are not finite.
    """
    contract, hierarchy = compaction.contract, compaction.hierarchy
    if compaction.verbatim is not None:
        return Memory(
            prefix=compaction.prefix,
            summary=compaction.summary,
            nodes=(),
            rows=compaction.kept_rows,
            source_tokens=compaction.source_tokens,
            verbatim=compaction.verbatim,
        )
    states = None if compaction.conditioning is None else encode(compaction.conditioning, None)
    each = contract.slots_per_node
    alive = {index: compaction.kept_rows[index * each : (index + 1) * each] for index in range(len(compaction.kept))}
    if compaction.leaves is not None:
        rows = _finite(encode(compaction.leaves, states))
        for index in range(len(compaction.input_depths)):
            alive[len(compaction.kept) + index] = rows[index * each : (index + 1) * each]
    for merge in hierarchy.merges:
        children = np.concatenate([alive.pop(child) for child in merge.children])
        deep = 0 if compaction.engine == "keep_frontier" else min(merge.depth - 1, contract.max_depth - 1)
        alive[merge.node] = _finite(encode(_parent(compaction, children, deep), states))
    return Memory(
        prefix=compaction.prefix,
        summary=compaction.summary,
        nodes=hierarchy.nodes,
        rows=np.concatenate([alive[node] for node in hierarchy.frontier_nodes]),
        source_tokens=compaction.source_tokens,
    )


def _parent_tokens(contract: Contract, prefix: tuple[int, ...], children: Rows) -> Tokens:
    """The children's rows right after the prefix."""
    ids = as_ids((*prefix, *(contract.placeholder,) * contract.block_tokens))
    return Tokens(ids=ids, prefix=len(prefix), start=len(prefix), rows=children)


def _parent(compaction: Compaction, children: Rows, depth: int) -> Call:
    tokens = _parent_tokens(compaction.contract, compaction.prefix, children)
    return Call(operation="parent", tokens=tokens, start=tokens.prefix, stop=len(tokens.ids), depths=(depth,))


def _finite(rows: Rows) -> Rows:
    if not np.all(np.isfinite(rows)):
        raise FloatingPointError("the memory network gave rows that are not finite; the memory was not made")
    return rows
