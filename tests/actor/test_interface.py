"""The interface: padding, packing, positions, caches that branch and grow, taps, early stops, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_checks import GOLDEN

from remory_jax.actor import Actor, load_actor

# One family per kind of memory: rings and sinks; keys, values and recurrent states; latents and a shared selection;
# pools, per-channel decays and residual streams.
FAMILIES = ("gpt_oss", "qwen3_5", "glm_moe_dsa", "glm5_next")


@pytest.fixture(scope="module", params=FAMILIES)
def actor(request: pytest.FixtureRequest) -> Actor:
    return load_actor(GOLDEN / request.param)


@pytest.fixture(scope="module")
def llama() -> Actor:
    return load_actor(GOLDEN / "llama")


def some_ids(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 96, (rows, length)).astype(np.int32)


def same(ours: object, wanted: object, atol: float = 2e-4) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(wanted), rtol=0, atol=atol)


def test_right_padding_then_decoding(actor: Actor) -> None:
    """Rows of unequal length, padded on the right, go on as if each were alone; padding never enters a memory."""
    ids = some_ids(2, 33)
    lengths = (33, 9)
    segments = (np.arange(33)[None, :] < np.asarray(lengths)[:, None]).astype(np.int32)
    out = actor(tokens=np.where(segments > 0, ids, 95), segment_ids=segments)
    more = some_ids(2, 3, seed=1)
    after = actor(tokens=more, cache=out.cache)
    alone = actor(tokens=np.stack([np.r_[ids[1, :9], more[1], ids[0, :21]]]))
    same(out.hidden[1, :9], alone.hidden[0, :9])
    same(after.hidden[1], alone.hidden[0, 9:12])
    whole = actor(tokens=np.concatenate([ids[:1], more[:1]], axis=1))
    same(after.hidden[0], whole.hidden[0, 33:])


def test_packed_segments_do_not_see_one_another(actor: Actor) -> None:
    first, second = some_ids(1, 21, seed=2), some_ids(1, 12, seed=3)
    gap = np.zeros((1, 3), np.int32)
    packed = np.concatenate([gap[:, :2], first, gap, second], axis=1)
    segments = np.asarray([[0] * 2 + [4] * 21 + [0] * 3 + [7] * 12], np.int32)
    out = actor(tokens=packed, segment_ids=segments)
    alone = actor(
        tokens=np.concatenate([first, second], axis=1), segment_ids=np.asarray([[1] * 21 + [2] * 12], np.int32)
    )
    same(out.hidden[0, 2:23], alone.hidden[0, :21])
    same(out.hidden[0, 26:], alone.hidden[0, 21:])
    single = actor(tokens=second)
    same(out.hidden[0, 26:], single.hidden[0])
    more = some_ids(1, 4, seed=4)
    same(
        actor(tokens=more, segment_ids=np.full((1, 4), 7, np.int32), cache=out.cache).hidden,
        actor(tokens=np.concatenate([second, more], axis=1)).hidden[:, 12:],
    )


def test_an_id_that_returns_is_another_segment(actor: Actor) -> None:
    """In the same call and from a cache; the delta rule, windows, selections and pools all go by it."""
    a, b, c = (some_ids(1, length, seed) for seed, length in ((21, 18), (22, 7), (23, 9)))
    ids = np.concatenate([a, b, c], axis=1)
    returning = actor(tokens=ids, segment_ids=np.asarray([[1] * 18 + [2] * 7 + [1] * 9], np.int32))
    distinct = actor(tokens=ids, segment_ids=np.asarray([[1] * 18 + [2] * 7 + [3] * 9], np.int32))
    assert bool(jnp.array_equal(returning.hidden, distinct.hidden))
    halves = actor(tokens=ids[:, :25], segment_ids=np.asarray([[1] * 18 + [2] * 7], np.int32))
    same(actor(tokens=c, segment_ids=np.ones((1, 9), np.int32), cache=halves.cache).hidden, distinct.hidden[:, 25:])


def test_a_cache_branches(actor: Actor) -> None:
    """Several continuations of one prefix, one after another or side by side, leave one another alone."""
    prefix = actor(tokens=some_ids(1, 19, seed=5))
    ends = some_ids(2, 4, seed=6)
    one, two = (actor(tokens=end[None], cache=prefix.cache) for end in ends)
    both = actor(tokens=ends, cache=prefix.cache.take(jnp.asarray([0, 0])))
    same(both.hidden, jnp.concatenate([one.hidden, two.hidden]))
    again = actor(tokens=ends[:1], cache=prefix.cache)
    assert bool(jnp.array_equal(again.hidden, one.hidden))


def test_a_cache_grows_and_its_size_changes_nothing(actor: Actor) -> None:
    ids = some_ids(1, 24, seed=7)
    small = actor(tokens=ids[:, :20])
    large = actor(tokens=ids[:, :20], capacity=64)
    assert small.cache.capacity == 20
    assert large.cache.capacity == 64
    grown = actor(tokens=ids[:, 20:], cache=small.cache)
    assert grown.cache.capacity >= 24
    assert int(grown.cache.used) == 24
    same(grown.hidden, actor(tokens=ids[:, 20:], cache=large.cache).hidden)
    assert int(grown.cache.lengths[0]) == 24


def test_an_overflow_under_jit_is_nan_not_another_token(llama: Actor) -> None:
    ids = some_ids(1, 8)
    full = llama(tokens=ids).cache
    step = jax.jit(lambda actor, ids, cache: actor(tokens=ids, cache=cache).hidden)
    assert bool(jnp.all(jnp.isnan(step(llama, ids[:, :1], full))))
    assert bool(jnp.all(jnp.isfinite(step(llama, ids[:, :1], full.grow(9)))))


def test_taps_in_any_order_and_early_stops(actor: Actor) -> None:
    ids = some_ids(2, 17, seed=8)
    depth = len(actor.config.layers)
    every = actor(tokens=ids, taps=range(depth))
    picked = (depth - 1, 0, depth - 1)
    assert bool(jnp.array_equal(actor(tokens=ids, taps=picked).taps, every.taps[jnp.asarray(picked)]))
    for last in {0, depth // 2, depth - 2}:
        stopped = actor(tokens=ids, taps=(last,), stop_after_layer=last)
        assert stopped.hidden is None
        assert stopped.cache is None
        same(stopped.taps[0], every.taps[last])


def test_features_from_a_cache_and_their_gradient(actor: Actor) -> None:
    """Soft rows run to a middle layer from a prefix's cache: as at a merge of memories, with a gradient."""
    ids = some_ids(1, 20, seed=9)
    layer = len(actor.config.layers) // 2
    embeddings = actor.embed(ids)
    prefix = actor(embeddings=embeddings[:, :13])

    def branched(x: jax.Array) -> jax.Array:
        out = actor(embeddings=x, cache=prefix.cache.grow(20), taps=(layer,), stop_after_layer=layer)
        return jnp.sum(jnp.sin(out.taps))

    def whole(x: jax.Array) -> jax.Array:
        joined = jnp.concatenate([embeddings[:, :13], x], axis=1)
        out = actor(embeddings=joined, taps=(layer,), stop_after_layer=layer, use_cache=False)
        return jnp.sum(jnp.sin(out.taps[:, :, 13:]))

    value, gradient = jax.jit(jax.value_and_grad(branched))(embeddings[:, 13:])
    wanted, wanted_gradient = jax.jit(jax.value_and_grad(whole))(embeddings[:, 13:])
    same(value, wanted, atol=2e-3)
    scale = float(jnp.max(jnp.abs(wanted_gradient)))
    same(gradient / scale, wanted_gradient / scale, atol=5e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3_5_moe"])
def test_remat_changes_nothing(family: str) -> None:
    actor = load_actor(GOLDEN / family)
    x = actor.embed(some_ids(1, 18, seed=10))

    def loss(x: jax.Array, remat: bool) -> jax.Array:
        return jnp.sum(jnp.sin(actor(embeddings=x, remat=remat, use_cache=False).hidden))

    kept, again = (jax.jit(jax.grad(loss), static_argnums=1)(x, remat) for remat in (False, True))
    scale = float(jnp.max(jnp.abs(kept)))
    same(again / scale, kept / scale, atol=1e-4)


def test_explicit_positions(llama: Actor) -> None:
    """Positions move the angles alone: a constant shift changes nothing for rotary attention, a gap does."""
    ids = some_ids(1, 16, seed=11)
    plain = llama(tokens=ids).hidden
    positions = np.arange(16, dtype=np.int32)[None]
    same(llama(tokens=ids, positions=positions + 100).hidden, plain)
    assert float(jnp.max(jnp.abs(llama(tokens=ids, positions=positions * 3).hidden - plain))) > 1e-2
    # What comes after counts on from the last position given.
    out = llama(tokens=ids[:, :10], positions=positions[:, :10] + 50)
    same(llama(tokens=ids[:, 10:], cache=out.cache).hidden, plain[:, 10:])


def test_ids_are_the_embeddings_of_ids(llama: Actor) -> None:
    ids = some_ids(2, 11)
    assert bool(jnp.array_equal(llama(tokens=ids).hidden, llama(embeddings=llama.embed(ids)).hidden))
    assert bool(jnp.all(jnp.isnan(llama.embed(np.asarray([[96]], np.int32)))))
    same(llama.logits(llama(tokens=ids).hidden), llama(tokens=ids).hidden @ llama.head)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either tokens"),
        ({"tokens": some_ids(1, 4), "embeddings": np.zeros((1, 4, 32), np.float32)}, "not both"),
        ({"embeddings": np.zeros((1, 4, 16), np.float32)}, "width 16"),
        ({"tokens": some_ids(1, 4), "taps": (3,)}, "tap 3"),
        ({"tokens": some_ids(1, 4), "taps": (-1,)}, "tap -1"),
        ({"tokens": some_ids(1, 4), "taps": (2,), "stop_after_layer": 1}, "stops after layer 1"),
        ({"tokens": some_ids(1, 4), "stop_after_layer": 9}, "stop_after_layer = 9"),
        ({"tokens": some_ids(1, 4), "positions": some_ids(1, 5)}, "positions has shape"),
        ({"tokens": some_ids(1, 4), "segment_ids": some_ids(2, 4)}, "segment_ids has shape"),
        ({"tokens": some_ids(1, 4), "capacity": 3}, "capacity = 3"),
        ({"tokens": some_ids(1, 4), "attention": "flash9"}, "flash9"),
    ],
)
def test_what_is_refused(llama: Actor, arguments: dict[str, object], words: str) -> None:
    arguments = {key: jnp.asarray(v) if isinstance(v, np.ndarray) else v for key, v in arguments.items()}
    with pytest.raises(ValueError, match=words):
        llama(**arguments)  # type: ignore[arg-type]


def test_a_cache_of_other_rows_is_refused(llama: Actor) -> None:
    cache = llama(tokens=some_ids(2, 4)).cache
    with pytest.raises(ValueError, match=r"2 rows and the call 1.*take"):
        llama(tokens=some_ids(1, 4), cache=cache)
