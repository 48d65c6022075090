"""The decoder: its parameters, and its layers applied one repeating block after another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from remory_jax.actor.cache import Memory, layer_of, store
from remory_jax.actor.call import Call
from remory_jax.actor.config import ActorConfig, DeltaNet, DenseMLP, LatentAttention, LayerConfig, SoftmaxAttention
from remory_jax.actor.delta import short_convolution
from remory_jax.actor.delta_net import delta_net, delta_net_parameters
from remory_jax.actor.groups import Group, repeating_groups
from remory_jax.actor.hyper import collapse, expand, hyper_parameters
from remory_jax.actor.mla import latent_attention, latent_attention_parameters
from remory_jax.actor.mlp import dense_mlp, dense_mlp_parameters
from remory_jax.actor.moe import expert_parameters, mixture
from remory_jax.actor.norms import rms_norm
from remory_jax.actor.parameters import Parameter, Stored, projection, stacked, vector
from remory_jax.actor.softmax_attention import softmax_attention, softmax_attention_parameters

__all__ = ["groups", "parameters", "run_layers"]

Weights = Mapping[str, Any]


@functools.lru_cache(maxsize=64)
def groups(config: ActorConfig) -> tuple[Group, ...]:
    """The model's repeating blocks."""
    return repeating_groups(config.layers)


@functools.lru_cache(maxsize=64)
def parameters(config: ActorConfig) -> dict[str, Any]:
    """Definitions of every parameter: embed [V, D], groups of stacked layers, norm [D], head [D, V] unless tied."""
    shape = (config.vocabulary, config.hidden)
    found: dict[str, Any] = {
        "embed": Parameter(
            shape=shape, axes=("vocab", "embed"), stored=(Stored(name="embed_tokens.weight", shape=shape),)
        ),
        "groups": tuple(
            tuple(
                stacked(_layer_parameters(config, layer), group.layers(position))
                for position, layer in enumerate(group.pattern)
            )
            for group in groups(config)
        ),
        "norm": vector("norm.weight", ("embed", config.hidden), init=_neutral(config)),
    }
    if not config.tied:
        found["head"] = projection("lm_head.weight", (("embed", config.hidden),), (("vocab", config.vocabulary),))
    return found


def _neutral(config: ActorConfig) -> Any:
    return "zeros" if config.norm.zero_centred else "ones"


def _layer_parameters(config: ActorConfig, layer: LayerConfig) -> dict[str, Any]:
    norm = functools.partial(vector, init=_neutral(config))
    mixer, block, hidden = layer.mixer, layer.feed_forward, config.hidden
    if isinstance(mixer, SoftmaxAttention):
        mixing = softmax_attention_parameters(mixer, hidden, config.norm)
    elif isinstance(mixer, LatentAttention):
        mixing = latent_attention_parameters(mixer, hidden)
    else:
        mixing = delta_net_parameters(mixer, hidden)
    if isinstance(block, DenseMLP):
        feeding = dense_mlp_parameters(block, hidden)
    else:
        shared = "mlp.shared_experts" if block.router == "sigmoid" else "mlp.shared_expert"
        feeding = expert_parameters(block, hidden, shared_name=shared)
    found: dict[str, Any] = {
        "mixer_norm": norm("input_layernorm.weight", ("embed", hidden)),
        "mixer": mixing,
        "feed_norm": norm("post_attention_layernorm.weight", ("embed", hidden)),
        "feed": feeding,
    }
    if layer.convolution:
        if config.hyper is not None:
            raise ValueError("a residual convolution and hyper-connections in one model: no model has both")
        found["convolution"] = Parameter(
            shape=(hidden, layer.convolution),
            axes=("embed", None),
            stored=(Stored(name="residual_conv.weight", shape=(hidden, 1, layer.convolution)),),
            init="zeros",
        )
    if config.hyper is not None:
        found["mixer_hyper"] = hyper_parameters(config.hyper, hidden, "attn")
        found["feed_hyper"] = hyper_parameters(config.hyper, hidden, "ffn")
    return found


def run_layers(
    config: ActorConfig,
    weights: Weights,
    x: Float[Array, "batch length ..."],
    call: Call,
    memory: tuple[tuple[Memory, ...], ...] | None,
    *,
    taps: Sequence[int],
    depth: int,
    keep: bool,
    remat: bool,
) -> tuple[
    Float[Array, "batch length ..."], Float[Array, "taps batch length ..."], tuple[tuple[Memory, ...], ...] | None
]:
    """Apply the first ``depth`` layers.

    Args:
      x: embedded tokens; with hyper-connections the streams [B, S, N, D].
      memory: the buffers of an incoming cache.
      taps: layers whose outputs are wanted, ascending and distinct.
      keep: return the buffers of the cache that goes out.
      remat: recompute each layer in the backward pass instead of keeping its inside.

    Returns:
      the last layer's output, the tapped outputs, and the buffers (None without ``keep``).
    """
    # The last row takes what nobody asked for, so that a scan can write without asking which layer it is at.
    tapped = call.sharding.constrain_taps(jnp.zeros((len(taps) + 1, *x.shape), x.dtype))
    slots = [taps.index(index) if index in taps else len(taps) for index in range(len(config.layers))]
    carry = (x, tapped, _no_selection(config, x, call, memory))
    kept: list[tuple[Memory, ...]] = []
    for number, group in enumerate(groups(config)):
        wanted = max(min(depth - group.first, group.repeats * len(group.pattern)), 0)
        whole, rest = divmod(wanted, len(group.pattern))
        stack = weights["groups"][number]
        held = None if memory is None else memory[number]
        block = functools.partial(_block, config, group, call=call, keep=keep, remat=remat)
        targets = jnp.asarray([slots[group.first :][i] for i in range(group.repeats * len(group.pattern))], jnp.int32)
        targets = targets.reshape(group.repeats, len(group.pattern))
        carry, after = _repeat(block, carry, stack, held, targets, whole, group.repeats, keep)
        if rest:  # the call ends inside the pattern; what these layers would remember is not wanted
            held = after if keep and held is not None else held
            picked = [_pick(layer, whole) for layer in stack]
            carry, _ = block(carry, picked, held, targets[whole], whole, only=rest)
        kept.append(after or ())
    x, tapped, _ = carry
    return x, tapped[: len(taps)], tuple(kept) if keep else None


def _repeat(
    block: Any, carry: Any, stack: Any, held: Any, targets: Array, count: int, stacked_count: int, keep: bool
) -> tuple[Any, Any]:
    """Scan ``count`` of a group's ``stacked_count`` repeats.

    An incoming cache that is to be kept is carried, and so updated in place; one that is only read is not, or `remat`
    would save all of it for every layer.
    """
    own = held if keep else None
    if count == 0:
        return carry, held
    if stacked_count == 1:
        carry, after = block(carry, [_pick(layer, 0) for layer in stack], held, targets[0], 0)
        return carry, after if own is not None else jax.tree.map(lambda value: value[None], after)

    def step(state: tuple[Any, Any], index: Array, layers: Any) -> tuple[tuple[Any, Any], Any]:
        carry, mine = state
        carry, after = block(carry, layers, held if mine is None else mine, targets[index], index)
        return (carry, None if mine is None else after), after if mine is None else None

    if count == stacked_count:
        body = lambda state, inputs: step(state, *inputs)  # noqa: E731
        (carry, own), fresh = jax.lax.scan(body, (carry, own), (jnp.arange(count, dtype=jnp.int32), stack))
    else:
        # Scanning a slice of the stack would copy it; picking each repeat's weights inside does not, and recomputing
        # in the backward pass keeps autodiff from saving what was picked.
        picked = jax.checkpoint(
            lambda state, index: step(state, index, [_pick(layer, index) for layer in stack]), prevent_cse=False
        )
        (carry, own), fresh = jax.lax.scan(picked, (carry, own), jnp.arange(count, dtype=jnp.int32))
    return carry, fresh if own is None else own


def _pick(tree: Any, index: Array | int) -> Any:
    return jax.tree.map(lambda value: jax.lax.dynamic_index_in_dim(value, index, keepdims=False), tree)


def _block(
    config: ActorConfig,
    group: Group,
    carry: Any,
    layers: Sequence[Weights],
    held: tuple[Memory, ...] | None,
    targets: Array,
    index: Array | int,
    *,
    call: Call,
    keep: bool,
    remat: bool,
    only: int | None = None,
) -> tuple[Any, tuple[Memory, ...]]:
    """One repeat of a group's pattern, or its first ``only`` layers."""
    x, tapped, selected = carry
    after = []
    for position, layer in enumerate(group.pattern[:only]):
        apply: Callable[..., Any] = functools.partial(_layer, config, layer, call=call, keep=keep)
        if remat:
            apply = jax.checkpoint(apply, prevent_cse=False)
        memory = None if held is None else held[position]
        x, selected, stored = apply(layers[position], x, selected, memory, index)
        tapped = jax.lax.dynamic_update_index_in_dim(tapped, x, targets[position], axis=0)
        after.append(stored)
    return (x, tapped, selected), tuple(after)


def _layer(
    config: ActorConfig,
    layer: LayerConfig,
    weights: Weights,
    x: Array,
    selected: Bool[Array, "batch length keys"] | None,
    memory: Memory | None,
    index: Array | int,
    *,
    call: Call,
    keep: bool,
) -> tuple[Array, Array | None, Memory]:
    """``x += mixer(norm(x)); x += feed_forward(norm(x))``, each through hyper-connections where the model has them.

    Before both, where the layer has one, ``x += convolution(x)``.
    """
    mixer, block = layer.mixer, layer.feed_forward
    past: Memory = {}
    if layer.convolution:
        x, past = _convolve(weights["convolution"], x, call, memory, index)
    inner, mixing = _enter(config, weights.get("mixer_hyper"), x)
    inner = rms_norm(inner, weights["mixer_norm"], config.norm)
    if isinstance(mixer, LatentAttention):
        y, after, selected = latent_attention(
            mixer, config.norm, weights["mixer"], inner, call, memory, index, selected
        )
    elif isinstance(mixer, DeltaNet):
        y, after = delta_net(mixer, config.norm, weights["mixer"], inner, call, memory, index)
    else:
        y, after = softmax_attention(mixer, config.norm, weights["mixer"], inner, call, memory, index)
    x = call.sharding.constrain(_leave(x, y, mixing))

    inner, mixing = _enter(config, weights.get("feed_hyper"), x)
    inner = rms_norm(inner, weights["feed_norm"], config.norm)
    if isinstance(block, DenseMLP):
        y = dense_mlp(block, weights["feed"], inner)
    else:
        y = mixture(block, weights["feed"], inner, call.sharding)
    return call.sharding.constrain(_leave(x, y, mixing)), selected, {**after, **past} if keep else {}


def _convolve(
    weight: Float[Array, "d taps"],
    x: Float[Array, "batch length d"],
    call: Call,
    memory: Memory | None,
    index: Array | int,
) -> tuple[Float[Array, "batch length d"], Memory]:
    """``x + convolution(x)``; the buffer is its last inputs, [R, B, taps - 1, D]."""
    held = None if memory is None else layer_of(memory["residual_past"], index)
    before = None if memory is None or call.before is None else call.before.recent
    y, past, _ = short_convolution(
        x, weight, segment_ids=call.tokens.segments, history=held, history_segment_ids=before
    )
    return x + y, {"residual_past": past if memory is None else store(memory["residual_past"], index, past)}


def _enter(config: ActorConfig, weights: Weights | None, x: Array) -> tuple[Array, Any]:
    if config.hyper is None or weights is None:
        return x, None
    return collapse(config.hyper, weights, x, config.norm.eps)


def _leave(x: Array, y: Array, mixing: Any) -> Array:
    return x + y if mixing is None else expand(x, y, mixing)


def _no_selection(config: ActorConfig, x: Array, call: Call, memory: Any) -> Bool[Array, "batch length keys"] | None:
    """What a scan carries for layers that share a selection; None where selections are never made."""
    indexers = [
        layer.mixer.indexer
        for layer in config.layers
        if isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None
    ]
    keys = call.keys.segments.shape[1]
    if not indexers or keys <= indexers[0].top_k:
        return None
    return jnp.zeros((x.shape[0], x.shape[1], keys), jnp.bool_)
