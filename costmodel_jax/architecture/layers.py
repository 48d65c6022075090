"""What one decoder layer is made of, as far as its price goes: weight matrices, pairs, recurrent state."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FeedForward", "Layer", "Mixer", "StateTerm", "Weight"]


@dataclass(frozen=True)
class Weight:
    """A weight matrix of the checkpoint that a token is multiplied with.

    Args:
      name: the name in the checkpoint, without the layer prefix and ``.weight``.
      inputs, outputs: its two sides.
      active: how many copies one token passes through (experts chosen by the router; else 1).
      stored: how many copies the checkpoint holds.
    """

    name: str
    inputs: int
    outputs: int
    active: int = 1
    stored: int = 1

    @property
    def size(self) -> int:
        """Weights one token touches; each costs 2 FLOPs (a multiply and an add)."""
        return self.inputs * self.outputs * self.active

    @property
    def stored_size(self) -> int:
        """Weights in the checkpoint."""
        return self.inputs * self.outputs * self.stored

    def __str__(self) -> str:
        """``q_proj 5120x12288``, with `` (8 of 128)`` where only some copies are touched."""
        copies = "" if self.stored == 1 else f" ({self.active} of {self.stored})"
        return f"{self.name} {self.inputs}x{self.outputs}{copies}"


@dataclass(frozen=True)
class StateTerm:
    """Work on a recurrent state: ``flops`` per processed position, and the product they come from."""

    name: str
    flops: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """The sequence-mixing half of a layer.

    Args:
      kind: what the field calls it, e.g. "gated attention".
      weights: its projections.
      pair: FLOPs per query-key pair, where a query at position t meets all t keys.
      window: the most keys a query attends to (sliding window, or the top-k of sparse attention); None for all.
      window_pair: FLOPs per pair of that capped attention.
      absorbed_pair: FLOPs per pair of multi-head latent attention in its absorbed form; None elsewhere.
      state: work on a recurrent state.
      formula: how `pair` and `window_pair` come about.
    """

    kind: str
    weights: tuple[Weight, ...]
    pair: int = 0
    window: int | None = None
    window_pair: int = 0
    absorbed_pair: int | None = None
    state: tuple[StateTerm, ...] = ()
    formula: str = ""


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The per-position half of a layer: one MLP, or routed and shared experts with their router."""

    kind: str
    weights: tuple[Weight, ...]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer: ``index`` counts from 0."""

    index: int
    mixer: Mixer
    feed_forward: FeedForward

    @property
    def kind(self) -> str:
        """``gated deltanet + swiglu``."""
        return f"{self.mixer.kind} + {self.feed_forward.kind}"

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All its weight matrices, mixer first."""
        return self.mixer.weights + self.feed_forward.weights

    @property
    def linear_weights(self) -> int:
        """Weights one token touches in this layer."""
        return sum(weight.size for weight in self.weights)

    @property
    def state(self) -> int:
        """FLOPs on recurrent state per processed position."""
        return sum(term.flops for term in self.mixer.state)

    def row(self) -> dict[str, int | str | None]:
        """This layer as one row of `Architecture.table`."""
        mixer = self.mixer
        return {
            "layer": self.index,
            "last": self.index,
            "count": 1,
            "mixer": mixer.kind,
            "feed_forward": self.feed_forward.kind,
            "mixer_weights": sum(weight.size for weight in mixer.weights),
            "feed_forward_weights": sum(weight.size for weight in self.feed_forward.weights),
            "linear_weights": self.linear_weights,
            "pair": mixer.pair,
            "window": mixer.window,
            "window_pair": mixer.window_pair,
            "absorbed_pair": mixer.absorbed_pair,
            "state": self.state,
            "terms": ", ".join(str(weight) for weight in self.weights),
        }
