"""AdamW for the memory network: what decays, how the learning rate moves, and skipped steps that are counted."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, Float, Int

from remory_jax.training.experiment import OptimizerConfig

__all__ = [
    "GuardedState",
    "decay_mask",
    "guard_state",
    "learning_rate",
    "make_optimizer",
    "opt_state_shardings",
    "skip_nonfinite",
]

# Scales, gates and rows that stand for something do not decay: their zero is no simpler than any other value. The
# convolution's base starts as the identity, and decay would pull it to silence.
_NO_DECAY = re.compile(r"(.*_)?(norm|layernorm|gate|bias|base|scale|query|queries|depth|(mask|depth)_embedding)")
_WRAPPERS = {"weight", "value", "kernel", "embedding"}  # names of the array inside a module


class GuardedState(NamedTuple):
    """State of `skip_nonfinite`.

    Attributes:
      skipped: steps skipped so far.
      consecutive: steps skipped since the last one that was taken.
      inner: of the optimizer inside, which has not seen the skipped steps.
    """

    skipped: Int[Array, ""]
    consecutive: Int[Array, ""]
    inner: Any


def learning_rate(config: OptimizerConfig, steps: int, *, scale: float | int = 1.0) -> optax.Schedule:
    """Learning rate of each step: linear warm-up from 0, then a cosine to ``config.final`` of the peak.

    ``lr(t) = peak t / W`` for t < W, then ``peak (f + (1 - f) (1 + cos(pi (t - W) / (steps - W))) / 2)``, with
    W = warmup x steps. At least one step of warm-up where it is not 0; a run of 0 steps is allowed.

    Args:
      steps: of the stage.
      scale: times the peak, such as a stage's.

    Raises:
      ValueError: steps below 0, or shares outside [0, 1].
    """
    if steps < 0:
        raise ValueError(f"steps = {steps}: give 0 or more")
    for name, share in (("warmup", config.warmup), ("final", config.final)):
        if not 0 <= share <= 1:
            raise ValueError(f"optimizer.{name} = {share}: a share between 0 and 1")
    peak, final = config.peak_lr * scale, config.final
    warmup = 0 if config.warmup == 0 else max(1, round(config.warmup * steps))
    span = max(1, steps - warmup)

    def rate(count: Int[Array, ""] | int) -> Float[Array, ""]:
        at = jnp.asarray(count).astype(jnp.float32)
        phase = jnp.clip((at - warmup) / span, 0.0, 1.0)
        falling = final + (1.0 - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * phase))
        return peak * jnp.where(at < warmup, at / max(1, warmup), falling)

    return rate


def decay_mask(params: Any) -> Any:
    """Which parameters decay: all but norms, gates, queries, mask and depth embeddings, biases and convolution bases.

    Decided by the last names of a parameter's path, less the wrapper's (``weight``, ``value``, ``kernel``). The gate of
    an MLP is a projection and decays, be it called ``mlp.gate`` or ``mlp.gate_proj``; ``summary.gate`` does not.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: _decays(path), params)


def _decays(path: Any) -> bool:
    words = [word for word in jax.tree_util.keystr(path, simple=True, separator=".").split(".") if not word.isdigit()]
    while len(words) > 1 and words[-1] in _WRAPPERS:
        words.pop()
    if words[-2:] == ["mlp", "gate"]:
        return True
    return _NO_DECAY.fullmatch(words[-1]) is None if words else True


def make_optimizer(
    config: OptimizerConfig, steps: int, *, scale: float | int = 1.0
) -> optax.GradientTransformationExtraArgs:
    """Clip by global norm, AdamW with decoupled decay on `decay_mask`, `learning_rate`; inside `skip_nonfinite`.

    Args:
      config: the experiment's.
      steps: of the stage, for the schedule.
      scale: of the learning rate, such as the stage's.

    Raises:
      ValueError: as `learning_rate`; a clip that is not positive.
    """
    if not config.clip > 0:
        raise ValueError(f"optimizer.clip = {config.clip}: give a positive norm; a huge one never clips")
    b1, b2 = config.betas
    return skip_nonfinite(
        optax.chain(
            optax.clip_by_global_norm(config.clip),
            optax.scale_by_adam(b1=b1, b2=b2, eps=config.eps),
            optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
            optax.scale_by_learning_rate(learning_rate(config, steps, scale=scale)),
        )
    )


def skip_nonfinite(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Take no step where the norm of the gradients is not finite, and count it in `GuardedState`.

    Such a step changes nothing: not the parameters, not the moments, not the schedule. Unlike `optax.apply_if_finite`,
    it never gives in after a number of failures; whoever runs the loop reads ``consecutive`` and decides.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> GuardedState:
        return GuardedState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), inner.init(params))

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, GuardedState]:
        good = jnp.isfinite(_norm(grads))
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats with its int32 counters
            updates, after = inner.update(grads, state.inner, params, **extra)
        updates = jax.tree.map(lambda update: jnp.where(good, update, jnp.zeros_like(update)), updates)
        after = jax.tree.map(lambda new, old: jnp.where(good, new, old), after, state.inner)
        bad = jnp.logical_not(good).astype(jnp.int32)
        return updates, GuardedState(state.skipped + bad, (state.consecutive + bad) * bad, after)

    return optax.GradientTransformationExtraArgs(init, update)


def _norm(grads: Any) -> Float[Array, ""]:
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(grads)]
    return jnp.sqrt(sum(squares, jnp.zeros((), jnp.float32)))


def guard_state(opt_state: Any) -> GuardedState:
    """The counters of skipped steps within an optimizer's state.

    Raises:
      ValueError: there are none, so non-finite steps would go unnoticed.
    """
    found = [
        node
        for node in jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, GuardedState))
        if isinstance(node, GuardedState)
    ]
    if not found:
        raise ValueError("the optimizer state has no GuardedState; wrap the optimizer in skip_nonfinite")
    return found[0]


def opt_state_shardings(tx: optax.GradientTransformation, params: Any, shardings: Any) -> Any:
    """Where each array of an optimizer's state lies: moments with their parameters, counters on every device.

    ``jax.jit(tx.init)`` alone would put whole moments on every device.

    Args:
      tx: the optimizer.
      params: parameters, or their `jax.ShapeDtypeStruct`.
      shardings: of the parameters, in the same tree.

    Returns:
      The tree of ``tx.init(params)`` with a sharding for each leaf.
    """
    some = jax.tree.leaves(shardings, is_leaf=lambda node: isinstance(node, Sharding))
    if not some:
        raise ValueError("shardings is empty: there are no parameters to train")
    whole = NamedSharding(some[0].mesh, PartitionSpec()) if isinstance(some[0], NamedSharding) else some[0]
    state = jax.eval_shape(tx.init, params)
    return optax.tree_utils.tree_map_params(
        tx, lambda _, sharding: sharding, state, shardings, transform_non_params=lambda _: whole
    )
