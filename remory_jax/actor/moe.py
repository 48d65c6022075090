"""Mixture of experts: routers, and the experts computed for the tokens that chose them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from remory_jax.actor.config import DenseMLP, Experts
from remory_jax.actor.grouped import grouped_dot
from remory_jax.actor.mlp import dense_mlp, dense_mlp_parameters, swiglu
from remory_jax.actor.parameters import Parameter, Stored, projection, vector
from remory_jax.actor.sharding import Sharding

__all__ = ["expert_parameters", "mixture", "route"]


def expert_parameters(moe: Experts, hidden: int, *, shared_name: str) -> dict[str, Parameter]:
    """Router [D, E]; gate and up [E, D, F] and down [E, F, D] of the experts; the shared expert's own.

    Checkpoints hold one tensor per expert, or all experts fused, or (gpt-oss) fused, interleaved and perhaps MXFP4.
    """
    if moe.router == "chosen_softmax":
        return _interleaved_parameters(moe, hidden)
    found = {"router": projection("mlp.gate.weight", (("embed", hidden),), ((None, moe.experts),))}
    if moe.router == "sigmoid":
        correction = vector("mlp.gate.e_score_correction_bias", (None, moe.experts), init="zeros", exact=True)
        found["correction"] = replace(correction, buffer=True)
    fused, width = (moe.experts, 2 * moe.width, hidden), moe.width
    found["gate"] = _expert(
        moe, hidden, "gate", Stored(name="mlp.experts.gate_up_proj", shape=fused, pick=(1, 0, width))
    )
    found["up"] = _expert(
        moe, hidden, "up", Stored(name="mlp.experts.gate_up_proj", shape=fused, pick=(1, width, 2 * width))
    )
    found["down"] = _expert(
        moe, hidden, "down", Stored(name="mlp.experts.down_proj", shape=(moe.experts, hidden, width))
    )
    if moe.shared_width:
        shared = dense_mlp_parameters(DenseMLP(width=moe.shared_width), hidden, shared_name)
        found |= {f"shared_{name}": parameter for name, parameter in shared.items()}
    if moe.shared_gate:
        found["shared_switch"] = projection("mlp.shared_expert_gate.weight", (("embed", hidden),), ((None, 1),))
    return found


def _expert(moe: Experts, hidden: int, name: str, fused: Stored) -> Parameter:
    """One matrix per expert, from a tensor of each or from the ``fused`` one; torch keeps both as [out, in]."""
    inputs, outputs = (moe.width, hidden) if name == "down" else (hidden, moe.width)
    own = Stored(name=f"mlp.experts.{{expert}}.{name}_proj.weight", shape=(outputs, inputs), order=(1, 0))
    together = Stored(name=fused.name, shape=fused.shape, pick=fused.pick, order=(0, 2, 1))
    axes = ("expert", None, "embed") if name == "down" else ("expert", "embed", None)
    return Parameter(shape=(moe.experts, inputs, outputs), axes=axes, stored=(own, together))


def _interleaved_parameters(moe: Experts, hidden: int) -> dict[str, Parameter]:
    experts, width = moe.experts, moe.width

    def weight(name: str, part: int | None, inputs: int, outputs: int, axes: tuple[str | None, ...]) -> Parameter:
        """Even columns are the gate's, odd ones up's."""
        columns = outputs if part is None else 2 * outputs
        views = [
            Stored(
                name=f"mlp.experts.{name}",
                shape=(experts, inputs, columns),
                split=() if part is None else (experts, inputs, outputs, 2),
                pick=None if part is None else (3, part, part + 1),
                mxfp4=quantised,
            )
            for quantised in (False, True)
        ]
        return Parameter(shape=(experts, inputs, outputs), axes=axes, stored=tuple(views))

    def bias(name: str, part: int | None, outputs: int) -> Parameter:
        columns = outputs if part is None else 2 * outputs
        stored = Stored(
            name=f"mlp.experts.{name}_bias",
            shape=(experts, columns),
            split=() if part is None else (experts, outputs, 2),
            pick=None if part is None else (2, part, part + 1),
        )
        return Parameter(shape=(experts, outputs), axes=("expert", None), stored=(stored,), init="zeros")

    return {
        "router": projection("mlp.router.weight", (("embed", hidden),), ((None, experts),)),
        "router_bias": vector("mlp.router.bias", (None, experts), init="zeros"),
        "gate": weight("gate_up_proj", 0, hidden, width, ("expert", "embed", None)),
        "up": weight("gate_up_proj", 1, hidden, width, ("expert", "embed", None)),
        "down": weight("down_proj", None, width, hidden, ("expert", None, "embed")),
        "gate_bias": bias("gate_up_proj", 0, width),
        "up_bias": bias("gate_up_proj", 1, width),
        "down_bias": bias("down_proj", None, hidden),
    }


def route(
    moe: Experts, weights: Mapping[str, Array], x: Float[Array, "tokens d"]
) -> tuple[Float[Array, "tokens active"], Int[Array, "tokens active"]]:
    """Which experts each token goes to, and with what weight.

    "softmax": softmax over all, the best k, divided by their sum where the family renormalises. "sigmoid": chosen by
    sigmoid + correction within the best groups (a group's score is the sum of its two best), weighted by the sigmoid
    alone. "chosen_softmax": softmax over the k best logits.
    """
    if moe.router == "chosen_softmax":
        logits = x @ weights["router"] + weights["router_bias"][None]
        best, chosen = jax.lax.top_k(logits, moe.active)
        return jax.nn.softmax(best.astype(jnp.float32), axis=-1).astype(x.dtype), chosen
    if moe.router == "softmax":
        scores = jax.nn.softmax((x @ weights["router"]).astype(jnp.float32), axis=-1)
        best, chosen = jax.lax.top_k(scores, moe.active)
        if moe.renormalise:
            best = best / jnp.sum(best, axis=-1, keepdims=True)
        return best.astype(x.dtype), chosen
    scores = jax.nn.sigmoid(x.astype(jnp.float32) @ weights["router"].astype(jnp.float32))
    biased = scores + weights["correction"][None]
    if moe.kept_groups < moe.groups:
        grouped = biased.reshape(len(biased), moe.groups, -1)
        strength = jnp.sum(jax.lax.top_k(grouped, 2)[0], axis=-1)  # [N, G]
        kept = jax.lax.top_k(strength, moe.kept_groups)[1]
        allowed = jnp.any(jax.nn.one_hot(kept, moe.groups, dtype=jnp.bool_), axis=1)
        biased = jnp.where(allowed[:, :, None], grouped, -jnp.inf).reshape(biased.shape)
    chosen = jax.lax.top_k(biased, moe.active)[1]
    best = jnp.take_along_axis(scores, chosen, axis=1)
    if moe.renormalise:
        best = best / (jnp.sum(best, axis=-1, keepdims=True) + 1e-20)
    return (best * moe.scaling).astype(x.dtype), chosen


def mixture(
    moe: Experts, weights: Mapping[str, Array], x: Float[Array, "batch length d"], sharding: Sharding
) -> Float[Array, "batch length d"]:
    """Routed experts, plus the shared one where the family has it.

    On a mesh each device computes the experts it holds for the tokens of its rows, and the parts are added up over
    ``tensor``: no token moves between devices.
    """
    batch, length, d = x.shape
    share, chosen = route(moe, weights, x.reshape(-1, d))
    share, chosen = (value.reshape(batch, length, moe.active) for value in (share, chosen))
    names = [name for name in ("gate", "up", "down", "gate_bias", "up_bias", "down_bias") if name in weights]
    experts = {name: weights[name] for name in names}
    compute = functools.partial(_chosen_experts, moe)
    axis = sharding.rules.expert
    if sharding.mesh is None:
        y = compute(experts, x, share, chosen, None)
    else:
        rows = PartitionSpec(sharding.rows)
        y = jax.shard_map(
            functools.partial(compute, axis=axis),
            mesh=sharding.mesh,
            in_specs=({name: PartitionSpec(axis) for name in names}, rows, rows, rows),
            out_specs=rows,
        )(experts, x, share, chosen)
    if moe.shared_width:
        shared = {name: weights[f"shared_{name}"] for name in ("gate", "up", "down")}
        common = dense_mlp(DenseMLP(width=moe.shared_width, limit=moe.limit), shared, x)
        if moe.shared_gate:
            common = common * jax.nn.sigmoid(x @ weights["shared_switch"])
        y = y + common
    return y


def _chosen_experts(
    moe: Experts,
    experts: Mapping[str, Array],
    x: Float[Array, "batch length d"],
    share: Float[Array, "batch length active"],
    chosen: Int[Array, "batch length active"],
    axis: str | None,
) -> Float[Array, "batch length d"]:
    """Tokens sorted by expert, three grouped products, and the weighted sum back; over the local experts."""
    d, active = x.shape[-1], moe.active
    tokens, flat_share, flat_chosen = x.reshape(-1, d), share.reshape(-1), chosen.reshape(-1)
    local = experts["gate"].shape[0]
    if axis is not None:
        flat_chosen = flat_chosen - jax.lax.axis_index(axis) * local
        # From here on each device has rows of its own; said aloud, as gathers lose the transpose of an implicit cast.
        tokens, flat_share = (jax.lax.pcast(value, axis, to="varying") for value in (tokens, flat_share))
    mine = (flat_chosen >= 0) & (flat_chosen < local)
    group = jnp.where(mine, flat_chosen, local)  # others' tokens sort to the end, outside every group
    order = jnp.argsort(group, stable=True)
    owner, token = group[order], order // active
    sizes = jnp.bincount(group, length=local + 1)[:local].astype(jnp.int32)
    expert = jnp.minimum(owner, local - 1)

    def product(rows: Array, name: str) -> Array:
        y = grouped_dot(rows, experts[name], sizes)
        return y + experts[f"{name}_bias"][expert] if f"{name}_bias" in experts else y

    rows = tokens[token]
    gate, up = product(rows, "gate"), product(rows, "up")
    if moe.alpha is None or moe.limit is None:
        inner = swiglu(gate, up, moe.limit)
    else:
        gate, up = jnp.minimum(gate, moe.limit), jnp.clip(up, -moe.limit, moe.limit)
        inner = (up + 1) * gate * jax.nn.sigmoid(gate * moe.alpha)
    out = product(inner, "down") * flat_share[order][:, None]
    out = jnp.where((owner < local)[:, None], out, 0)
    y = jnp.zeros_like(tokens).at[token].add(out).reshape(x.shape)
    return y if axis is None else jax.lax.psum(y, axis)
