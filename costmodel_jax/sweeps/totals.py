"""Totals of every run under every policy and cache rule: one compiled program for a shape of batch.

What a prompt holds depends on the policy alone and what is reused on the rule too, so a policy's changes are found once
and every rule only goes over calls. Nothing here depends on an architecture or on w: those multiply totals.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from costmodel_jax.caching import CacheRule, Lowered, lower
from costmodel_jax.calls import NEVER, RunBatch, bucket, pack
from costmodel_jax.changes import changes
from costmodel_jax.counting import STATUS, Counts, count_view
from costmodel_jax.policies import Policy
from costmodel_jax.pricing import Measured, Prices, measure
from costmodel_jax.pytree import pytree
from costmodel_jax.schema import Run
from costmodel_jax.sweeps.shapes import Group, Shape, grouped

__all__ = ["STATUSES", "Totals", "count_totals"]

STATUSES = (*STATUS, "no times")
"""Why a run has no numbers; the last: the rule has a lifetime and a call has no time."""
NO_TIMES = len(STATUS)


@pytree()
@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the calls of each run, exact.

    Attributes:
      calls, requests: int64 [runs, policies, caches]; ``calls`` holds the ``requests`` for summaries too.
      prompt, reused: int64 likewise, in tokens.
      measured: what prices multiply, each leaf likewise.
      status: index into `STATUSES`; where it is not 0 there are no numbers.
    """

    calls: Any
    requests: Any
    prompt: Any
    reused: Any
    measured: Measured
    status: Any


def count_totals(
    runs: Sequence[Run],
    policies: Sequence[Policy],
    caches: Sequence[CacheRule],
    windows: Prices,
    *,
    mesh: Mesh | None = None,
    seen: Callable[[Shape, int], None] = lambda shape, rows: None,
) -> Totals:
    """Count runs of any lengths.

    Args:
      windows: prices whose windows are measured.
      mesh: its devices share the runs of a batch.
      seen: called with the shape and rows of each batch.

    Returns:
      Totals of NumPy arrays in the order of ``runs``.
    """
    multiple = 1 if mesh is None else mesh.size

    def work(group: Group) -> Totals:
        seen(group.shape, group.rows)
        return _count_group([runs[i] for i in group.runs], group, policies, caches, windows, mesh)

    groups = list(grouped(runs, multiple=multiple))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # most of a program on CPU runs on one core
        parts = list(pool.map(work, groups))
    order = np.argsort(np.concatenate([group.runs for group in groups]))
    joined: Totals = jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *parts)
    return joined


def _count_group(
    runs: Sequence[Run],
    group: Group,
    policies: Sequence[Policy],
    caches: Sequence[CacheRule],
    windows: Prices,
    mesh: Mesh | None,
) -> Totals:
    batch = pack(runs, calls=group.shape.calls, segments=group.shape.slots)
    untimed: np.ndarray = np.any(np.isnan(batch.idle), axis=1)
    width = 0 if batch.ids is None else bucket(batch.longest + max(policy.added for policy in policies))
    batch = _filled(replace(batch, has_time=True, longest=0), group.rows)
    found: list[Totals | None] = [None] * len(policies)
    with jax.enable_x64(True):
        families: dict[str, list[int]] = {}
        lowered = [lower(rule) for rule in caches]
        for number, rule in enumerate(lowered):
            families.setdefault(rule.family, []).append(number)
        rules = tuple(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *(lowered[i] for i in members))
            for members in families.values()
        )
        for alike in _alike(policies):
            chosen = tuple(policies[i] for i in alike)
            program = _program(mesh, chosen[0].nested, width)
            totals: Totals = jax.tree.map(np.asarray, program(batch, chosen, rules, windows))
            for row, i in enumerate(alike):
                found[i] = jax.tree.map(lambda leaf, row=row: leaf[row], totals)
    # [policies, caches by family, rows] to [runs, policies, caches in order]
    order = np.argsort([i for members in families.values() for i in members])
    joined: Totals = jax.tree.map(
        lambda *leaves: np.stack([leaf[order, : len(runs)] for leaf in leaves]).transpose(2, 0, 1), *found
    )
    lives = np.array([rule.ttl is not None for rule in caches])
    status = np.where(untimed[:, None, None] & lives, np.int8(NO_TIMES), joined.status)
    return replace(joined, status=status)


def _alike(policies: Sequence[Policy]) -> list[list[int]]:
    """Policies whose views have one shape and are followed in one way: they share a program."""
    groups: dict[tuple[bool, int], list[int]] = {}
    for number, policy in enumerate(policies):
        groups.setdefault((policy.nested, policy.steps_per_call), []).append(number)
    return list(groups.values())


@functools.cache
def _program(mesh: Mesh | None, nested: bool, width: int) -> Callable[..., Totals]:
    """``(batch, policies, rules, windows) -> Totals`` of [policies, caches by family, rows]."""
    whole = functools.partial(_totals, nested=nested, width=width)
    if mesh is None:
        return jax.jit(whole)
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    rows = PartitionSpec(mesh.axis_names)
    shared = jax.shard_map(
        whole,
        mesh=mesh,
        in_specs=(rows, PartitionSpec(), PartitionSpec(), PartitionSpec()),
        out_specs=PartitionSpec(None, None, mesh.axis_names),
        check_vma=False,  # constants that a scan starts from are not marked as varying over the mesh
    )
    return jax.jit(shared)


def _totals(
    batch: RunBatch,
    policies: tuple[Policy, ...],
    rules: tuple[Lowered, ...],
    windows: Prices,
    *,
    nested: bool,
    width: int,
) -> Totals:
    views = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(jax.vmap(policy.view)(batch) for policy in policies))

    def of_run(view: Any, ids: Any) -> Totals:
        found = changes(view)

        def of_rule(rule: Lowered) -> Totals:
            return _sums(count_view(view, found, ids, rule, nested=nested, width=width), windows)

        families = [jax.lax.map(of_rule, rule) for rule in rules]
        joined: Totals = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *families)
        return joined

    def of_policy(view: Any) -> Totals:
        if batch.ids is None:
            totals: Totals = jax.vmap(lambda one: of_run(one, None), out_axes=1)(view)
            return totals
        by_run: Totals = jax.lax.map(lambda pair: of_run(*pair), (view, batch.ids))  # token buffers are large
        turned: Totals = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), by_run)
        return turned

    found: Totals = jax.lax.map(of_policy, views)
    return found


def _sums(counts: Counts, windows: Prices) -> Totals:
    """Of one run."""

    def total(values: Any) -> Any:
        return jnp.sum(values, axis=-1, dtype=values.dtype if jnp.issubdtype(values.dtype, jnp.inexact) else jnp.int64)

    return Totals(
        calls=total(counts.mask),
        requests=total(counts.summary),
        prompt=total(counts.prompt),
        reused=total(counts.reused),
        measured=jax.tree.map(total, measure(counts, windows)),
        status=counts.status,
    )


def _filled(batch: RunBatch, rows: int) -> RunBatch:
    """The batch with rows of nothing at its end."""
    more = rows - len(batch.mask)

    def fill(name: str, leaf: Any) -> Any:
        nothing = np.full((more, *leaf.shape[1:]), NEVER if name == "birth" else 0, leaf.dtype)
        return np.concatenate([leaf, nothing])

    leaves = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    return replace(batch, **{name: fill(name, x) for name, x in leaves.items() if isinstance(x, np.ndarray)})
