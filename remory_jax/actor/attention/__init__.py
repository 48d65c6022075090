"""Softmax attention as an op: `attention` picks an implementation; `visible` is what all of them agree on."""

from remory_jax.actor.attention.api import IMPLEMENTATIONS, attention, choose
from remory_jax.actor.attention.visibility import Tokens, visible

__all__ = ["IMPLEMENTATIONS", "Tokens", "attention", "choose", "visible"]
