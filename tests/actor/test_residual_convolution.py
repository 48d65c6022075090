"""The residual convolution of ``conv_llama``: its definition, caches, packing, padding, gradients, and its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_checks import GOLDEN
from folders import same as same_bits
from folders import stored

from costmodel_jax import InputError
from costmodel_jax.architecture import Architecture
from remory_jax import make_mesh
from remory_jax.actor import Actor, ActorConfig, init_actor, load_actor, save_actor
from remory_jax.actor.config import DeltaNet, LayerConfig
from remory_jax.actor.decoder import parameters

FIELDS: dict[str, Any] = {
    "model_type": "conv_llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "conv_kernel": 4,
    "tie_word_embeddings": True,
}


def with_kernels(actor: Actor, scale: float | int = 0.4, seed: int = 1) -> Actor:
    """The actor with random kernels: initial ones are zero."""

    def changed(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if path[-1].key != "convolution":
            return leaf
        return scale * jax.random.normal(jax.random.key(seed), leaf.shape, leaf.dtype)

    return replace(actor, weights=jax.tree_util.tree_map_with_path(changed, actor.weights))


@pytest.fixture(scope="module")
def actor() -> Actor:
    return with_kernels(init_actor(ActorConfig.from_hf(FIELDS), seed=3))


def ids(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 96, (rows, length)).astype(np.int32)


def close(ours: object, wanted: object) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(wanted), rtol=0, atol=1e-4)


def test_new_kernels_are_zero_and_change_nothing() -> None:
    """Its values are a llama's, whose definitions it has besides."""
    conv = init_actor(ActorConfig.from_hf(FIELDS), seed=3)
    plain = init_actor(ActorConfig.from_hf(FIELDS | {"model_type": "llama"}), seed=3)
    assert bool(jnp.array_equal(conv(tokens=ids(2, 9)).hidden, plain(tokens=ids(2, 9)).hidden))
    assert conv.config.parameter_count == plain.config.parameter_count + 3 * 4 * 32
    assert conv.config != plain.config


def test_the_first_layer_against_a_loop(actor: Actor) -> None:
    """A llama that is given x_t + sum_j w_(3-j) x_(t-j) does what the first layer does."""
    plain = init_actor(ActorConfig.from_hf(FIELDS | {"model_type": "llama"}), seed=3)
    x = np.asarray(actor.embed(ids(2, 11)), np.float64)
    kernel = np.asarray(actor.weights["groups"][0][0]["convolution"][0], np.float64)  # [D, 4]
    mixed = x.copy()
    for t in range(11):
        for back in range(min(t, 3) + 1):
            mixed[:, t] += kernel[:, 3 - back] * x[:, t - back]
    wanted = plain(embeddings=jnp.asarray(mixed, jnp.float32), taps=(0,)).taps
    ours = actor(tokens=ids(2, 11), taps=(0,)).taps
    close(ours, wanted)
    assert float(jnp.max(jnp.abs(ours - plain(tokens=ids(2, 11), taps=(0,)).taps))) > 0.1


def test_cached_decoding_equals_the_whole(actor: Actor) -> None:
    tokens = ids(2, 23, seed=4)
    whole = actor(tokens=tokens).hidden
    for cuts in ((1, 2, 12, 13), tuple(range(1, 23))):
        cache, parts = None, []
        for part in np.split(tokens, cuts, axis=1):
            out = actor(tokens=part, cache=cache, capacity=32 if cache is None else None)
            cache, parts = out.cache, [*parts, out.hidden]
        close(jnp.concatenate(parts, axis=1), whole)


def test_packed_and_padded_rows(actor: Actor) -> None:
    """Segments side by side, padding at both ends and between them, and a call after padding at the right."""
    first, second, more = ids(1, 9, seed=5), ids(1, 7, seed=6), ids(1, 5, seed=7)
    gap = np.full((1, 2), 95, np.int32)
    packed = np.concatenate([gap, first, gap, second, gap], axis=1)
    segments = np.asarray([[0] * 2 + [4] * 9 + [0] * 2 + [7] * 7 + [0] * 2], np.int32)
    out = actor(tokens=packed, segment_ids=segments)
    close(out.hidden[:, 2:11], actor(tokens=first).hidden)
    close(out.hidden[:, 13:20], actor(tokens=second).hidden)
    close(
        actor(tokens=more, segment_ids=np.full((1, 5), 7, np.int32), cache=out.cache).hidden,
        actor(tokens=np.concatenate([second, more], axis=1)).hidden[:, 7:],
    )
    touching = actor(tokens=np.concatenate([first, second], axis=1), segment_ids=segments[segments > 0][None])
    close(touching.hidden[:, 9:], actor(tokens=second).hidden)


def test_branches_and_early_stops(actor: Actor) -> None:
    prefix = actor(tokens=ids(1, 6, seed=8))
    ends = ids(2, 4, seed=9)
    both = actor(tokens=ends, cache=prefix.cache.take(jnp.asarray([0, 0])))
    for row, end in enumerate(ends):
        close(both.hidden[row], actor(tokens=end[None], cache=prefix.cache).hidden[0])
    taps = actor(tokens=ends, taps=(0, 1, 2)).taps
    close(actor(tokens=ends, taps=(1,), stop_after_layer=1).taps[0], taps[1])


def test_gradient_reaches_the_tokens_before(actor: Actor) -> None:
    """And is that of finite differences, with layers recomputed or not."""
    x = actor.embed(ids(1, 8, seed=10))
    direction = jax.random.normal(jax.random.key(0), x.shape)

    def loss(x: jax.Array, remat: bool) -> jax.Array:
        return jnp.sum(jnp.sin(actor(embeddings=x, use_cache=False, remat=remat).hidden[:, -1]))

    gradient = jax.grad(loss)(x, False)
    close(jax.grad(loss)(x, True), gradient)
    step = 1e-3
    slope = (float(loss(x + step * direction, False)) - float(loss(x - step * direction, False))) / (2 * step)
    assert slope == pytest.approx(float(jnp.vdot(gradient, direction)), rel=2e-2, abs=1e-3)


def test_meshes(actor: Actor) -> None:
    config = actor.config
    spread = with_kernels(init_actor(config, seed=3, mesh=make_mesh(data=2, fsdp=2, tensor=2)))
    close(spread(tokens=ids(4, 10)).hidden, actor(tokens=ids(4, 10)).hidden)


def test_folder_and_back(actor: Actor, tmp_path: Path) -> None:
    folder = save_actor(actor, tmp_path / "saved")
    again = load_actor(folder)
    assert again.config == actor.config
    assert same_bits(again.weights, actor.weights)
    written = stored(folder)
    assert written["model.layers.1.residual_conv.weight"].shape == (32, 1, 4)
    kernels = actor.weights["groups"][0][0]["convolution"]
    np.testing.assert_array_equal(written["model.layers.1.residual_conv.weight"][:, 0], kernels[1])


def test_flops() -> None:
    """Those of the llama, and 2 x taps x width per position and layer."""
    ours, plain = (
        Architecture.from_hf(FIELDS | {"model_type": kind}).prices(state=True) for kind in ("conv_llama", "llama")
    )
    assert (ours.linear, ours.pair) == (plain.linear, plain.pair)
    assert ours.state - plain.state == 3 * 2 * 4 * 32


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"conv_kernel = 1"):
        ActorConfig.from_hf(FIELDS | {"conv_kernel": 1})
    layer = ActorConfig.from_hf(FIELDS).layers[0]
    with pytest.raises(ValueError, match="convolution = -1"):
        replace(layer, convolution=-1)
    config = ActorConfig.from_hf(FIELDS)
    delta = next(layer for layer in ActorConfig.from_hf(GOLDEN / "qwen3_5").layers if isinstance(layer.mixer, DeltaNet))
    mixed = replace(config, layers=(replace(layer, convolution=5), LayerConfig(**vars(delta))))
    with pytest.raises(ValueError, match=r"\[4, 5\] taps"):
        init_actor(mixed)(tokens=ids(1, 4))
    hyper = replace(ActorConfig.from_hf(GOLDEN / "glm5_next"), layers=config.layers)
    with pytest.raises(ValueError, match="hyper-connections"):
        parameters(hyper)
