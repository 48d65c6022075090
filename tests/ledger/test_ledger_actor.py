"""The ledger's actor: the forms it is trained on, that training learns, ends at its level, and keeps what it made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remory_jax.actor import Actor
from remory_jax.ledger import (
    LedgerActorConfig,
    LedgerActorReport,
    LedgerTask,
    LevelNotReachedError,
    draw_episodes,
    train_ledger_actor,
)
from remory_jax.ledger import actor as training
from remory_jax.ledger.actor_config import initial_weights
from remory_jax.ledger.forms import answer_noise, draw_lines, full_lines, stated_lines

TINY = LedgerActorConfig(
    task=LedgerTask(facts=2, variant="A", history=6, keys=4, values=4, fillers=2),
    hidden=16,
    heads=1,
    mlp=16,
    rows=3,
    batch=16,
    min_steps=0,
    peak_lr=1e-2,
    warmup=5,
    noise=0.3,
    check_every=10,
    check_episodes=64,
    max_steps=40,
)


def test_training_learns_and_is_kept(tmp_path: Path) -> None:
    """Forty steps of a tiny one: the loss falls below guessing; what is kept is what was trained, bit for bit."""
    seen: list[LedgerActorReport] = []
    config = replace(TINY, level=1.25, text_level=1.3, noisy_level=1.35)
    actor, report = train_ledger_actor(config, 0, folder=tmp_path, on_check=seen.append)
    assert seen[-1] == report
    assert report.full <= 1.25
    assert max(report.summary, report.terse) <= 1.3 < np.log(4) < seen[0].full + 0.2
    assert not any(before.reaches(config) for before in seen[:-1])
    assert (report.kept, report.floor) == (False, pytest.approx(-np.log(0.95 + 0.05 / 4)))
    again, kept = train_ledger_actor(config, 0, folder=tmp_path)
    assert kept == replace(report, kept=True)
    assert again.config == actor.config
    for one, other in zip(jax.tree.leaves(again.weights), jax.tree.leaves(actor.weights), strict=True):
        np.testing.assert_array_equal(one, other)
    # The level by the actor's own pass, from logits of all positions.
    assert own_level(actor, config, 0) == pytest.approx(report.full, abs=1e-4)


def own_level(actor: Actor, config: LedgerActorConfig, seed: int) -> float:
    batch = draw_episodes(config.task, seed, "actor_check", 0, config.check_episodes).batch()
    ids = np.concatenate([batch.prefix, *batch.histories, batch.response], axis=1)
    likely = jax.nn.log_softmax(actor.logits(actor(tokens=ids).hidden))
    nats = -np.take_along_axis(np.asarray(likely)[:, :-1], ids[:, 1:, None], axis=2)[:, -batch.response.shape[1] :, 0]
    return float(np.sum(nats * batch.weights) / np.sum(batch.weights))


def test_a_level_that_is_not_reached_is_an_error(tmp_path: Path) -> None:
    config = replace(TINY, level=0.01, max_steps=10)
    with pytest.raises(LevelNotReachedError, match=r"after 10 steps.*\(level = 0\.01\).*max_steps = 10"):
        train_ledger_actor(config, 0, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_an_actor_is_kept_under() -> None:
    """Tasks that differ in summaries or slots alone share an actor; anything else is another one."""
    config = LedgerActorConfig(task=LedgerTask())
    for same in ({"slots": 16}, {"kept": 4}, {"terse": True}):
        assert replace(config, task=LedgerTask(**same)).key(0) == config.key(0)  # type: ignore[arg-type]
    others = [config.key(1), replace(config, noise=0.5).key(0), replace(config, task=LedgerTask(variant="B")).key(0)]
    others += [replace(config, task=LedgerTask(boundaries=2)).key(0), replace(config, hidden=32).key(0)]
    assert len({config.key(0), *others}) == 6
    assert hash(config) == hash(LedgerActorConfig(task=LedgerTask(slots=2)))


def test_initial_weights_look_up() -> None:
    """Equal tokens attend to each other before anything is learned."""
    config = LedgerActorConfig()
    layer = initial_weights(config, 0)["groups"][0][0]
    x = jax.random.normal(jax.random.key(0), (40, config.hidden))
    q, k = (jnp.einsum("sd,dhk->shk", x, layer["mixer"][name][0]) for name in ("q", "k"))
    assert np.mean(np.argmax(np.einsum("shk,thk->st", q, k), axis=1) == np.arange(40)) > 0.9
    assert float(jnp.max(layer["convolution"])) == 0.5


def test_forms() -> None:
    """Side by side, padded on the left, ending with the response; memory stands between its markers."""
    config = LedgerActorConfig(task=LedgerTask(boundaries=2))
    episodes = draw_episodes(config.task, 0, "actor", 0, 3)
    response, width = episodes.response, config.width
    full = full_lines(episodes, response, width)
    np.testing.assert_array_equal(full.tokens[:, -17:], response)
    np.testing.assert_array_equal(full.tokens[:, -81:-17], np.concatenate(episodes.histories, axis=1))
    np.testing.assert_array_equal(full.real.sum(1), 2 + 64 + 17)
    assert not full.soft.any()
    stated = stated_lines(episodes, response, width, count=3, terse=True, filler=1, rows=5, scale=0.7, after=1)
    template = config.task.template
    row = stated.tokens[0][stated.real[0]].tolist()
    assert row[:3] == [1, 2, *template.s_open]
    assert row[3:9] == episodes.units[0, episodes.priority[0, :3], :2].ravel().tolist()
    assert row[10:12] == [*template.s_close, *template.m_open]
    assert row[12:17] == [0] * 5
    assert stated.soft[0][stated.real[0]].tolist() == [12 <= i < 17 for i in range(len(row))]
    np.testing.assert_array_equal(stated.scale > 0, stated.soft)
    assert row[17:] == [*template.m_close, *episodes.histories[1][0].tolist(), *response[0].tolist()]


def test_drawn_forms_fit_and_answers_are_noisy() -> None:
    for task in (LedgerTask(), LedgerTask(boundaries=2), LedgerTask(variant="B"), LedgerTask(variant="A", history=48)):
        config = LedgerActorConfig(task=task)
        random = np.random.default_rng(0)
        for step in range(20):
            episodes = draw_episodes(config.task, 0, "actor", 32 * step, 32)
            lines = draw_lines(episodes, config.width, config.rows, config.wrong, config.alike, random)
            assert lines.tokens.shape == (32, config.width)
            assert lines.tokens.dtype == np.int32
            assert (lines.real[:, -task.response :]).all()
    many = draw_episodes(config.task, 0, "actor", 0, 4000)
    changed = answer_noise(many, 0.05, np.random.default_rng(1)) != many.response
    assert not changed[~many.judged].any()
    assert changed[many.judged].mean() == pytest.approx(0.05 * 31 / 32, rel=0.1)


def test_padding_and_empty_memory_say_nothing() -> None:
    """The loss of a row does not depend on how far it is padded, nor on the id below a soft row."""
    weights = initial_weights(TINY, 0)
    episodes = draw_episodes(TINY.task, 0, "actor", 0, 4)
    quiet, key = jnp.zeros((4, 1)), jax.random.key(0)
    lines = [
        stated_lines(episodes, episodes.response, width, count=1, terse=True, rows=2) for width in (TINY.width, 22)
    ]
    lines.append(replace(lines[0], tokens=np.where(lines[0].soft, 3, lines[0].tokens)))
    nats = jax.jit(training._nats, static_argnums=4)
    first, *others = (float(nats(weights, line, quiet, key, TINY)) for line in lines)
    assert others == pytest.approx([first, first], abs=1e-5)


def test_what_is_refused() -> None:
    for fields, words in (({"heads": 5}, "heads"), ({"batch": 3}, "batch = 3"), ({"max_steps": 5}, "max_steps = 5")):
        with pytest.raises(ValueError, match=words):
            replace(TINY, **fields)  # type: ignore[arg-type]
