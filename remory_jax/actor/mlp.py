"""The dense feed-forward block."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from remory_jax.actor.config import DenseMLP
from remory_jax.actor.parameters import Parameter, projection

__all__ = ["dense_mlp", "dense_mlp_parameters", "swiglu"]


def swiglu(gate: Float[Array, "*n"], up: Float[Array, "*n"], limit: float | None) -> Float[Array, "*n"]:
    """``silu(gate) up``; with a limit, ``silu(min(gate, limit)) clip(up, -limit, limit)``."""
    if limit is not None:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return jax.nn.silu(gate) * up


def dense_mlp_parameters(
    mlp: DenseMLP, hidden: int, name: str = "mlp", axis: str | None = "mlp"
) -> dict[str, Parameter]:
    """gate, up [D, F] and down [F, D]."""
    inside, outside = ((axis, mlp.width),), (("embed", hidden),)
    return {
        "gate": projection(f"{name}.gate_proj.weight", outside, inside),
        "up": projection(f"{name}.up_proj.weight", outside, inside),
        "down": projection(f"{name}.down_proj.weight", inside, outside),
    }


def dense_mlp(mlp: DenseMLP, weights: Mapping[str, Array], x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """``(silu(x gate) (x up)) down``."""
    return swiglu(x @ weights["gate"], x @ weights["up"], mlp.limit) @ weights["down"]
