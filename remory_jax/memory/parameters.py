"""The parameter definitions of a memory network, with the names and shapes that a released checkpoint gives them.

Local layers are stacked along a leading axis, for `jax.lax.scan`; the last layer stands apart. Projections are kept as
[inputs, outputs] with heads apart, and stored as torch does, [outputs, inputs].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from remory_jax.actor.config import DenseMLP
from remory_jax.actor.mlp import dense_mlp_parameters
from remory_jax.actor.parameters import Parameter, Stored, leaves, map_leaves, projection, stacked, vector
from remory_jax.memory.config import MemoryConfig

__all__ = ["OUTPUT_RMS", "Tree", "parameters", "stored_name", "stored_shapes", "trained"]

OUTPUT_RMS = "output_embedding_rms"
"""Name of the one buffer: the scale of the rows."""

Tree = Mapping[str, Any]


def parameters(config: MemoryConfig) -> dict[str, Any]:
    """Definitions of everything that is trained.

    ``fc`` [K, D, D], ``hidden_norm``, ``norm``, ``query`` [D], ``depth`` [depths, D] and ``pool`` [D, D] where there
    are any, ``local`` (a layer's, stacked over all layers but the last) and ``last``.
    """
    d, taps, layers = config.hidden_size, len(config.target_layer_ids), config.num_hidden_layers
    embed = ("embed", d)
    tree: dict[str, Any] = {
        "fc": projection("fc.weight", ((None, taps), embed), ((None, d),)),
        "hidden_norm": vector("hidden_norm.weight", embed, init="ones"),
        "query": Parameter(shape=(d,), axes=("embed",), stored=(Stored(name="mask_embedding", shape=(1, 1, d)),)),
        "norm": vector("norm.weight", embed, init="ones"),
    }
    if config.query_init == "pooled":
        tree["pool"] = projection("pool_proj.weight", (embed,), ((None, d),))
    if config.summary_attention:
        table = Stored(name="depth_embedding.weight", shape=(config.max_depth, d))
        tree["depth"] = Parameter(shape=(config.max_depth, d), axes=(None, "embed"), stored=(table,))
    if layers > 1:
        layer = _layer(config)
        if config.summary_attention:
            layer["summary"] = _named("summary_attention.{layer}", _summary(config))
        tree["local"] = stacked(layer, tuple(range(layers - 1)))
    tree["last"] = map_leaves(lambda parameter: _at(parameter, layers - 1), _layer(config))
    return tree


def _layer(config: MemoryConfig) -> dict[str, Any]:
    embed = ("embed", config.hidden_size)
    layer: dict[str, Any] = {
        "input_norm": vector("input_layernorm.weight", embed, init="ones"),
        "attention": _named("self_attn", _attention(config)),
        "post_norm": vector("post_attention_layernorm.weight", embed, init="ones"),
        "mlp": dense_mlp_parameters(DenseMLP(width=config.intermediate_size), config.hidden_size),
    }
    if config.dynamic_conv:
        layer["attention_conv"] = _named("attention_conv", _convolution(config))
        layer["mlp_conv"] = _named("mlp_conv", _convolution(config))
    return _named("layers.{layer}", layer)


def _attention(config: MemoryConfig) -> dict[str, Parameter]:
    embed, head = (("embed", config.hidden_size),), (None, config.head_dim)
    queries = (("heads", config.num_attention_heads), head)
    keys = (("kv_heads", config.num_key_value_heads), head)
    return {
        "q": projection("q_proj.weight", embed, queries),
        "k": projection("k_proj.weight", embed, keys),
        "v": projection("v_proj.weight", embed, keys),
        "o": projection("o_proj.weight", queries, embed),
        "q_norm": vector("q_norm.weight", head, init="ones"),
        "k_norm": vector("k_norm.weight", head, init="ones"),
    }


def _summary(config: MemoryConfig) -> dict[str, Parameter]:
    embed = ("embed", config.hidden_size)
    return {
        "query_norm": vector("query_norm.weight", embed, init="ones"),
        "summary_norm": vector("summary_norm.weight", embed, init="ones"),
        **_attention(config),
        "gate": vector("gate", (None, 1), init="zeros"),
    }


def _convolution(config: MemoryConfig) -> dict[str, Parameter]:
    kernel, d = config.conv_kernel, config.hidden_size
    groups = d // config.conv_group
    return {
        "base": Parameter(
            shape=(2, kernel, d), axes=(None, None, "embed"), stored=(Stored(name="base", shape=(2, kernel, d)),)
        ),
        "proj": projection("proj.weight", (("embed", d),), ((None, 2), (None, kernel), (None, groups))),
    }


def _named(prefix: str, tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with ``prefix`` before the stored names."""

    def name(parameter: Parameter) -> Parameter:
        (stored,) = parameter.stored
        return replace(parameter, stored=(replace(stored, name=f"{prefix}.{stored.name}"),))

    found: dict[str, Any] = map_leaves(name, tree)
    return found


def _at(parameter: Parameter, layer: int) -> Parameter:
    (stored,) = parameter.stored
    return replace(parameter, stored=(replace(stored, name=stored.name.format(layer=layer)),))


def trained(tree: Tree) -> Iterator[Parameter]:
    """Every definition of a tree."""
    yield from leaves(tree)


def stored_name(parameter: Parameter, layer: int | None) -> str:
    """The checkpoint's name of a parameter, of one layer of a stack."""
    return parameter.stored[0].name if layer is None else parameter.stored[0].name.format(layer=layer)


def stored_shapes(config: MemoryConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor of a checkpoint; ``output_embedding_rms`` is a scalar."""
    found: dict[str, tuple[int, ...]] = {OUTPUT_RMS: ()}
    for parameter in trained(parameters(config)):
        for layer in parameter.layers or (None,):
            found[stored_name(parameter, layer)] = parameter.stored[0].shape
    assert sum(math.prod(shape) for shape in found.values()) == config.parameter_count + 1
    return found
