"""Generation: greedy and sampled, unequal prompts, stop ids, streams, from a cache, and one program per size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_checks import GOLDEN

from remory_jax.actor import Actor, generation, load_actor


@pytest.fixture(scope="module", params=["llama", "qwen3_5", "gpt_oss"])
def actor(request: pytest.FixtureRequest) -> Actor:
    return load_actor(GOLDEN / request.param)


@pytest.fixture(scope="module")
def llama() -> Actor:
    return load_actor(GOLDEN / "llama")


def prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 96, length).tolist() for length in lengths]


def greedy_by_hand(actor: Actor, prompt: list[int], count: int) -> list[int]:
    """The definition: the likeliest next token of the whole text so far, without a cache."""
    ids = list(prompt)
    for _ in range(count):
        width = 64  # one program: padding on the right is never seen by what comes before it
        row = np.asarray([ids + [0] * (width - len(ids))], np.int32)
        segments = (np.arange(width)[None] < len(ids)).astype(np.int32)
        hidden = actor(tokens=row, segment_ids=segments, use_cache=False).hidden[:, len(ids) - 1 : len(ids)]
        ids.append(int(jnp.argmax(actor.logits(hidden)[0, 0])))
    return ids


def test_unequal_prompts_equal_each_alone(actor: Actor) -> None:
    batch = prompts(11, 3, 17)
    together = actor.generate(batch, max_new_tokens=6, stop_ids=())
    assert together == [greedy_by_hand(actor, prompt, 6) for prompt in batch]


def test_forms_of_prompts(llama: Actor) -> None:
    [prompt] = prompts(9)
    one = llama.generate(prompt, max_new_tokens=4)
    assert isinstance(one, list)
    assert one[:9] == prompt
    assert llama.generate([prompt], max_new_tokens=4) == [one]
    array = llama.generate(np.asarray([prompt], np.int32), max_new_tokens=4)
    np.testing.assert_array_equal(array, [one])


def test_stop_ids_end_a_row_and_belong_to_it(llama: Actor) -> None:
    batch = prompts(9, 6)
    free = llama.generate(batch, max_new_tokens=8, stop_ids=())
    stop = free[0][9 + 2]
    stopped = llama.generate(batch, max_new_tokens=8, stop_ids=(stop,))
    for row, whole, prompt in zip(stopped, free, batch, strict=True):
        new = whole[len(prompt) :]
        end = new.index(stop) + 1 if stop in new else 8
        assert row == whole[: len(prompt) + end]
    array = llama.generate(np.asarray(batch[:1], np.int32), max_new_tokens=8, stop_ids=(stop,), pad_id=95)
    assert array[0].tolist() == stopped[0]
    steps = list(llama.stream(batch, max_new_tokens=8, stop_ids=(stop,)))
    assert [int(step[0]) for step in steps][: len(stopped[0]) - 9] == stopped[0][9:]
    assert all(int(step[0]) == -1 for step in steps[len(stopped[0]) - 9 :])


def test_a_stream_is_the_generation_step_by_step(llama: Actor) -> None:
    [prompt] = prompts(7)
    tokens = [int(step[0]) for step in llama.stream(prompt, max_new_tokens=5)]
    assert [*prompt, *tokens] == llama.generate(prompt, max_new_tokens=5)


def test_generation_goes_on_from_a_cache() -> None:
    actor = load_actor(GOLDEN / "qwen3_5")
    batch = prompts(14, 14)
    whole = actor.generate(batch, max_new_tokens=5, stop_ids=())
    prefix = actor(tokens=np.asarray(batch, np.int32)[:, :10])
    rest = [prompt[10:] for prompt in batch]
    for _ in range(2):  # the cache is as it was after the first
        after = actor.generate(rest, max_new_tokens=5, stop_ids=(), cache=prefix.cache)
        assert [row[4:] for row in after] == [row[14:] for row in whole]


def test_samples_follow_seed_temperature_and_nucleus(llama: Actor) -> None:
    [prompt] = prompts(8)
    draws = [llama.generate(prompt, max_new_tokens=12, temperature=6.0, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    greedy = llama.generate(prompt, max_new_tokens=12)
    assert llama.generate(prompt, max_new_tokens=12, temperature=1.0, top_p=1e-6, seed=3) == greedy
    assert llama.generate(prompt, max_new_tokens=12, temperature=1e-4, seed=3) == greedy


def test_sampled_frequencies(llama: Actor) -> None:
    """4,000 draws of one next token against its probabilities, with the nucleus cut as defined."""
    hidden = llama(tokens=np.asarray(prompts(8), np.int32)).hidden[:, -1:]
    probability = jax.nn.softmax(llama.logits(hidden)[0, 0] / 6)
    order = jnp.argsort(-probability)
    before = jnp.cumsum(probability[order]) - probability[order]
    kept = set(order[np.asarray(before) < 0.6].tolist())
    assert 1 < len(kept) < 60
    wide = jnp.broadcast_to(hidden, (4000, *hidden.shape[1:]))
    sampling = generation.Sampling(
        temperature=jnp.float32(6),
        top_p=jnp.float32(0.6),
        key=jax.random.key(0),
        greedy=False,
        nucleus=True,
        stop_ids=(),
    )
    token, _ = generation._choose(llama, wide, jnp.zeros(4000, bool), jnp.int32(0), sampling)
    counts = np.bincount(np.asarray(token), minlength=96)
    assert set(np.flatnonzero(counts).tolist()) <= kept
    total = sum(float(probability[index]) for index in kept)
    for index in kept:
        share = float(probability[index]) / total
        assert abs(counts[index] / 4000 - share) < 5 * (share / 4000) ** 0.5 + 1e-3


def test_one_compiled_step_serves_all_tokens_and_similar_prompts(llama: Actor) -> None:
    llama.generate(prompts(5), max_new_tokens=6)
    compiled = generation._step._cache_size()
    llama.generate(prompts(21), max_new_tokens=9)
    assert generation._step._cache_size() == compiled


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"temperature": -0.5}, "temperature = -0.5"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"top_p": 1.5}, "top_p = 1.5"),
    ],
)
def test_options_out_of_range(llama: Actor, options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llama.generate([1, 2], **({"max_new_tokens": 2} | options))


def test_empty_prompts(llama: Actor) -> None:
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        llama.generate([[1], []], max_new_tokens=2)
    with pytest.raises(ValueError, match="no prompt"):
        llama.generate([], max_new_tokens=2)
