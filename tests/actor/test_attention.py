"""Every attention implementation against a float64 loop over queries, and what the fast ones promise besides."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from remory_jax.actor.attention import IMPLEMENTATIONS, Tokens, attention, choose, visible
from remory_jax.actor.attention.blocked import blocked
from remory_jax.actor.attention.splash import DIMS, splash
from remory_jax.actor.attention.visibility import columnar
from remory_jax.mesh import make_mesh

SCALE = 0.3
NAMES = ("q", "k", "v", "sinks")

DENSE: dict[str, Callable[..., Any]] = {
    "reference": functools.partial(attention, implementation="reference"),
    "dot_product": functools.partial(attention, implementation="dot_product"),
    "blocked 8 by 8": functools.partial(blocked, rows=8, columns=8),
    "blocked 16 by 5": functools.partial(blocked, rows=16, columns=5),
}
EMULATED = {"splash": functools.partial(splash, interpret=True)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call in numpy; ``runs`` are (segment, tokens) of each row, 0 for padding."""

    runs: tuple[tuple[tuple[int, int], ...], ...] = (((1, 37),), ((1, 37),))
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (8, 8)
    window: int | None = None
    sinks: bool = False
    selected: bool = False
    restart: bool = True  # ranks count anew in each segment
    cached: int | None = None  # keys are this many slots, the queries' tokens among them
    queries: int | None = None  # the last so many tokens; without ``cached`` the keys are all tokens, in order
    dtype: Any = np.float32


NEAR = functools.partial(Case, window=7, sinks=True)

CASES = {
    "one key head each": Case(heads=(3, 3)),
    "grouped, narrow values": Case(heads=(6, 2), dims=(8, 6)),
    "one key head, wide values": Case(heads=(5, 1), dims=(6, 10)),
    "window 1": Case(window=1),
    "window beyond the row": Case(window=100),
    "window and sinks": NEAR(),
    "packed": NEAR(runs=(((1, 10), (2, 20), (3, 7)), ((7, 1), (9, 36)))),
    "packed, ranks run on": NEAR(runs=(((1, 10), (2, 20), (3, 7)), ((7, 1), (9, 36))), restart=False),
    "packed, ids descend": NEAR(runs=(((3, 10), (2, 20), (1, 7)), ((9, 1), (7, 36)))),
    "left padding": NEAR(runs=(((0, 30), (1, 7)), ((0, 3), (1, 34)))),
    "right padding": NEAR(runs=(((1, 5), (0, 32)), ((1, 37),))),
    "padding inside": NEAR(runs=(((1, 9), (0, 17), (1, 11)), ((0, 2), (1, 10), (0, 9), (1, 5), (0, 11)))),
    "a row of padding": NEAR(runs=(((0, 37),), ((1, 37),))),
    "selected": Case(selected=True),
    "selected, window, sinks": NEAR(selected=True),
    "cached": Case(cached=53, queries=11),
    "cached, packed": Case(cached=53, queries=11, runs=(((1, 10), (2, 27)), ((1, 30), (2, 7)))),
    "cached, everything": NEAR(cached=53, queries=11, selected=True, dims=(8, 4)),
    "behind a cache": Case(queries=11),
    "behind a cache, window and sinks": NEAR(queries=11, runs=(((1, 20), (0, 9), (1, 8)), ((0, 3), (1, 34)))),
    "decoding": Case(cached=90, queries=1, heads=(6, 2)),
    "one token": Case(runs=(((1, 1),), ((0, 1),))),
}


@functools.cache
def arrays(case: Case) -> dict[str, Any]:
    """Inputs and the gradient of the output, deterministic."""
    rng = np.random.default_rng(7)
    segments = np.array([[segment for segment, count in row for _ in range(count)] for row in case.runs], np.int32)
    batch, length = segments.shape
    ranks = np.zeros_like(segments)
    for row in range(batch):
        next_rank: dict[int, int] = {}
        for column in range(length):
            owner = int(segments[row, column]) if case.restart else 1
            if segments[row, column]:
                ranks[row, column] = next_rank.get(owner, 0)
                next_rank[owner] = next_rank.get(owner, 0) + 1
    queries = keys = (segments, ranks)
    if case.cached is not None:
        ranks = ranks * 2 + rng.integers(0, 2, ranks.shape).astype(np.int32)  # gaps
        slots = [np.full((batch, case.cached), fill, np.int32) for fill in (0, 5)]  # unused slots have some rank
        for row in range(batch):
            places = rng.permutation(case.cached)[:length]  # a ring: no order among the slots
            for slot, values in zip(slots, (segments, ranks), strict=True):
                slot[row, places] = values[row]
        keys = (slots[0], slots[1])
    if case.queries is not None:
        queries = (segments[:, -case.queries :], ranks[:, -case.queries :])
    count, total = queries[0].shape[1], keys[0].shape[1]
    heads, groups = case.heads
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    found: dict[str, Any] = {
        "q": draw(batch, count, heads, case.dims[0]) * 2,
        "k": draw(batch, total, groups, case.dims[0]) * 2,
        "v": draw(batch, total, groups, case.dims[1]),
        "dout": draw(batch, count, heads, case.dims[1]),
        "sinks": draw(heads) if case.sinks else None,
        "selected": rng.random((batch, count, total)) < 0.4 if case.selected else None,
        "queries": queries,
        "keys": keys,
    }
    for name in ("q", "k", "v", "dout"):
        found[name] = np.asarray(jnp.asarray(found[name], case.dtype).astype(jnp.float32))
    return found


@functools.cache
def visible_pairs(case: Case) -> list[tuple[int, int, list[int]]]:
    """Row, query, and the keys it sees, from the definition."""
    x, found = arrays(case), []
    (q_segments, q_ranks), (k_segments, k_ranks) = x["queries"], x["keys"]
    for row, column in np.ndindex(*q_segments.shape):
        seen = []
        for key in range(k_segments.shape[1]):
            distance = int(q_ranks[row, column]) - int(k_ranks[row, key])
            if q_segments[row, column] == 0 or q_segments[row, column] != k_segments[row, key] or distance < 0:
                continue
            if case.window is not None and distance >= case.window:
                continue
            if x["selected"] is None or x["selected"][row, column, key]:
                seen.append(key)
        found.append((row, column, seen))
    return found


def oracle(case: Case, **changed: np.ndarray) -> np.ndarray:
    """The output in float64, one query and head at a time; ``changed`` replaces inputs."""
    x = arrays(case) | changed
    q, k, v = (np.asarray(x[name], np.float64) for name in ("q", "k", "v"))
    heads, groups = case.heads
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for row, column, seen in visible_pairs(case):
        for head in range(heads if seen else 0):
            group = head // (heads // groups)
            scores = k[row, seen, group] @ q[row, column, head] * SCALE
            extra = [] if x["sinks"] is None else [float(x["sinks"][head])]
            weights = np.exp(np.concatenate([scores, extra]) - max([*scores, *extra]))
            out[row, column, head] = (weights / weights.sum())[: len(seen)] @ v[row, seen, group]
    return out


@functools.cache
def slopes(case: Case) -> dict[str, tuple[np.ndarray, float]]:
    """For each input a direction, and how fast sum(out * dout) rises along it: central differences of the oracle."""
    x, rng, step = arrays(case), np.random.default_rng(1), 1e-4
    found = {}
    for name in NAMES:
        if x[name] is not None:
            direction = rng.standard_normal(x[name].shape)
            ahead, behind = (oracle(case, **{name: x[name] + sign * step * direction}) for sign in (1.0, -1.0))
            found[name] = direction, float(np.sum((ahead - behind) * x["dout"]) / (2 * step))
    return found


@functools.cache
def program(name: str, window: int | None, aligned: bool) -> Callable[..., Any]:
    """Output and gradients by one implementation; cases of one shape share the compiled program."""
    function = (DENSE | EMULATED | {"chosen": attention})[name]

    def run(x: dict[str, Any], dout: Any, queries: Tokens, keys: Tokens, selected: Any) -> Any:
        def inner(x: dict[str, Any]) -> Any:
            return function(
                x["q"],
                x["k"],
                x["v"],
                queries=queries,
                keys=keys,
                scale=SCALE,
                window=window,
                sinks=x["sinks"],
                selected=selected,
                aligned=aligned,
            )

        out, back = jax.vjp(inner, x)
        return out, back(dout)[0]

    return run


@functools.cache
def quick(name: str, window: int | None, aligned: bool) -> Callable[..., Any]:
    """Compiled with few optimisations: the small programs here take longer to compile than to run."""
    return jax.jit(program(name, window, aligned), compiler_options={"xla_backend_optimization_level": 0})


def call(case: Case, name: str, compile: Callable[..., Any] = quick) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Output and gradients in the case's dtype."""
    x = arrays(case)
    inputs = {key: jnp.asarray(x[key], case.dtype) for key in ("q", "k", "v")}
    inputs["sinks"] = None if x["sinks"] is None else jnp.asarray(x["sinks"])
    selected = None if x["selected"] is None else jnp.asarray(x["selected"])
    queries, keys = (Tokens(segments=jnp.asarray(a), ranks=jnp.asarray(b)) for a, b in (x["queries"], x["keys"]))
    run = compile(name, case.window, case.cached is None)
    out, gradients = run(inputs, jnp.asarray(x["dout"], case.dtype), queries, keys, selected)
    assert out.dtype == case.dtype
    present = [key for key in NAMES if inputs[key] is not None]
    assert all(gradients[key].dtype == inputs[key].dtype for key in present)
    return np.asarray(out, np.float32), {key: np.asarray(gradients[key], np.float32) for key in present}


def takes(name: str, case: Case) -> bool:
    if name == "blocked 16 by 5":
        return case.window == 7  # of one shape, mostly: one program
    return name != "dot_product" or case.dims[0] == case.dims[1]


@functools.cache
def by_reference(case: Case) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    return call(case, "reference")


@pytest.mark.parametrize(
    ("name", "label"), [(name, label) for label, case in CASES.items() for name in DENSE if takes(name, case)]
)
def test_output_and_gradients(name: str, label: str) -> None:
    case = CASES[label]
    out, gradients = call(case, name)
    np.testing.assert_allclose(out, oracle(case), rtol=2e-5, atol=2e-5)
    expected = slopes(case)
    assert set(gradients) == set(expected)
    for argument, (direction, slope) in expected.items():
        assert np.sum(gradients[argument] * direction) == pytest.approx(slope, rel=2e-4, abs=2e-3), argument
    for argument, gradient in by_reference(case)[1].items():
        np.testing.assert_allclose(gradients[argument], gradient, rtol=2e-4, atol=5e-5, err_msg=argument)
    # what sees nothing and what nothing sees: exact zeros
    blind = np.ones(out.shape[:2], bool)
    unseen = np.ones(gradients["k"].shape[:2], bool)
    for row, column, seen in visible_pairs(case):
        blind[row, column] = not seen
        unseen[row, seen] = False
    assert not out[blind].any() and not gradients["q"][blind].any()
    assert not gradients["k"][unseen].any() and not gradients["v"][unseen].any()


@pytest.mark.parametrize("name", DENSE)
def test_bfloat16(name: str) -> None:
    case = NEAR(heads=(6, 2), dtype=jnp.bfloat16)
    with jax.numpy_dtype_promotion("standard" if name == "dot_product" else "strict"):
        out, gradients = call(case, name)
    np.testing.assert_allclose(out, oracle(case), rtol=0.02, atol=0.02)
    exact = by_reference(NEAR(heads=(6, 2)))[1]
    for argument, gradient in gradients.items():
        error = np.linalg.norm(gradient - exact[argument]) / np.linalg.norm(exact[argument])
        assert error < 0.02, argument


@pytest.mark.parametrize("name", DENSE)
def test_large_scores_do_not_overflow(name: str) -> None:
    case = NEAR()
    x = arrays(case)
    big = {key: jnp.asarray(x[key]) * 100.0 for key in ("q", "k")} | {
        key: jnp.asarray(x[key]) for key in ("v", "sinks")
    }
    tokens = Tokens(segments=jnp.asarray(x["queries"][0]), ranks=jnp.asarray(x["queries"][1]))
    out, gradients = quick(name, case.window, True)(big, jnp.asarray(x["dout"]), tokens, tokens, None)
    np.testing.assert_allclose(out, oracle(case, q=x["q"] * 100, k=x["k"] * 100), rtol=1e-2, atol=1e-2)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def tokens_of(segments: list[list[int]], ranks: list[list[int]]) -> Tokens:
    return Tokens(segments=jnp.asarray(segments, jnp.int32), ranks=jnp.asarray(ranks, jnp.int32))


def test_visible_by_hand() -> None:
    queries = tokens_of([[1, 1, 0, 2]], [[4, 5, 6, 0]])
    keys = tokens_of([[1, 0, 1, 2, 1]], [[2, 4, 5, 0, 4]])
    seen = visible(queries, keys, None)[0]
    assert np.asarray(seen).astype(int).tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [0] * 5, [0, 0, 0, 1, 0]]
    near = visible(queries, keys, 3)[0]
    assert np.asarray(near).astype(int).tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 0, 1], [0] * 5, [0, 0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("segments", "ranks", "expected"),
    [
        ([0, 1, 1, 1, 0], [0, 0, 1, 2, 2], True),
        ([1, 1, 2, 2, 3], [0, 1, 0, 1, 0], True),
        ([1, 1, 0, 2, 2], [0, 1, 1, 0, 3], True),  # padding between segments, a gap in the ranks
        ([1, 1, 0, 1, 1], [0, 1, 1, 2, 3], False),  # padding inside a segment
        ([1, 0, 0, 1, 1], [0, 0, 0, 3, 4], True),  # that the ranks count
        ([1, 2, 1, 2, 1], [0, 0, 1, 1, 2], False),  # interleaved
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], True),
    ],
)
def test_columns_that_count_like_ranks(segments: list[int], ranks: list[int], expected: bool) -> None:
    assert bool(columnar(tokens_of([segments], [ranks]))) is expected
    # a window by columns holds the window by ranks wherever the answer is yes
    tokens = tokens_of([segments], [ranks])
    for window in range(1, 6) if expected else ():
        by_rank = np.asarray(visible(tokens, tokens, window))[0]
        columns = np.arange(5)
        assert not (by_rank & (columns[:, None] - columns[None, :] >= window)).any()


@pytest.mark.parametrize("kind", ["causal", "window", "segments", "padding", "cache"])
def test_blocked_never_reads_hidden_chunks(kind: str) -> None:
    """Chunks that no query of a block sees hold NaN, which any product with them would spread."""
    size, chunks = 8, 5
    column = np.arange(size * chunks)
    segments, ranks, window, queries = np.ones_like(column), column, None, slice(None)
    readable = {block: set(range(block + 1)) for block in range(chunks)}  # chunks of each block of queries
    if kind == "window":
        window = 6
        readable = {block: {block - 1, block} - {-1} for block in range(chunks)}
    elif kind == "segments":
        segments, ranks = 1 + column // 16, column % 16
        readable = {block: set(range(block // 2 * 2, block + 1)) for block in range(chunks)}
    elif kind == "padding":
        segments = np.where(column < 16, 0, 1)
        readable = {block: set(range(2, block + 1)) for block in range(chunks)}
    elif kind == "cache":  # the rest of the slots is unused
        segments, queries = np.where(column < 24, 1, 0), slice(16, 24)
        readable = {0: {0, 1, 2}}
    keys = tokens_of([segments.tolist()], [ranks.tolist()])
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, size * chunks, 2, 4)).astype(np.float32) for _ in range(3))
    q = q[:, queries]
    mine = jax.tree.map(lambda x: x[:, queries], keys)

    def run(k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        x = {"q": jnp.asarray(q), "k": jnp.asarray(k), "v": jnp.asarray(v), "sinks": None}
        out, gradients = quick("blocked 8 by 8", window, kind != "cache")(x, jnp.ones_like(x["q"]), mine, keys, None)
        return [np.asarray(out), np.asarray(gradients["q"])]

    for block, seen in readable.items():
        rows = slice(block * size, (block + 1) * size)
        poisoned = [x.copy() for x in (k, v)]
        for chunk in set(range(chunks)) - seen:
            for x in poisoned:
                x[:, chunk * size : (chunk + 1) * size] = np.nan
        assert all(np.isfinite(result[:, rows]).all() for result in run(*poisoned))
        if seen:  # and the poison works
            poisoned[0][:, max(seen) * size] = np.nan
            assert all(np.isnan(result[:, rows]).any() for result in run(*poisoned))


def lowered(implementation: str, length: int, *, gradient: bool) -> Any:
    shape = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def run(q: Any, k: Any, v: Any, segments: Any, ranks: Any) -> Any:
        tokens = Tokens(segments=segments, ranks=ranks)
        out = attention(
            q, k, v, queries=tokens, keys=tokens, scale=0.125, aligned=True, implementation=implementation
        )  # fmt: skip
        return jnp.sum(out * out)

    function = jax.grad(run, (0, 1, 2)) if gradient else run
    return jax.jit(function).lower(shape, shape, shape, ids, ids)


@pytest.mark.parametrize("gradient", [False, True])
def test_blocked_keeps_no_scores(gradient: bool) -> None:
    temporary = {
        name: lowered(name, 4096, gradient=gradient).compile().memory_analysis().temp_size_in_bytes
        for name in ("reference", "blocked")
    }
    assert temporary["reference"] > 2 * 4096 * 4096 * 4
    assert temporary["blocked"] < temporary["reference"] / 8
    # and what it keeps grows with the length, not with its square
    longer = lowered("blocked", 16384, gradient=gradient).compile().memory_analysis().temp_size_in_bytes
    assert longer < 5 * temporary["blocked"]


def test_program_size_does_not_grow_with_length() -> None:
    short, long = (len(lowered("blocked", length, gradient=True).as_text()) for length in (1024, 65536))
    assert long < 1.1 * short


KERNEL = functools.partial(Case, dims=(64, 64))

SPLASH = {
    "several blocks, window, sinks": KERNEL(
        runs=(((0, 9), (1, 375)), ((1, 200), (2, 156), (0, 28))), window=140, sinks=True
    ),
    "causal, packed": KERNEL(runs=(((0, 20), (1, 50), (3, 40), (0, 18)), ((1, 128),))),
    "padding inside a window": KERNEL(runs=(((1, 40), (0, 40), (1, 48)),), window=30),
    "window beyond the row": KERNEL(runs=(((1, 128),),), heads=(2, 2), window=500),
    "no whole tiles": KERNEL(runs=(((1, 100), (0, 30)), ((1, 130),)), heads=(2, 1)),
    "behind a cache": KERNEL(runs=(((1, 150), (0, 40), (1, 100)), ((0, 30), (1, 130), (2, 130))), queries=130),
    "window behind a cache": KERNEL(runs=(((1, 150), (0, 40), (1, 100)),), queries=130, window=30),
    "wide keys": KERNEL(runs=(((1, 100), (0, 28)),), dims=(192, 128), heads=(2, 1)),
}


@pytest.mark.parametrize("label", SPLASH)
def test_splash_emulated(label: str) -> None:
    case = SPLASH[label]
    out, gradients = call(case, "splash")
    expected, expected_gradients = by_reference(case)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert set(gradients) == set(expected_gradients)
    for argument, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[argument], gradient, rtol=1e-3, atol=5e-4, err_msg=argument)
    padding, key_padding = (arrays(case)[tokens][0] == 0 for tokens in ("queries", "keys"))
    assert not out[padding].any() and not gradients["q"][padding].any()
    assert all(not gradients[argument][key_padding].any() for argument in ("k", "v"))


@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_splash_lowers_for_tpu(dims: tuple[int, int], window: int | None) -> None:
    """As far as one gets without a TPU: the kernels of the forward and both backward passes pass Mosaic's lowering."""
    shapes = ((4, dims[0]), (2, dims[0]), (2, dims[1]))
    q, k, v = (jax.ShapeDtypeStruct((2, 384, *shape), jnp.bfloat16) for shape in shapes)
    ids = jax.ShapeDtypeStruct((2, 384), jnp.int32)

    def run(q: Any, k: Any, v: Any, sinks: Any, segments: Any, ranks: Any) -> Any:
        tokens = Tokens(segments=segments, ranks=ranks)
        out = splash(q, k, v, queries=tokens, keys=tokens, scale=0.1, window=window, sinks=sinks, aligned=True)
        return jnp.sum(out.astype(jnp.float32))

    traced = jax.jit(jax.grad(run, (0, 1, 2, 3))).trace(q, k, v, jax.ShapeDtypeStruct((4,), jnp.float32), ids, ids)
    assert traced.lower(lowering_platforms=("tpu",)).as_text().count("@tpu_custom_call") == 3


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("blocked 16 by 5", {"data": 2, "fsdp": 2, "tensor": 2}),
        ("splash", {"data": 2, "fsdp": 2, "tensor": 2}),
        ("splash", {"data": 1, "fsdp": 2, "tensor": 4}),
    ],
)
def test_on_a_mesh(name: str, sizes: dict[str, int]) -> None:
    """Rows and heads stay where they are: nothing is gathered. Two key heads do not divide over four devices."""
    runs = (((1, 128),), ((0, 20), (1, 108)), ((1, 60), (2, 68)), ((1, 100), (0, 28)))
    case = Case(runs=runs, dims=(64, 64), heads=(4, 2), window=40, sinks=True)
    expected, expected_gradients = by_reference(case)
    x = arrays(case)
    mesh = make_mesh(**sizes)
    fits = sizes["tensor"] == 2
    spec = PartitionSpec(("data", "fsdp"), None, "tensor" if fits else None, None)
    put = lambda value, spec: jax.device_put(jnp.asarray(value), NamedSharding(mesh, spec))  # noqa: E731
    inputs = {key: put(x[key], spec) for key in ("q", "k", "v")} | {"sinks": put(x["sinks"], PartitionSpec(spec[2]))}
    segments, ranks = (put(value, PartitionSpec(spec[0])) for value in x["queries"])
    tokens = Tokens(segments=segments, ranks=ranks)
    arguments = (inputs, put(x["dout"], spec), tokens, tokens, None)
    with jax.set_mesh(mesh):
        compiled = quick(name, case.window, True).lower(*arguments).compile()
        out, gradients = compiled(*arguments)
    np.testing.assert_allclose(np.asarray(out), expected, rtol=2e-5, atol=2e-5)
    for argument, gradient in gradients.items():
        np.testing.assert_allclose(np.asarray(gradient), expected_gradients[argument], rtol=2e-4, atol=1e-4)
    if fits:
        assert not re.findall(r"all-gather|all-to-all|collective-permute", compiled.as_text())
        assert out.sharding.is_equivalent_to(inputs["q"].sharding, 4)


@pytest.mark.parametrize(
    ("backend", "length", "dims", "aligned", "selected", "expected"),
    [
        ("cpu", 1024, (64, 64), True, False, "blocked"),
        ("cpu", 1, (64, 64), False, False, "blocked"),
        ("tpu", 1024, (64, 64), True, False, "splash"),
        ("tpu", 640, (192, 128), True, False, "splash"),
        ("tpu", 1000, (64, 64), True, False, "splash"),
        ("tpu", 1024, (96, 96), True, False, "blocked"),
        ("tpu", 1024, (64, 64), False, False, "blocked"),
        ("tpu", 1024, (64, 64), True, True, "blocked"),
        ("tpu", 1, (64, 64), False, False, "reference"),
        ("gpu", 1024, (64, 64), True, False, "blocked"),
        ("gpu", 8, (64, 64), False, False, "reference"),
    ],
)
def test_choice(
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    length: int,
    dims: tuple[int, int],
    aligned: bool,
    selected: bool,
    expected: str,
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert choose(length, *dims, aligned=aligned, selected=selected) == expected


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_none_takes_the_choice(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """With the default block sizes of CPU and of accelerators, and all of XLA's optimisations."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    case = NEAR(runs=(((1, 120), (2, 60)),))
    out, gradients = call(case, "chosen", lambda *how: jax.jit(program(*how)))
    expected, expected_gradients = by_reference(case)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
    for argument, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[argument], gradient, rtol=2e-4, atol=1e-4, err_msg=argument)


def plain(**changed: Any) -> Any:
    x: dict[str, Any] = {
        "q": jnp.zeros((1, 4, 4, 8)),
        "k": jnp.zeros((1, 4, 2, 8)),
        "v": jnp.zeros((1, 4, 2, 8)),
        "tokens": tokens_of([[1] * 4], [[0, 1, 2, 3]]),
    } | {name: changed.pop(name) for name in ("q", "k", "v", "tokens", "keys") if name in changed}
    return attention(
        x["q"], x["k"], x["v"], queries=x["tokens"], keys=x.get("keys", x["tokens"]), scale=1.0, **changed
    )  # fmt: skip


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"'flash' is not an attention; use one of reference, dot_product, cudnn"):
        plain(implementation="flash")
    with pytest.raises(ValueError, match="window = 0"):
        plain(window=0)
    with pytest.raises(ValueError, match="4 heads and k 3"):
        plain(k=jnp.zeros((1, 4, 3, 8)), v=jnp.zeros((1, 4, 3, 8)))
    with pytest.raises(ValueError, match="dtypes float32, bfloat16, bfloat16"):
        plain(k=jnp.zeros((1, 4, 2, 8), jnp.bfloat16), v=jnp.zeros((1, 4, 2, 8), jnp.bfloat16))
    with pytest.raises(ValueError, match=r"k \(1, 0, 2, 8\) is empty"):
        plain(k=jnp.zeros((1, 0, 2, 8)), v=jnp.zeros((1, 0, 2, 8)), keys=tokens_of([[]], [[]]))
    fewer = tokens_of([[1] * 3], [[0, 1, 2]])
    with pytest.raises(ValueError, match="4 queries and 3 keys"):
        plain(k=jnp.zeros((1, 3, 2, 8)), v=jnp.zeros((1, 3, 2, 8)), keys=fewer, aligned=True)
    with pytest.raises(ValueError, match="value_dim = 6, dim = 8"):
        plain(v=jnp.zeros((1, 4, 2, 6)), implementation="dot_product")


@pytest.mark.parametrize(
    ("length", "dim", "changed", "reason"),
    [
        (128, 64, {}, "aligned = False"),
        (128, 64, {"aligned": True, "selected": True}, "a selection of keys"),
        (128, 48, {"aligned": True}, r"\(48, 48\) are none of \(64, 64\)"),
    ],
)
def test_calls_splash_cannot_take(length: int, dim: int, changed: dict[str, bool], reason: str) -> None:
    q = k = v = jnp.zeros((1, length, 2, dim))
    tokens = tokens_of([[1] * length], [list(range(length))])
    selected = jnp.ones((1, length, length), bool) if changed.get("selected") else None
    with pytest.raises(ValueError, match=reason):
        aligned = changed.get("aligned", False)
        plain(q=q, k=k, v=v, tokens=tokens, selected=selected, aligned=aligned, implementation="splash")


def test_every_name_is_offered() -> None:
    assert set(IMPLEMENTATIONS) == {"reference", "dot_product", "cudnn", "blocked", "splash"}
