"""Hugging Face config -> layer table -> prices, and presets of released models."""

from costmodel_jax.architecture.layers import FeedForward, Layer, Mixer, StateTerm, Weight
from costmodel_jax.architecture.model import Architecture
from costmodel_jax.architecture.presets import Presets, architectures

__all__ = ["Architecture", "FeedForward", "Layer", "Mixer", "Presets", "StateTerm", "Weight", "architectures"]
