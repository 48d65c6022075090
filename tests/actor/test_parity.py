"""Every family against transformers: recordings of our own, and the larger ones beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest
from actor_checks import (
    FAMILIES,
    GOLDEN,
    Recording,
    check_cache,
    check_embeddings,
    check_greedy,
    check_ids_and_padding,
    recording,
)


@pytest.fixture(scope="module", params=FAMILIES)
def ours(request: pytest.FixtureRequest) -> Recording:
    return recording(GOLDEN / request.param)


def test_ids_and_left_padding(ours: Recording) -> None:
    check_ids_and_padding(ours)


def test_embeddings_layers_and_gradient(ours: Recording) -> None:
    check_embeddings(ours)


# Variants differ from these in layout or numbers, not in what a cache does; the larger recordings below run them all.
CACHED = ("glm4_moe_lite", "glm5_next", "glm_moe_dsa", "gpt_oss", "llama", "qwen3_5", "qwen3_moe", "qwen3_next")


@pytest.mark.parametrize("ours", CACHED, indirect=True)
def test_chunked_and_cached(ours: Recording) -> None:
    check_cache(ours, int(ours.arrays["chunk"]), 4)


@pytest.mark.parametrize("ours", CACHED, indirect=True)
def test_greedy_ids(ours: Recording) -> None:
    check_greedy(ours, 8)


@pytest.fixture(scope="module", params=FAMILIES)
def theirs(request: pytest.FixtureRequest, shared: Path) -> Recording:
    return recording(shared / "golden" / "actors" / request.param)


@pytest.mark.slow
def test_shared_ids_and_left_padding(theirs: Recording) -> None:
    check_ids_and_padding(theirs)


@pytest.mark.slow
def test_shared_embeddings_layers_and_gradient(theirs: Recording) -> None:
    check_embeddings(theirs)


@pytest.mark.slow
def test_shared_chunked_and_cached(theirs: Recording) -> None:
    check_cache(theirs, 67, 10)


@pytest.mark.slow
def test_shared_greedy_ids(theirs: Recording) -> None:
    check_greedy(theirs, 16)
