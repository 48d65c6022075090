"""`MemoryNetwork`: features of a stretch of history in, one soft row per ``compression_ratio`` positions out.

The function is that of the released networks (REMORY, arXiv 2610.11287): each slot starts as the same learned vector
and reads, through local layers, the source rows and slots near it and, gated, the summary; a last layer lets all slots
of a block see one another; the rows are normalised and brought to the scale of the actor's input embeddings.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.precision import has_tracer
from costmodel_jax.pytree import pytree
from remory_jax.actor.parameters import Parameter
from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.forward import forward
from remory_jax.memory.initialisation import initial_values
from remory_jax.memory.layers import Summary
from remory_jax.memory.layout import Lengths, check_lengths, layout
from remory_jax.memory.parameters import Tree, parameters

__all__ = ["Buffer", "MemoryNetwork", "MemoryOutput", "abstract_network", "memory_axes"]

Features = Float[Array, "batch source features"] | Float[np.ndarray, "batch source features"]
Mask = Bool[Array, "batch source"] | Bool[np.ndarray, "batch source"]
States = Float[Array, "examples summary d"] | Float[np.ndarray, "examples summary d"]
StatesMask = Bool[Array, "examples summary"] | Bool[np.ndarray, "examples summary"]
Depth = int | np.integer[Any] | Int[Array, "*batch"] | Int[np.ndarray, "*batch"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class MemoryOutput:
    """Soft rows, padded on the left.

    Attributes:
      rows: [B, N, D] in the actor's input-embedding space; zero where there is no slot.
      mask: which are real [B, N].
      counts: how many of each batch row [B].
    """

    rows: Float[Array, "batch slots d"]
    mask: Bool[Array, "batch slots"]
    counts: Int[Array, " batch"]


class Buffer(nnx.Variable[Any]):
    """A constant of the network that no gradient changes."""


class Group(nnx.Module):
    """Named parameters and groups of them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        _attach(self, values)


def _attach(module: nnx.Module, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(module, name, Group(value) if isinstance(value, Mapping) else nnx.Param(value))


class MemoryNetwork(nnx.Module):
    """The memory network; a Flax NNX module whose trained leaves are `nnx.Param` and whose output scale is a `Buffer`.

    Args:
      config: geometry and options.
      rngs: the stream ``params`` gives the initial values.
      dtype: of the computation and the rows.
      param_dtype: of the parameters, which are cast layer by layer.

    Example:
      >>> network = MemoryNetwork(config, rngs=nnx.Rngs(0))  # doctest: +SKIP
      >>> out = network(features, features_mask, summary=states, summary_mask=states_mask)  # doctest: +SKIP
      >>> out.rows, out.mask, out.counts  # doctest: +SKIP
    """

    def __init__(
        self, config: MemoryConfig, *, rngs: nnx.Rngs, dtype: Any = jnp.float32, param_dtype: Any = jnp.float32
    ) -> None:
        self.config = config
        self.dtype = jnp.dtype(dtype)
        _attach(self, initial_values(config, rngs.params(), param_dtype))
        self.output_embedding_rms = Buffer(jnp.asarray(config.output_rms, jnp.float32))

    def weights(self) -> dict[str, Any]:
        """The parameters' arrays, in the structure of `remory_jax.memory.parameters.parameters`."""
        return _read(self, parameters(self.config))

    def __call__(
        self,
        features: Features,
        features_mask: Mask,
        summary: States | None = None,
        summary_mask: StatesMask | None = None,
        depth: Depth = 0,
        source_lengths: Lengths | None = None,
        slot_lengths: Lengths | None = None,
        *,
        slots: int | None = None,
        differentiate_features: bool = False,
        remat: bool = False,
    ) -> MemoryOutput:
        """Rows of a batch of blocks.

        Features and summary states are constants to any gradient, unless asked.

        Args:
          features: taps side by side [B, T, K D].
          features_mask: which source rows are real [B, T]; padding may be anywhere.
          summary: the actor's final-norm states at the summary [b, S, D] for a summary-conditioned network, where b
            divides B and consecutive batch rows share a summary; None, or of no rows, leaves the gated step out.
          summary_mask: which are real [b, S]; all by default. Under `jax.jit` an example without any skips the step.
          depth: of the deepest input, below ``max_depth``: one for the batch, or one per row [B].
          source_lengths: positions that each source stands for [B]; by default as many as it has rows.
          slot_lengths: positions that the slots cover [B]; by default the source's. A last block that is short has
            ``block_tokens`` here all the same.
          slots: columns of the output N; by default as many as the widest row needs, which under `jax.jit` is unknown.
          differentiate_features: let a gradient through to ``features``, for back-propagation through earlier memory.
          remat: recompute layers in the backward pass.

        Raises:
          ValueError: widths that do not fit, or values that break a rule. Under `jax.jit` values cannot be looked at.
        """
        config = self.config
        wide = config.hidden_size * len(config.target_layer_ids)
        if features.shape[2] != wide:
            raise ValueError(
                f"features are {features.shape[2]} wide; {len(config.target_layer_ids)} taps of {config.hidden_size} "
                f"make {wide}"
            )
        columns = check_lengths(
            features_mask,
            source_lengths,
            slot_lengths,
            ratio=config.compression_ratio,
            window=config.local_window,
            slots=slots,
        )
        given = _summary(config, len(features), summary, summary_mask)
        out: MemoryOutput = _apply(
            config,
            self.weights(),
            self.output_embedding_rms[...],
            jnp.asarray(features),
            jnp.asarray(features_mask),
            given,
            _depth(config, depth),
            None if source_lengths is None else jnp.asarray(source_lengths),
            None if slot_lengths is None else jnp.asarray(slot_lengths),
            dtype=self.dtype,
            slots=columns,
            differentiate=differentiate_features,
            remat=remat,
        )
        return out


def _read(node: Any, tree: Tree) -> dict[str, Any]:
    return {
        name: _read(getattr(node, name), child) if isinstance(child, Mapping) else getattr(node, name)[...]
        for name, child in tree.items()
    }


def _summary(config: MemoryConfig, batch: int, states: States | None, mask: StatesMask | None) -> Summary | None:
    if states is None:
        if mask is not None:
            raise ValueError("summary_mask is given without summary")
        return None
    if not config.summary_attention:
        raise ValueError("this network takes no summary (summary_attention = False); leave it out")
    if states.shape[2] != config.hidden_size:
        raise ValueError(f"summary states are {states.shape[2]} wide; hidden_size is {config.hidden_size}")
    if states.shape[0] == 0 or batch % states.shape[0]:
        raise ValueError(
            f"{states.shape[0]} summaries for {batch} blocks; each example needs as many blocks as another"
        )
    if states.shape[1] == 0:
        return None
    mask = np.ones(states.shape[:2], bool) if mask is None else mask
    if mask.shape != states.shape[:2]:
        raise ValueError(f"summary_mask has shape {mask.shape}; it needs one value per row, {states.shape[:2]}")
    if not has_tracer(mask) and not np.all(np.any(np.asarray(mask), axis=1)):
        empty = int(np.argmin(np.any(np.asarray(mask), axis=1)))
        raise ValueError(f"summary {empty} has no real row; give it one, or leave the summary out")
    return Summary(states=jnp.asarray(states), mask=jnp.asarray(mask))


def _depth(config: MemoryConfig, depth: Depth) -> Int[Array, "*batch"]:
    if not has_tracer(depth):
        low, high = int(np.min(depth, initial=0)), int(np.max(depth, initial=0))
        if low < 0 or high >= config.max_depth:
            raise ValueError(
                f"depth = {high if high >= config.max_depth else low}; it must be from 0 to max_depth - 1 = "
                f"{config.max_depth - 1}, which stands for all that is deeper"
            )
    return jnp.asarray(depth, jnp.int32)


@functools.partial(jax.jit, static_argnames=("config", "dtype", "slots", "differentiate", "remat"))
def _apply(
    config: MemoryConfig,
    weights: Tree,
    scale: Float[Array, ""],
    features: Float[Array, "batch source features"],
    mask: Bool[Array, "batch source"],
    summary: Summary | None,
    depth: Int[Array, "*batch"],
    source_lengths: Int[Array, " batch"] | None,
    slot_lengths: Int[Array, " batch"] | None,
    *,
    dtype: Any,
    slots: int,
    differentiate: bool,
    remat: bool,
) -> MemoryOutput:
    places = layout(mask, source_lengths, slot_lengths, ratio=config.compression_ratio, slots=slots)
    features = features if differentiate else jax.lax.stop_gradient(features)
    summary = jax.lax.stop_gradient(summary)
    rows, _ = forward(config, weights, scale, features, places, summary, depth, dtype=dtype, remat=remat)
    return MemoryOutput(rows=rows, mask=places.slot_mask, counts=places.counts)


def abstract_network(
    config: MemoryConfig, *, dtype: Any = jnp.float32, param_dtype: Any = jnp.float32
) -> MemoryNetwork:
    """A network whose leaves are shapes and dtypes without memory: for sharding and compiling ahead of time."""
    made: MemoryNetwork = nnx.eval_shape(
        lambda: MemoryNetwork(config, rngs=nnx.Rngs(0), dtype=dtype, param_dtype=param_dtype)
    )
    return made


def memory_axes(config: MemoryConfig) -> Any:
    """Logical axes of every trained leaf: like ``nnx.state(network, nnx.Param)``, with a tuple of names in its place.

    The names are those of `remory_jax.actor.sharding.Rules`, which says where they lie on a mesh; moments of an
    optimizer lie as their parameter.
    """
    state = nnx.state(abstract_network(config), nnx.Param)
    flat = {
        tuple(part.key for part in path): parameter.full_axes
        for path, parameter in jax.tree_util.tree_leaves_with_path(
            parameters(config), is_leaf=lambda node: isinstance(node, Parameter)
        )
    }
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    return jax.tree.unflatten(structure, [flat[_names(path)] for path, _ in paths])


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    parts = (getattr(part, "key", getattr(part, "name", None)) for part in path)
    return tuple(part for part in parts if isinstance(part, str) and part != "value")
