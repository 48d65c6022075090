"""What cache rules refuse, and what the presets are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import costmodel_jax as cm


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reuse": "all"}, "CacheRule.reuse = 'all'; use one of none, prompt"),
        ({"block": 0}, "CacheRule.block = 0 must be at least 1"),
        ({"block": 2.0}, "CacheRule.block = 2.0 must be an integer"),
        ({"full_hit": "half"}, "CacheRule.full_hit = 'half'"),
        ({"last_token": "kept"}, "CacheRule.last_token = 'kept'"),
        ({"min_tokens": -1}, "CacheRule.min_tokens = -1"),
        ({"ttl": -1.0}, "CacheRule.ttl = -1.0"),
        ({"ttl": float("nan")}, "CacheRule.ttl = nan"),
        ({"window": 128}, "they go together"),
        ({"reuse": "window"}, "they go together"),
        ({"dense": True}, "CacheRule.dense goes with reuse = 'checkpoint'"),
        ({"reuse": "window", "window": 128, "dense": True}, "equals 'prompt\\+generation'"),
    ],
)
def test_rules_that_make_no_sense(fields: dict[str, object], message: str) -> None:
    with pytest.raises(cm.CostModelError, match=message):
        cm.CacheRule(**fields)


def timed(*times: float | None) -> cm.Run:
    calls = [
        {"input": [{"kind": "user", "tokens": 100}], "output": [{"kind": "assistant", "tokens": 10}], "time": time}
        for time in times
    ]
    return cm.Run.from_dict({"id": "t", "calls": calls})


def test_lifetime_ends_after_an_idle_gap_and_starts_again() -> None:
    batch = cm.pack([timed(0.0, 299.0, 600.0, 899.0)])
    reused = cm.count(batch, cm.KeepAll(), cm.CacheRule(ttl=300)).reused[0, :4]
    np.testing.assert_array_equal(reused, [0, 110, 0, 330])


def test_lifetime_without_times_names_the_call() -> None:
    batch = cm.pack([timed(0.0, 1.0), timed(0.0, None)])
    with pytest.raises(cm.CostModelError, match=r"call 1 has none \(run 1 of the batch\)"):
        cm.count(batch, cm.KeepAll(), cm.CacheRule(ttl=300))
    with pytest.raises(cm.CostModelError, match="needs the time of every call"):
        jax.jit(lambda b: cm.count(b, cm.KeepAll(), cm.CacheRule(ttl=300)))(batch)


def test_numbers_of_a_rule_can_be_traced() -> None:
    batch = cm.pack([timed(0.0, 299.0, 600.0, 899.0)])
    for make, values in (
        (lambda v: cm.CacheRule(block=v), [1, 16, 64]),
        (lambda v: cm.CacheRule(min_tokens=v), [0, 200]),
        (lambda v: cm.CacheRule(ttl=v), [1, 300, 1000]),
        (lambda v: cm.CacheRule("window", block=16, window=v), [32, 256]),
    ):
        swept = jax.vmap(lambda v, make=make: cm.count(batch, cm.KeepAll(), make(v)).reused)(jnp.asarray(values))
        alone = [cm.count(batch, cm.KeepAll(), make(value)).reused for value in values]
        np.testing.assert_array_equal(np.asarray(swept), np.stack(alone))


def test_presets() -> None:
    rules = cm.cache_rules
    assert rules["paper"] == cm.CacheRule("prompt+generation", block=1, full_hit="exact", last_token="counted")
    assert rules["paper-16"] == dataclasses.replace(rules["paper"], block=16)
    for name in ("vllm", "vllm-hybrid", "vllm-window", "vllm-embeds", "sglang", "llama.cpp"):
        assert (rules[name].full_hit, rules[name].last_token) == ("minus_token", "skipped")
    assert rules["vllm-embeds"].reuse == "prompt"
    with pytest.raises(TypeError):
        rules["vllm"] = cm.CacheRule()


def test_a_window_of_one_token_needs_nothing_kept() -> None:
    calls = [{"input": [{"kind": "system", "tokens": 4}]}, {"output": [{"kind": "assistant", "tokens": 5}]}, {}]
    batch = cm.pack([cm.Run.from_dict({"id": "w", "calls": calls})])
    for window, reused in ((1, [0, 4, 9]), (2, [0, 3, 4])):
        counts = cm.count(batch, cm.KeepAll(), cm.CacheRule("window", window=window))
        np.testing.assert_array_equal(counts.reused[0, :3], reused)


def test_drop_last_block_ladder() -> None:
    """cached = max(0, floor(n / B) - 1) * B when the same n tokens are sent again, as reported for B = 448."""
    rule = cm.CacheRule(block=448, full_hit="minus_block")
    for n in (100, 448, 896, 897, 2000):
        calls = [{"input": [{"kind": "user", "tokens": n}]}, {"input": []}]
        run = cm.Run.from_dict({"id": "n", "calls": calls})
        assert cm.count(cm.pack([run]), cm.KeepAll(), rule).reused[0, 1] == max(0, n // 448 - 1) * 448
