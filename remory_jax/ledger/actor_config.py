"""What the ledger's actor is made of and trained with, and its initial weights."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from remory_jax.actor import ActorConfig
from remory_jax.actor.decoder import parameters
from remory_jax.actor.parameters import Parameter, map_leaves
from remory_jax.ledger.forms import longest
from remory_jax.ledger.task import LedgerTask

__all__ = ["LedgerActorConfig", "initial_weights"]

_RECIPE = (
    1  # raised whenever the same config and seed give other weights, so that kept actors are not taken for new ones
)


@dataclass(frozen=True, kw_only=True)
class LedgerActorConfig:
    """An actor for a task, and how it is trained; ours, from trials.

    How much summaries keep, whether they are terse, and how many rows a memory has does not matter to the actor: it is
    trained on all of that, so tasks that differ in nothing else share one.
    """

    task: LedgerTask = field(default_factory=LedgerTask)
    hidden: int = 64
    layers: int = 2
    heads: int = 2
    mlp: int = 128
    kernel: int = 4  # taps of the residual convolution
    rope_theta: float = 1e6  # most dimensions hardly turn within these contexts
    rows: int = 16  # most rows of empty memory among the training contexts
    batch: int = 32
    alike: int = 4  # episodes of a batch that share the same student's form
    peak_lr: float = 3e-3
    warmup: int = 30  # steps
    weight_decay: float = 0.01
    clip: float = 1.0
    average: float = 0.99  # decay of the running mean of the weights, which is the actor
    noise: float = 1.0  # mean noise on embeddings, relative to their root mean square; uniform from 0 to twice that
    wrong: float = 0.05  # share of random answers, which keeps the teacher's divergences finite
    # Training ends at these levels, in nats a value where the fact is in the context.
    level: float = 0.08  # histories
    text_level: float = 0.25  # summaries: an actor that meets absent keys too, and noise, is less sure of those present
    noisy_level: float = 1.0  # histories with the mean noise
    min_steps: int = 800  # by then rows of zeros say nothing to it; at its levels alone they still may
    max_steps: int = 4000
    max_seconds: float = 900.0
    check_every: int = 25  # steps
    check_episodes: int = 128

    def __post_init__(self) -> None:
        shared = replace(self.task, kept=0, slots=1, terse=False)
        object.__setattr__(self, "task", shared)
        if self.hidden % self.heads or self.hidden // self.heads % 2:
            raise ValueError(f"hidden = {self.hidden} does not split into {self.heads} heads of an even width")
        if self.batch < 4:
            raise ValueError(f"batch = {self.batch}; a quarter of it is the teacher's form, so it must be at least 4")
        if self.max_steps < self.check_every:
            raise ValueError(f"max_steps = {self.max_steps} ends before the first check, at {self.check_every}")

    @property
    def actor(self) -> ActorConfig:
        """The model: ``conv_llama`` with a tied head."""
        return ActorConfig.from_hf(
            {
                "model_type": "conv_llama",
                "hidden_size": self.hidden,
                "intermediate_size": self.mlp,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.heads,
                "vocab_size": self.task.vocabulary,
                "rms_norm_eps": 1e-6,
                "rope_theta": self.rope_theta,
                "conv_kernel": self.kernel,
                "tie_word_embeddings": True,
            }
        )

    @property
    def width(self) -> int:
        """Tokens of the longest sequence it is trained on."""
        return longest(self.task, self.rows)

    @property
    def program(self) -> LedgerActorConfig:
        """This config without its limits, which no compiled program depends on."""
        bare = replace(self, level=0.0, text_level=0.0, noisy_level=0.0, min_steps=0, max_seconds=0.0)
        return replace(bare, max_steps=1, check_every=1, check_episodes=1)

    @property
    def floor(self) -> float:
        """Nats that a value costs who knows all answers and the share of random ones."""
        return -math.log(1 - self.wrong + self.wrong / self.task.values)

    def key(self, seed: int) -> str:
        """A short name of what decides the trained weights, for folders."""
        found = asdict(self) | {"seed": seed, "recipe": _RECIPE}
        del found["max_steps"], found["max_seconds"]  # they decide whether there is an actor, not which
        return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def initial_weights(config: LedgerActorConfig, seed: int) -> dict[str, Any]:
    """Random weights near a look-up, from which it is learned in hundreds of steps rather than thousands.

    Keys are projected as queries are, so equal tokens find each other; what attention reads it writes back as it
    was; the convolution hands every token half of the one before; and the MLP is small at first.
    """
    random = np.random.Generator(np.random.Philox(seed))

    def value(parameter: Parameter) -> jax.Array:
        if parameter.init != "normal":
            return jnp.full(parameter.full_shape, float(parameter.init == "ones"))
        inputs = math.prod(parameter.shape[: len(parameter.shape) - parameter.outputs])
        return jnp.asarray(random.normal(0, inputs**-0.5, parameter.full_shape), jnp.float32)

    weights: dict[str, Any] = map_leaves(value, parameters(config.actor))
    for group in weights["groups"]:
        for layer in group:
            mixer = layer["mixer"]
            mixer["k"] = jnp.copy(mixer["q"])
            mixer["o"] = mixer["v"].transpose(0, 2, 3, 1)  # [L, D, H, d] -> [L, H, d, D]
            layer["feed"]["down"] = layer["feed"]["down"] * 0.1
            layer["convolution"] = layer["convolution"].at[:, :, -2].set(0.5)
    return weights
