"""Specs on the command line: parsing, naming, and messages that help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from strategies import policies, rules

import costmodel_jax as cm
from costmodel_jax import specs
from costmodel_jax.specs import cache_name, parse_arch, parse_cache, parse_policy, policy_name


@given(policies())
@settings(max_examples=60)
def test_every_policy_is_parsed_from_its_name(policy: cm.policies.Policy) -> None:
    assert parse_policy(policy_name(policy)) == policy


@given(rules())
@settings(max_examples=60)
def test_every_rule_is_parsed_from_its_name(rule: cm.CacheRule) -> None:
    assert parse_cache(cache_name(rule)) == rule


@pytest.mark.parametrize("name", list(cm.cache_rules))
def test_presets_are_parsed_and_named(name: str) -> None:
    assert parse_cache(name) == cm.cache_rules[name]
    assert cm.cache_rules[cache_name(cm.cache_rules[name])] == cm.cache_rules[name]


@pytest.mark.parametrize(
    ("text", "policy", "name"),
    [
        ("keep-latest:1", cm.KeepLatest(1), "keep-latest:1"),
        ("keep-latest", cm.KeepLatest(5), "keep-latest:5"),
        ("Clear_Every:k=3", cm.ClearEvery(3), "clear-every:3"),
        ("drop-immediately", cm.DropImmediately(), "drop"),
        ("clear-tool-results", cm.ClearToolResults(100_000, 3, 5_000), "clear-tool-results"),
        (
            "clear-tool-results:50k,keep=2,clear-at-least=0",
            cm.ClearToolResults(50_000, 2, 0),
            "clear-tool-results:50000,keep=2,clear_at_least=0",
        ),
        (
            "compact",
            cm.Compact(trigger=100_000, keep_tail=20_000, summary=2_000, instruction=500, aligned=True),
            "compact",
        ),
        (
            "compact: 8_000 , aligned=no",
            cm.Compact(trigger=8_000, keep_tail=20_000, summary=2_000, instruction=500, aligned=False),
            "compact:8000,aligned=false",
        ),
        (
            "compact-with-memory:slots=1M",
            cm.CompactWithMemory(
                trigger=100_000, keep_tail=20_000, summary=2_000, instruction=500, slots=1_000_000,
                memory_flops=2.0 * 1_940_016_388,
            ),
            "compact-with-memory:slots=1000000",
        ),
    ],
)  # fmt: skip
def test_policies_that_people_type(text: str, policy: cm.policies.Policy, name: str) -> None:
    assert parse_policy(text) == policy
    assert policy_name(policy) == name


@pytest.mark.parametrize(
    ("text", "rule", "name"),
    [
        ("vllm:block=32", cm.CacheRule(block=32, full_hit="minus_token", last_token="skipped"), "vllm:block=32"),
        ("vllm:32", cm.CacheRule(block=32, full_hit="minus_token", last_token="skipped"), "vllm:block=32"),
        ("prompt:block=16", cm.CacheRule(reuse="prompt", block=16), "prompt:block=16"),
        ("prompt+generation:block=16", cm.CacheRule(block=16), "paper-16"),
        (
            "checkpoint:528,dense=true",
            cm.CacheRule(reuse="checkpoint", block=528, dense=True),
            "checkpoint:block=528,dense=true",
        ),
        (
            "window:window=128,block=16",
            cm.CacheRule(reuse="window", block=16, window=128),
            "window:block=16,window=128",
        ),
        ("anthropic:ttl=none", cm.CacheRule(reuse="prompt", min_tokens=1024), "prompt:min_tokens=1024"),
        ("paper:ttl=0.5", cm.CacheRule(ttl=0.5), "prompt+generation:ttl=0.5"),
    ],
)
def test_caches_that_people_type(text: str, rule: cm.CacheRule, name: str) -> None:
    assert parse_cache(text) == rule
    assert cache_name(rule) == name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("keep-latst:3", ["did you mean keep-latest?", "Known: keep-all, drop"]),
        ("", ["give a name"]),
        ("keep-all:3", ["'3'", "takes no fields"]),
        ("keep-latest:k=1,k=2", ["k is given twice"]),
        ("keep-latest:1,2", ["'2'", "Fields: k"]),
        ("keep-latest:x", ["k = 'x'", "whole number"]),
        ("keep-latest:1.5", ["k = '1.5'", "whole number"]),
        ("keep-latest:-1", ["KeepLatest.k = -1", "at least 0"]),
        ("clear-every:0", ["ClearEvery.k = 0", "at least 1"]),
        ("compact:tail=5", ["unknown field 'tail' (did you mean keep_tail?)"]),
        ("compact:aligned=maybe", ["aligned = 'maybe'", "true or false"]),
        ("compact-with-memory:memory_flops=nan", ["memory_flops = 'nan'", "at least 0"]),
        ("compact-with-memory:memory_flops=-1", ["memory_flops = '-1'", "at least 0"]),
    ],
)
def test_wrong_policies_say_what_would_be_right(text: str, parts: list[str]) -> None:
    with pytest.raises(cm.InputError) as caught:
        parse_policy(text)
    assert "policy" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("vlm", ["did you mean vllm?", "Known: paper, paper-16"]),
        ("vllm:blck=3", ["did you mean block?", "Fields: reuse, block"]),
        ("vllm:block=0", ["CacheRule.block = 0", "at least 1"]),
        ("vllm:full_hit=some", ["full_hit = 'some'", "minus_token"]),
        ("window", ["window"]),
        ("paper:ttl=soon", ["ttl = 'soon'"]),
    ],
)
def test_wrong_caches_say_what_would_be_right(text: str, parts: list[str]) -> None:
    with pytest.raises(cm.InputError) as caught:
        parse_cache(text)
    for part in ["cache", *parts]:
        assert part in str(caught.value)


def test_a_policy_without_a_name_is_refused() -> None:
    class Own(cm.KeepAll):
        pass

    with pytest.raises(cm.CostModelError, match="Own has no name; named: keep-all"):
        policy_name(Own())


def test_architectures_by_preset_file_and_folder(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden" / "architectures" / "qwen3.json"
    config = json.loads(golden.read_text())
    config = config.get("config", config)
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert parse_arch("qwen3-8b") is cm.architectures["Qwen3-8B"]
    from_folder, from_file = parse_arch(str(folder)), parse_arch(str(folder / "config.json"))
    assert from_folder.prices() == from_file.prices() == cm.Architecture.from_hf(config).prices()


def test_an_unknown_architecture_is_refused_with_the_presets() -> None:
    with pytest.raises(cm.InputError, match=r"did you mean Qwen3-8B\?.*Presets: .*Qwen3.6-27B"):
        parse_arch("Qwen3-8")


def test_defaults_are_parsed_and_named_as_they_are_written() -> None:
    assert [policy_name(parse_policy(text)) for text in specs.DEFAULT_POLICIES] == list(specs.DEFAULT_POLICIES)
    assert [cache_name(parse_cache(text)) for text in specs.DEFAULT_CACHES] == list(specs.DEFAULT_CACHES)
    assert [parse_arch(text).name for text in specs.DEFAULT_ARCHITECTURES] == list(specs.DEFAULT_ARCHITECTURES)
    assert {type(parse_policy(text)) for text in specs.DEFAULT_POLICIES} == {
        kind.policy for kind in specs.POLICIES.values()
    }
