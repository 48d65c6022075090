"""What an agent's memory costs: exact counts of processed positions and attention pairs, and what they are worth.

Start with ``batch = pack(load_runs("logs/"))``, ``counts = count(batch, KeepLatest(5), cache_rules["vllm"])`` and
``cost(counts, architectures["Qwen3.6-27B"].prices())``. Operation counts, not latency and not a bill.
"""

from costmodel_jax.architecture import Architecture, architectures
from costmodel_jax.caching import CacheRule, cache_rules
from costmodel_jax.calls import RunBatch, buckets, pack
from costmodel_jax.compaction import Compact, CompactWithMemory
from costmodel_jax.counting import Counts, count, total
from costmodel_jax.decomposition import Decomposition, decompose
from costmodel_jax.errors import CostModelError, InfeasibleError, InputError
from costmodel_jax.exchange import (
    attention_share,
    calls_to_payback,
    edit_break_even,
    edit_delta,
    exchange_rate,
    keep_delta,
    rebuild_cost,
    regeneration_rate,
    retention_horizon,
    summary_request_cost,
)
from costmodel_jax.explain import Explanation, explain
from costmodel_jax.importers import load_runs
from costmodel_jax.inference import InferredRule, infer_cache_rule
from costmodel_jax.policies import (
    AsRecorded,
    ClearEvery,
    ClearToolResults,
    DropAtUserTurn,
    DropImmediately,
    KeepAll,
    KeepLatest,
)
from costmodel_jax.pricebook import PriceBook
from costmodel_jax.pricing import Capped, Prices, cost, cost_per_call
from costmodel_jax.schema import Call, Edit, Run, Segment, Usage, dump_runs
from costmodel_jax.statistics import Interval, paired_bootstrap
from costmodel_jax.sweep import Sweep, sweep

__all__ = [
    "Architecture",
    "AsRecorded",
    "CacheRule",
    "Call",
    "Capped",
    "ClearEvery",
    "ClearToolResults",
    "Compact",
    "CompactWithMemory",
    "CostModelError",
    "Counts",
    "Decomposition",
    "DropAtUserTurn",
    "DropImmediately",
    "Edit",
    "Explanation",
    "InfeasibleError",
    "InferredRule",
    "InputError",
    "Interval",
    "KeepAll",
    "KeepLatest",
    "PriceBook",
    "Prices",
    "Run",
    "RunBatch",
    "Segment",
    "Sweep",
    "Usage",
    "architectures",
    "attention_share",
    "buckets",
    "cache_rules",
    "calls_to_payback",
    "cost",
    "cost_per_call",
    "count",
    "decompose",
    "dump_runs",
    "edit_break_even",
    "edit_delta",
    "exchange_rate",
    "explain",
    "infer_cache_rule",
    "keep_delta",
    "load_runs",
    "pack",
    "paired_bootstrap",
    "rebuild_cost",
    "regeneration_rate",
    "retention_horizon",
    "summary_request_cost",
    "sweep",
    "total",
]
