"""The gated delta rule (Gated DeltaNet and KDA) and the short convolution before it, for packed and padded batches."""

from remory_jax.actor.delta.api import IMPLEMENTATIONS, gated_delta_rule
from remory_jax.actor.delta.convolution import short_convolution

__all__ = ["IMPLEMENTATIONS", "gated_delta_rule", "short_convolution"]
