"""A tiny actor, a tiny memory network and random examples, for tests of what a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from remory_jax.actor import Actor, ActorConfig, init_actor
from remory_jax.data.batch import Batch
from remory_jax.data.template import Template
from remory_jax.memory import MemoryConfig, MemoryNetwork
from remory_jax.training.experiment import EncodingConfig, ObjectiveConfig
from remory_jax.training.network import split
from remory_jax.training.step import Setting

VOCABULARY = 40
TEMPLATE = Template(s_open=(1,), s_close=(2,), m_open=(3, 4), m_close=(5,))


def tiny_actor(model_type: str = "llama", **options: Any) -> Actor:
    """``conv_llama`` has short convolutions, which do not reach across padding."""
    config = {
        "model_type": model_type,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    actor = init_actor(ActorConfig.from_hf(config), seed=1, **options)
    for group in actor.weights["groups"]:
        for layer in group:
            if "convolution" in layer:  # they start as nothing
                layer["convolution"] = layer["convolution"] + 0.3
    return actor


def tiny_config(**changes: Any) -> MemoryConfig:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "target_layer_ids": (0, 1),
        "compression_ratio": 4,
        "block_tokens": 16,
        "memory_budget": 64,
        "output_rms": 1.0,
        "gate_init": 0.5,
    }
    return MemoryConfig(**(sizes | changes))


def tiny_network(seed: int = 0, **changes: Any) -> MemoryNetwork:
    return MemoryNetwork(tiny_config(**changes), rngs=nnx.Rngs(seed))


def setting_for(
    network: MemoryNetwork, encoding: EncodingConfig | None = None, objective: ObjectiveConfig | None = None
) -> tuple[Setting, Any, Any]:
    """The setting, parameters and buffers of a network."""
    graph, params, buffers = split(network)
    setting = Setting(
        graph=graph,
        template=TEMPLATE,
        encoding=encoding or EncodingConfig(),
        objective=objective or ObjectiveConfig(chunk=8),
    )
    return setting, params, buffers


def random_batch(
    rows: int, *, histories: Sequence[int] = (14,), summaries: Sequence[int] = (4,), prefix: int = 3, response: int = 6
) -> Batch:
    """Examples of random lengths up to these; the first has the full ones."""
    random = np.random.default_rng(7)

    def ids(width: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = random.integers(min(1, width), width + 1, rows).astype(np.int32)
        lengths[0] = width
        values = random.integers(6, VOCABULARY, (rows, width)).astype(np.int32)
        return np.where(np.arange(width)[None] < lengths[:, None], values, 0).astype(np.int32), lengths

    parts = [ids(width) for width in (prefix, response)]
    past, said = [ids(width) for width in histories], [ids(width) for width in summaries]
    weights = random.uniform(0.2, 1.0, (rows, response)).astype(np.float32)
    weights[:, 1] = 0  # a token that is given and not judged
    return Batch(
        prefix=parts[0][0],
        prefix_length=parts[0][1],
        histories=tuple(each[0] for each in past),
        history_lengths=tuple(each[1] for each in past),
        summaries=tuple(each[0] for each in said),
        summary_lengths=tuple(each[1] for each in said),
        response=parts[1][0],
        response_length=parts[1][1],
        weights=np.where(np.arange(response)[None] < parts[1][1][:, None], weights, 0).astype(np.float32),
        index=np.arange(rows, dtype=np.int32),
    )


def alone(batch: Batch, row: int) -> Batch:
    """One example of a batch without any padding."""

    def cut(ids: Any, lengths: Any) -> Any:
        return ids[row : row + 1, : lengths[row]]

    one = jax.tree.map(lambda values: values[row : row + 1], batch)
    return Batch(
        prefix=cut(batch.prefix, batch.prefix_length),
        prefix_length=one.prefix_length,
        histories=tuple(map(cut, batch.histories, batch.history_lengths)),
        history_lengths=one.history_lengths,
        summaries=tuple(map(cut, batch.summaries, batch.summary_lengths)),
        summary_lengths=one.summary_lengths,
        response=cut(batch.response, batch.response_length),
        response_length=one.response_length,
        weights=cut(batch.weights, batch.response_length),
        index=one.index,
    )


def filled(batch: Batch, rows: int) -> Batch:
    """The batch with filler rows at its end."""

    def longer(values: Any) -> Any:
        return np.concatenate([values, np.zeros((rows, *values.shape[1:]), values.dtype)])

    wide: Batch = jax.tree.map(longer, batch)
    wide.index[-rows:] = -1
    return wide


def relative(found: Any, wanted: Any) -> float:
    """Largest difference of two trees, as a share of the largest value."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True))
    assert pairs
    scale = max(float(jnp.max(jnp.abs(b))) for _, b in pairs)
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs) / scale
