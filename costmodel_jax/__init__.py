"""What an agent's memory costs: exact counts of processed positions and attention pairs, and what they are worth.

Start with ``runs = load_runs("logs/")``, ``batch = pack(runs)``, ``counts = count(batch, KeepLatest(5), cache_rules["vllm"])`` and
``cost(counts, architectures["Qwen3.6-27B"].prices())``. Operation counts, not latency and not a bill.
"""

from costmodel_jax.caching import CacheRule, cache_rules
from costmodel_jax.calls import RunBatch, buckets, pack
from costmodel_jax.compaction import Compact, CompactWithMemory
from costmodel_jax.counting import Counts, count, total
from costmodel_jax.errors import CostModelError, InfeasibleError, InputError
from costmodel_jax.importers import load_runs
from costmodel_jax.policies import (
    AsRecorded,
    ClearEvery,
    ClearToolResults,
    DropAtUserTurn,
    DropImmediately,
    KeepAll,
    KeepLatest,
)
from costmodel_jax.schema import Call, Edit, Run, Segment, Usage, dump_runs

__all__ = [
    "AsRecorded",
    "CacheRule",
    "Call",
    "ClearEvery",
    "ClearToolResults",
    "Compact",
    "CompactWithMemory",
    "CostModelError",
    "Counts",
    "DropAtUserTurn",
    "DropImmediately",
    "Edit",
    "InfeasibleError",
    "InputError",
    "KeepAll",
    "KeepLatest",
    "Run",
    "RunBatch",
    "Segment",
    "Usage",
    "buckets",
    "cache_rules",
    "count",
    "dump_runs",
    "load_runs",
    "pack",
    "total",
]
