"""The gated delta rule and the short convolution against float64 loops over the real tokens of one row at a time."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from remory_jax.actor.delta import gated_delta_rule, short_convolution
from remory_jax.actor.delta.triangular import unit_lower_inverse
from remory_jax.mesh import make_mesh

Values = dict[str, np.ndarray]
HEADS, DK, DV, CHANNELS, TAPS = 2, 4, 3, 3, 4
IMPLEMENTATIONS = [("recurrent", None), ("chunked", 1), ("chunked", 8), ("chunked", None)]
DECAYS = ["head", "channel"]

# Runs of (segment id, tokens); 0 is padding. 37 tokens: boundaries inside and at edges of chunks of 8 to 32, ids that
# come back, padding at both ends, between segments and inside one.
ROWS = [
    [(1, 37)],
    [(0, 5), (1, 32)],
    [(2, 30), (0, 7)],
    [(1, 8), (2, 8), (1, 16), (3, 5)],
    [(0, 3), (4, 2), (5, 1), (6, 12), (0, 6), (6, 4), (0, 1), (7, 8)],
    [(0, 37)],
]
OWNERS = [1, 1, 3, 0, 4, 9]


def ids_of(row: list[tuple[int, int]]) -> list[int]:
    return [segment for segment, length in row for _ in range(length)]


SEGMENTS = np.array([ids_of(row) for row in ROWS], np.int32)


def segments_and_owners() -> dict[str, jax.Array]:
    return {"segment_ids": jnp.asarray(SEGMENTS), "state_segment_ids": jnp.asarray(OWNERS, jnp.int32)}


def draw(segments: np.ndarray, decay: str, seed: int = 0) -> Values:
    """Random inputs in float64, keys and queries of unit length."""
    rng = np.random.default_rng(seed)
    shape = (*segments.shape, HEADS)
    unit = {name: rng.normal(size=(*shape, DK)) for name in "qk"}
    values = {name: x / np.linalg.norm(x, axis=-1, keepdims=True) for name, x in unit.items()}
    values["v"] = rng.normal(size=(*shape, DV))
    values["log_decay"] = -np.exp(rng.normal(size=(*shape, DK) if decay == "channel" else shape) - 1)
    values["beta"] = 1 / (1 + np.exp(-2 * rng.normal(size=shape)))
    values["state"] = rng.normal(size=(len(segments), HEADS, DK, DV))
    return values


def single(values: Values) -> dict[str, jax.Array]:
    return {name: jnp.asarray(x, jnp.float32) for name, x in values.items()}


def real_runs(ids: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """(segment id, positions) of each run of equal ids once padding is dropped."""
    for segment, run in itertools.groupby((t for t in range(len(ids)) if ids[t]), key=lambda t: int(ids[t])):
        yield segment, list(run)


def delta_loop(values: Values, segments: np.ndarray, owners: list[int]) -> tuple[np.ndarray, np.ndarray]:
    out, states = np.zeros(values["v"].shape), values["state"].copy()
    for row, ids in enumerate(segments):
        for number, (segment, run) in enumerate(real_runs(ids)):
            carried = number == 0 and segment == owners[row]
            for head in range(values["v"].shape[2]):
                state = values["state"][row, head] if carried else np.zeros_like(values["state"][row, head])
                for t in run:
                    q, k, v, decay, beta = (values[n][row, t, head] for n in ("q", "k", "v", "log_decay", "beta"))
                    state = np.diag(np.broadcast_to(np.exp(decay), k.shape)) @ state
                    state = state + beta * np.outer(k, v - state.T @ k)
                    out[row, t, head] = state.T @ q
                states[row, head] = state
    return out, states


def convolution_loop(
    x: np.ndarray, weight: np.ndarray, segments: np.ndarray, history: np.ndarray, history_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    taps = weight.shape[1]
    y, last, last_ids = np.zeros(x.shape), np.zeros(history.shape), np.zeros(history_ids.shape, int)
    for row, ids in enumerate(segments):
        before = [(int(s), h) for s, h in zip(history_ids[row], history[row], strict=True) if s]
        now = [(int(ids[t]), x[row, t]) for t in range(len(ids)) if ids[t]]
        inputs, outputs = before + now, []
        for _, run in itertools.groupby(inputs, key=lambda pair: pair[0]):
            stacked = np.stack([value for _, value in run])
            padded = np.concatenate([np.zeros((taps - 1, x.shape[2])), stacked])
            outputs += [np.sum(padded[i : i + taps] * weight.T, axis=0) for i in range(len(stacked))]
        y[row, ids != 0] = np.reshape(outputs[len(before) :], (-1, x.shape[2]))
        for i, (segment, value) in enumerate(inputs[::-1][: taps - 1]):
            last[row, taps - 2 - i], last_ids[row, taps - 2 - i] = value, segment
    return y, last, last_ids


@functools.cache
def compiled(implementation: str | None, chunk: int | None) -> Callable[..., tuple[jax.Array, jax.Array]]:
    return jax.jit(functools.partial(gated_delta_rule, implementation=implementation, chunk=chunk))


convolve = jax.jit(short_convolution)


def close(found: Any, wanted: np.ndarray, tolerance: float = 3e-6) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("implementation", "chunk"), IMPLEMENTATIONS)
def test_packed_and_padded_rows(implementation: str, chunk: int | None, decay: str) -> None:
    values = draw(SEGMENTS, decay)
    wanted = delta_loop(values, SEGMENTS, OWNERS)
    for name in ("q", "k", "v", "log_decay", "beta"):
        values[name][SEGMENTS == 0] = np.nan
    values["state"][[2, 3]] = np.nan  # row 2 has another owner, row 3 none
    out, state = compiled(implementation, chunk)(**single(values), **segments_and_owners())
    close(out, wanted[0])
    close(state, wanted[1])
    np.testing.assert_array_equal(state[5], values["state"][5].astype(np.float32))


def test_without_a_state_rows_start_from_zero() -> None:
    values = draw(SEGMENTS, "head")
    values["state"][:] = 0
    wanted = delta_loop(values, SEGMENTS, [0] * len(ROWS))
    del values["state"]
    out, state = compiled("recurrent", None)(**single(values), segment_ids=jnp.asarray(SEGMENTS))
    close(out, wanted[0])
    close(state, wanted[1])
    ignored = jnp.full(wanted[1].shape, 7.0, jnp.float32)
    again, _ = compiled("recurrent", None)(**single(values), segment_ids=jnp.asarray(SEGMENTS), state=ignored)
    np.testing.assert_array_equal(out, again)


@pytest.mark.parametrize("length", [1, 7, 8, 20])
def test_short_calls_whatever_is_chosen(length: int) -> None:
    segments = SEGMENTS[:, :length]
    values = draw(segments, "channel", seed=length)
    wanted = delta_loop(values, segments, OWNERS)
    ids = {"segment_ids": jnp.asarray(segments), "state_segment_ids": jnp.asarray(OWNERS, jnp.int32)}
    out, state = compiled(None, None)(**single(values), **ids)
    close(out, wanted[0])
    close(state, wanted[1])


packed_rows = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=9)


def padded_to(length: int, runs: list[tuple[int, int]]) -> np.ndarray:
    return np.resize(np.array(ids_of(runs) + [0] * length, np.int32), length)


def owner_after(segments: np.ndarray) -> jax.Array:
    return jnp.asarray([next((int(i) for i in ids[::-1] if i), 0) for ids in segments], jnp.int32)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("implementation", "chunk"), [("recurrent", None), ("chunked", 8)])
@settings(max_examples=25)
@given(rows=st.tuples(*[packed_rows] * len(ROWS)), at=st.integers(0, 37), seed=st.integers(0, 99))
def test_two_calls_equal_one(
    rows: tuple[list[tuple[int, int]], ...], at: int, seed: int, implementation: str, chunk: int | None, decay: str
) -> None:
    """The first call sees what stands before ``at`` (and padding at its right), the second the rest (padding left)."""
    segments = np.stack([padded_to(37, runs) for runs in rows])
    values = draw(segments, decay, seed)
    values["state"][:] = 0
    wanted = delta_loop(values, segments, [0] * len(ROWS))
    before = np.arange(37)[None, :] < at
    first, second = np.where(before, segments, 0), np.where(before, 0, segments)
    run, inputs = compiled(implementation, chunk), single(values)
    none = jnp.zeros(len(ROWS), jnp.int32)
    out1, inputs["state"] = run(**inputs, segment_ids=jnp.asarray(first), state_segment_ids=none)
    out2, state = run(**inputs, segment_ids=jnp.asarray(second), state_segment_ids=owner_after(first))
    close(np.where(before[..., None, None], out1, out2), wanted[0])
    close(state, wanted[1])


@pytest.mark.parametrize("at", [5, 32])
def test_two_shorter_calls_equal_one(at: int) -> None:
    values = draw(SEGMENTS, "head")
    wanted = delta_loop(values, SEGMENTS, OWNERS)
    inputs = single(values)
    state, owners, outs = inputs.pop("state"), jnp.asarray(OWNERS, jnp.int32), []
    for piece in (slice(0, at), slice(at, None)):
        part = {name: x[:, piece] for name, x in inputs.items()}
        ids = SEGMENTS[:, piece]
        out, state = compiled(None, 16)(**part, segment_ids=jnp.asarray(ids), state=state, state_segment_ids=owners)
        outs.append(out)
        owners = jnp.where(jnp.any(ids != 0, axis=1), owner_after(ids), owners)
    close(jnp.concatenate(outs, axis=1), wanted[0])
    close(state, wanted[1])


def test_single_steps_equal_one_call() -> None:
    values = draw(SEGMENTS, "channel")
    wanted = delta_loop(values, SEGMENTS, OWNERS)
    inputs = single(values)
    state, owners, outs = inputs.pop("state"), jnp.asarray(OWNERS, jnp.int32), []
    for t in range(SEGMENTS.shape[1]):
        part = {name: x[:, t : t + 1] for name, x in inputs.items()}
        ids = jnp.asarray(SEGMENTS[:, t : t + 1])
        out, state = compiled(None, None)(**part, segment_ids=ids, state=state, state_segment_ids=owners)
        outs.append(out)
        owners = jnp.where(ids[:, 0] != 0, ids[:, 0], owners)
    close(jnp.concatenate(outs, axis=1), wanted[0])
    close(state, wanted[1])


@functools.cache
def compiled_gradients(implementation: str, chunk: int | None) -> Callable[..., tuple[Any, Any]]:
    """Of ``sum(out_weight * out) + sum(state_weight * state)``; also out and state."""

    def loss(inputs: dict[str, jax.Array], weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        ids = segments_and_owners()
        out, state = gated_delta_rule(**inputs, **ids, implementation=implementation, chunk=chunk)
        return jnp.sum(weights[0] * out) + jnp.sum(weights[1] * state), (out, state)

    return jax.jit(jax.grad(loss, has_aux=True))


def draw_weights(values: Values) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.normal(size=values["v"].shape), rng.normal(size=values["state"].shape)


def gradients_of(values: Values, implementation: str, chunk: int | None) -> tuple[Values, tuple[jax.Array, jax.Array]]:
    weights = tuple(jnp.asarray(w, jnp.float32) for w in draw_weights(values))
    gradients, found = compiled_gradients(implementation, chunk)(single(values), weights)
    return {name: np.asarray(x, np.float64) for name, x in gradients.items()}, found


HEAD = [("recurrent", None, "head"), ("chunked", 8, "head"), ("chunked", 32, "head")]
CHANNEL = [("recurrent", None, "channel"), ("chunked", 8, "channel")]


@pytest.mark.parametrize(("implementation", "chunk", "decay"), HEAD + CHANNEL)
def test_gradients_against_differences_of_the_loop(implementation: str, chunk: int | None, decay: str) -> None:
    """The slope along random directions, one per input, against central differences of the float64 loop."""
    values, directions = draw(SEGMENTS, decay), draw(SEGMENTS, decay, seed=1)
    weights = draw_weights(values)

    def loss(moved: Values) -> float:
        return float(sum((w * x).sum() for w, x in zip(weights, delta_loop(moved, SEGMENTS, OWNERS), strict=True)))

    gradients, _ = gradients_of(values, implementation, chunk)
    for name, gradient in gradients.items():
        step = 1e-5 * directions[name]
        slope = (loss(values | {name: values[name] + step}) - loss(values | {name: values[name] - step})) / 2e-5
        np.testing.assert_allclose(np.sum(gradient * directions[name]), slope, rtol=3e-5, err_msg=name)
        if name != "state":
            assert not gradient[SEGMENTS == 0].any(), name
    # Rows 2 and 3 do not own their state, and row 5 returns it.
    assert not gradients["state"][[2, 3]].any()
    close(gradients["state"][5], weights[1][5], 1e-6)


@pytest.mark.parametrize(("chunk", "decay"), [(8, "head"), (32, "head"), (8, "channel")])
def test_gradients_of_chunks_equal_those_of_tokens(chunk: int, decay: str) -> None:
    values = draw(SEGMENTS, decay)
    found, wanted = gradients_of(values, "chunked", chunk)[0], gradients_of(values, "recurrent", None)[0]
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("implementation", "chunk", "decay", "level"),
    [(*how, level) for how in CHANNEL for level in (-5.0, -80.0)]
    + [(*how, level) for how in HEAD for level in (-50.0, -3e38)],
)
def test_extreme_decays(implementation: str, chunk: int | None, decay: str, level: float) -> None:
    """Strong decays all over row 0 and at half of the tokens elsewhere: finite, right, no digits lost after them."""
    values = draw(SEGMENTS, decay)
    strong = np.random.default_rng(1).random(values["log_decay"].shape) < 0.5
    strong[0] = True
    values["log_decay"] = np.where(strong, level, values["log_decay"])
    wanted = delta_loop(values, SEGMENTS, OWNERS)
    gradients, (out, state) = gradients_of(values, implementation, chunk)
    close(out, wanted[0])
    close(state, wanted[1])
    token_by_token, _ = gradients_of(values, "recurrent", None)
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name
        np.testing.assert_allclose(gradient, token_by_token[name], rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("implementation", "chunk"), [("recurrent", None), ("chunked", 8)])
def test_decay_of_minus_infinity_forgets_everything(implementation: str, chunk: int | None) -> None:
    values = draw(SEGMENTS, "head")
    values["log_decay"][:, 7:37:10] = -np.inf
    wanted = delta_loop(values, SEGMENTS, OWNERS)
    ids = segments_and_owners()
    out, state = compiled(implementation, chunk)(**single(values), **ids)
    close(out, wanted[0])
    close(state, wanted[1])


def test_repeated_keys() -> None:
    """One key 37 times, written in full: powers of the triangular matrix reach 1e10, its inverse stays small."""
    values = draw(SEGMENTS, "head")
    values["k"][:] = values["k"][:, :1]
    values["beta"][:] = 1
    values["log_decay"][:] = 0
    wanted = delta_loop(values, SEGMENTS, OWNERS)
    ids = segments_and_owners()
    out, state = compiled("chunked", None)(**single(values), **ids)
    close(out, wanted[0])
    close(state, wanted[1])


@pytest.mark.parametrize("size", [1, 2, 16, 64])
def test_unit_lower_inverse(size: int) -> None:
    lower = np.tril(np.random.default_rng(size).normal(size=(2, 3, size, size)) / size**0.5, -1)
    found = jax.jit(unit_lower_inverse)(jnp.asarray(lower, jnp.float32))
    close(found, np.linalg.inv(np.eye(size) + lower), 2e-5)


@pytest.mark.parametrize(("implementation", "decay"), [("recurrent", "head"), ("chunked", "channel")])
def test_bfloat16_inputs(implementation: str, decay: str) -> None:
    """Only the outputs are rounded: the state is that of float32 arithmetic on the rounded inputs."""
    values = draw(SEGMENTS, decay)
    rounded = {name: jnp.asarray(values[name], jnp.bfloat16) for name in "qkv"}
    wanted = delta_loop(values | {n: np.asarray(x, np.float64) for n, x in rounded.items()}, SEGMENTS, OWNERS)
    ids = segments_and_owners()
    out, state = compiled(implementation, 16)(**(single(values) | rounded), **ids)
    assert out.dtype == jnp.bfloat16 and state.dtype == jnp.float32
    close(state, wanted[1])
    close(out, wanted[0], 2**-8)


def test_over_a_mesh() -> None:
    """Rows over data and fsdp, heads over tensor."""
    segments = np.tile(SEGMENTS[[0, 3]], (2, 1))
    values = draw(segments, "head")
    owners = [1, 0, 0, 1]
    wanted = delta_loop(values, segments, owners)
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    rows = ("data", "fsdp")
    placed = {
        name: jax.device_put(
            x, NamedSharding(mesh, PartitionSpec(rows, *(("tensor",) if name == "state" else (None, "tensor"))))
        )
        for name, x in single(values).items()
    }
    out, state = compiled("chunked", 16)(
        **placed, segment_ids=jnp.asarray(segments), state_segment_ids=jnp.asarray(owners, jnp.int32)
    )
    close(out, wanted[0])
    close(state, wanted[1])


def test_bad_arguments_are_named() -> None:
    inputs = single(draw(SEGMENTS, "head"))
    del inputs["state"]
    run = functools.partial(gated_delta_rule, segment_ids=jnp.asarray(SEGMENTS))
    with pytest.raises(ValueError, match="'fast' is unknown; use one of recurrent, chunked"):
        run(**inputs, implementation="fast")
    with pytest.raises(ValueError, match="chunk = 48 is not a power of two"):
        run(**inputs, chunk=48)


@pytest.mark.usefixtures("without_shape_checks")
def test_shapes_that_do_not_agree_are_named() -> None:
    inputs = single(draw(SEGMENTS, "head"))
    del inputs["state"]
    run = functools.partial(gated_delta_rule, segment_ids=jnp.asarray(SEGMENTS))
    with pytest.raises(ValueError, match="repeat q and k to the value heads"):
        run(**(inputs | {"q": inputs["q"][:, :, :1], "k": inputs["k"][:, :, :1]}))
    with pytest.raises(ValueError, match=r"log_decay \(6, 37, 2, 1\) must be \(6, 37, 2\)"):
        run(**(inputs | {"log_decay": inputs["log_decay"][..., None]}))


def draw_convolution(segments: np.ndarray, taps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, history = (rng.normal(size=(len(segments), length, CHANNELS)) for length in (segments.shape[1], taps - 1))
    return x, rng.normal(size=(CHANNELS, taps)), history


def single_x(x: np.ndarray) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


# As ROWS, without padding inside a segment.
CONVOLUTION_ROWS = SEGMENTS.copy()
CONVOLUTION_ROWS[4] = ids_of([(0, 3), (4, 2), (5, 1), (6, 12), (0, 6), (8, 4), (0, 1), (7, 8)])
HISTORY_IDS = np.array([[1, 1, 1], [0, 2, 1], [1, 2, 2], [0, 0, 0], [4, 5, 4], [0, 3, 3]], np.int32)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 37])
def test_convolution_of_packed_and_padded_rows(length: int, taps: int) -> None:
    segments, history_ids = CONVOLUTION_ROWS[:, -length:], HISTORY_IDS[:, 4 - taps :]
    x, weight, history = draw_convolution(segments, taps)
    wanted = convolution_loop(x, weight, segments, history, history_ids)
    x[segments == 0] = np.nan
    history[history_ids == 0] = np.nan
    y, last, last_ids = convolve(
        single_x(x),
        single_x(weight),
        segment_ids=jnp.asarray(segments),
        history=single_x(history),
        history_segment_ids=jnp.asarray(history_ids),
    )
    close(y, wanted[0])
    close(last, wanted[1])
    np.testing.assert_array_equal(last_ids, wanted[2])


def test_convolution_without_a_history() -> None:
    x, weight, history = draw_convolution(CONVOLUTION_ROWS, TAPS)
    wanted = convolution_loop(x, weight, CONVOLUTION_ROWS, history, np.zeros_like(HISTORY_IDS))
    y, last, last_ids = convolve(single_x(x), single_x(weight), segment_ids=jnp.asarray(CONVOLUTION_ROWS))
    close(y, wanted[0])
    close(last, wanted[1])
    np.testing.assert_array_equal(last_ids, wanted[2])


segments_apart = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), min_size=1, max_size=7)


@settings(max_examples=40)
@given(rows=st.tuples(segments_apart, segments_apart), at=st.integers(0, 20), seed=st.integers(0, 99))
def test_two_convolutions_equal_one(rows: tuple[list[tuple[int, int]], ...], at: int, seed: int) -> None:
    # Every run gets an id of its own, so that padding between two never stands inside a segment.
    apart = [[(segment and number + 1, length) for number, (segment, length) in enumerate(runs)] for runs in rows]
    segments = np.stack([padded_to(20, runs) for runs in apart])
    x, weight, history = draw_convolution(segments, TAPS, seed)
    wanted = convolution_loop(x, weight, segments, history, np.zeros((2, 3), int))
    before = np.arange(20)[None, :] < at
    first, second = np.where(before, segments, 0), np.where(before, 0, segments)
    start = {"history": single_x(history), "history_segment_ids": jnp.zeros((2, 3), jnp.int32)}
    y1, middle, middle_ids = convolve(single_x(x), single_x(weight), segment_ids=jnp.asarray(first), **start)
    y2, last, last_ids = convolve(
        single_x(x), single_x(weight), segment_ids=jnp.asarray(second), history=middle, history_segment_ids=middle_ids
    )
    close(np.where(before[..., None], y1, y2), wanted[0])
    close(last, wanted[1])
    np.testing.assert_array_equal(last_ids, wanted[2])
    owners = owner_after(segments)
    np.testing.assert_array_equal(last_ids[:, -1], owners)


def test_convolution_gradients_against_differences_of_the_loop() -> None:
    """It is linear in x and in the history: the slope along any direction is the value at it."""
    x, weight, history = draw_convolution(CONVOLUTION_ROWS, TAPS)
    rng = np.random.default_rng(3)
    out_weight, last_weight = rng.normal(size=x.shape), rng.normal(size=history.shape)
    y, last, _ = convolution_loop(x, weight, CONVOLUTION_ROWS, history, HISTORY_IDS)

    def loss(x: jax.Array, history: jax.Array) -> jax.Array:
        y, last, _ = short_convolution(
            x,
            single_x(weight),
            segment_ids=jnp.asarray(CONVOLUTION_ROWS),
            history=history,
            history_segment_ids=jnp.asarray(HISTORY_IDS),
        )
        return jnp.sum(y * single_x(out_weight)) + jnp.sum(last * single_x(last_weight))

    dx, dhistory = jax.jit(jax.grad(loss, (0, 1)))(single_x(x), single_x(history))
    slope = np.sum(np.asarray(dx) * x) + np.sum(np.asarray(dhistory) * history)
    np.testing.assert_allclose(slope, np.sum(y * out_weight) + np.sum(last * last_weight), rtol=1e-5)
    assert not np.asarray(dx)[CONVOLUTION_ROWS == 0].any()
    assert not np.asarray(dhistory)[HISTORY_IDS == 0].any()


def test_convolution_in_bfloat16_sums_in_float32() -> None:
    x, weight, history = draw_convolution(CONVOLUTION_ROWS, TAPS)
    x16, history16 = jnp.asarray(x, jnp.bfloat16), jnp.asarray(history, jnp.bfloat16)
    wanted, _, _ = convolution_loop(
        np.asarray(x16, np.float64), weight, CONVOLUTION_ROWS, np.asarray(history16, np.float64), HISTORY_IDS
    )
    y, last, _ = convolve(
        x16,
        single_x(weight),
        segment_ids=jnp.asarray(CONVOLUTION_ROWS),
        history=history16,
        history_segment_ids=jnp.asarray(HISTORY_IDS),
    )
    assert y.dtype == jnp.bfloat16 and last.dtype == jnp.bfloat16
    close(y, wanted, 2**-8)
