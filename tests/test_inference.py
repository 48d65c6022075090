from pathlib import Path

import numpy as np
import pytest

import costmodel_jax as cm


def simulated(rule: cm.CacheRule, *, short: dict[int, int] | None = None, calls: int = 30, seed: int = 0) -> cm.Run:
    """A run whose measured hits are what ``rule`` gives, less ``short[t]`` tokens at call t."""
    draw = np.random.default_rng(seed)
    data = [
        {
            "input": [{"kind": "system", "tokens": 5000}] * (t == 0)
            + [{"kind": "tool", "tokens": int(draw.integers(50, 900))}],
            "output": [{"kind": "assistant", "tokens": int(draw.integers(100, 700))}],
        }
        for t in range(calls)
    ]
    counts = cm.count(cm.pack([cm.Run.from_dict({"id": "s", "calls": data})]), cm.KeepAll(), rule)
    for t, call in enumerate(data):
        call["usage"] = {
            "prompt_tokens": int(counts.prompt[0, t]),
            "cached_tokens": int(counts.reused[0, t]) - (short or {}).get(t, 0),
            "output_tokens": call["output"][0]["tokens"],
        }
    return cm.Run.from_dict({"id": "s", "calls": data})


@pytest.mark.parametrize("name", ["vllm", "openai", "deepseek", "vllm-embeds", "sglang"])
def test_recovers_the_rule_that_made_the_log(name: str) -> None:
    rule = cm.cache_rules[name]
    inferred = cm.infer_cache_rule(simulated(rule))
    assert inferred.unit == rule.block
    assert inferred.generation_reused is (rule.reuse == "prompt+generation")
    assert (inferred.short, inferred.beyond) == (0, 0)
    assert inferred.matches[0].exact == inferred.calls == 30
    assert cm.cache_rules[inferred.matches[0].name].reuse == rule.reuse


def test_shortfall_and_its_price() -> None:
    prices = cm.Prices(linear=1000.0, pair=1.0)
    run = simulated(cm.cache_rules["openai"], short={4: 128, 9: 256})
    inferred = cm.infer_cache_rule(run, prices)
    assert (inferred.unit, inferred.short, inferred.shortfall) == (128, 2, 384)
    expected = sum(cm.rebuild_cost(prices, H=run.calls[t].usage.cached_tokens, n=n) for t, n in ((4, 128), (9, 256)))
    assert inferred.shortfall_flops == pytest.approx(expected)
    assert "Short of that rule: 2 calls, 384 tokens in all" in inferred.describe()


def test_explicit_breakpoints_are_seen() -> None:
    read, calls = 0, []
    for t in range(5):
        prompt = 2000 + 300 * t
        calls.append(
            {
                "input": [{"kind": "system", "tokens": 1990}] * (t == 0)
                + [{"kind": "tool", "tokens": 10 + 240 * (t > 0)}],
                "output": [{"kind": "assistant", "tokens": 50}],
                "usage": {
                    "prompt_tokens": prompt,
                    "cached_tokens": read,
                    "cache_write_5m": prompt - read - 3,
                    "output_tokens": 50,
                },
            }
        )
        read = prompt - 3
    inferred = cm.infer_cache_rule(cm.Run.from_dict({"id": "a", "calls": calls}))
    assert inferred.written_before == 4
    assert inferred.generation_reused is False
    assert inferred.unit == 1


def test_a_run_that_cannot_tell_says_so() -> None:
    run = simulated(cm.CacheRule())
    without = cm.Run.from_dict({"id": "s", "calls": [{**call, "usage": None} for call in run.to_dict()["calls"]]})
    with pytest.raises(cm.CostModelError, match="no measured cache hits"):
        cm.infer_cache_rule(without)
    undecided = cm.infer_cache_rule(simulated(cm.CacheRule(block=100_000), calls=2))
    assert undecided.generation_reused is None
    data = simulated(cm.CacheRule(), calls=1).to_dict()
    data["calls"][0]["usage"]["cached_tokens"] = 4000
    assert "no call could show" in cm.infer_cache_rule(cm.Run.from_dict(data)).describe()


def test_hits_beyond_the_rule_are_a_prefix_shared_elsewhere() -> None:
    run = simulated(cm.cache_rules["openai"])
    first = run.calls[0]
    data = run.to_dict()
    data["calls"][0]["usage"]["cached_tokens"] = 4992
    assert first.usage.cached_tokens == 0
    inferred = cm.infer_cache_rule(cm.Run.from_dict(data))
    assert (inferred.beyond, inferred.surplus) == (1, 4992)


def test_a_log_without_hits_is_the_rule_none() -> None:
    inferred = cm.infer_cache_rule(simulated(cm.CacheRule("none")))
    assert (inferred.hits, inferred.rule.reuse, inferred.short) == (0, "none", 0)
    assert inferred.describe().startswith("None of 30 calls hit")


def test_a_few_hits_show_no_unit() -> None:
    assert cm.infer_cache_rule(simulated(cm.cache_rules["openai"], calls=3)).unit == 1


@pytest.mark.parametrize(
    ("log", "unit", "generation_reused", "fits"),
    [
        ("codex/rollout-2026-02-23T12-47-42-bdf481a5-2b5e-7b35-b250-18ccf612188e.jsonl", 128, True, 75),
        ("codex/rollout-2026-02-23T12-40-23-86ae01bb-18d9-7e22-a690-0f5632a6a1c9.jsonl", 128, True, 63),
        ("codex/rollout-2025-09-24T19-22-20-44b9d8d5-114e-7241-9bd3-8788ac20cb0b.jsonl", 128, True, 76),
        ("claude_code/session-four.jsonl", 1, False, 12),
    ],
)
def test_real_logs(shared: Path, log: str, unit: int, generation_reused: bool, fits: int) -> None:
    """Codex finds generated text again, in units of 128; Claude Code's breakpoints end where the prompt ended."""
    (run,) = cm.load_runs(shared / "logs" / log)
    inferred = cm.infer_cache_rule(run)
    assert (inferred.unit, inferred.generation_reused) == (unit, generation_reused)
    assert inferred.matches[0].exact == fits
    if not generation_reused:
        assert inferred.written_before == 28
