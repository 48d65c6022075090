"""What a frozen actor is made of: one hashable description per layer, read from a Hugging Face config by `families`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal

__all__ = [
    "ActorConfig",
    "DeltaNet",
    "DenseMLP",
    "Experts",
    "HyperConnections",
    "Indexer",
    "LatentAttention",
    "LayerConfig",
    "Norm",
    "Rotary",
    "Scaling",
    "SoftmaxAttention",
]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """Root-mean-square normalisation."""

    eps: float
    zero_centred: bool = False  # multiply by 1 + w
    late_cast: bool = False  # multiply by w in float32, then cast (gpt-oss); else cast first


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How rotary frequencies are stretched beyond the context a model was first trained on."""

    kind: Literal["linear", "yarn", "llama3"]
    factor: float
    original: int = 0  # positions of the first training
    fast: float = 32.0  # yarn: beta_fast; llama3: high_freq_factor
    slow: float = 1.0  # yarn: beta_slow; llama3: low_freq_factor
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    magnitude: float = 1.0  # yarn: factor on cos and sin


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary position embedding of the first ``dim`` dimensions of a head."""

    dim: int
    theta: float
    interleaved: bool = False  # pairs (2i, 2i+1), written evens first; else pairs (i, i + dim/2)
    scaling: Scaling | None = None


@dataclass(frozen=True, kw_only=True)
class SoftmaxAttention:
    """Grouped-query attention: full, or sliding where ``window`` counts the keys seen, the query's own included."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary: Rotary
    window: int | None = None
    qk_norm: bool = False
    gated: bool = False  # sigmoid output gate, projected beside the query of each head
    bias: bool = False
    sinks: bool = False  # a learned logit per head that joins the denominator only


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """DeepSeek sparse attention: keeps ``top_k`` keys per query."""

    heads: int
    head_dim: int
    top_k: int
    pool: int | None = None  # keys are scored in pools of this many tokens
    tail: bool = True  # tokens of the incomplete last pool are always seen
    shared: bool = False  # reuse the previous layer's selection; no weights


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values expand from one cached latent per token."""

    heads: int
    q_rank: int | None  # None: queries are projected in one step
    kv_rank: int
    nope: int  # head dimensions without rotation
    value_dim: int
    scale: float
    latent_eps: float  # of the norms on the two latents
    rotary: Rotary | None = None  # None: no rotated dimensions at all
    indexer: Indexer | None = None

    @property
    def rope(self) -> int:
        """Rotated dimensions of a head."""
        return 0 if self.rotary is None else self.rotary.dim


@dataclass(frozen=True, kw_only=True)
class DeltaNet:
    """Gated delta rule: Gated DeltaNet (one decay per head) or Kimi Delta Attention (one per key channel)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # taps of the short convolution
    stored: Literal["flat", "grouped", "kimi"]  # how checkpoints lay out the input projections
    gate_rank: int = 0  # Kimi: rank of the decay's and the output gate's projections
    lower_bound: float | None = None  # Kimi: least log decay per token

    @property
    def kimi(self) -> bool:
        """Whether decays are per key channel."""
        return self.stored == "kimi"


@dataclass(frozen=True, kw_only=True)
class DenseMLP:
    """SwiGLU; ``limit`` clamps gate from above and up on both sides."""

    width: int
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Mixture of SwiGLU experts.

    ``router``: "softmax" over all experts before the choice; "sigmoid" scores, chosen with a correction bias and within
    groups; "chosen_softmax" over the chosen logits only.
    """

    experts: int
    active: int
    width: int
    router: Literal["softmax", "sigmoid", "chosen_softmax"]
    renormalise: bool = True
    scaling: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    shared_width: int = 0
    shared_gate: bool = False
    limit: float | None = None
    alpha: float | None = None  # gpt-oss: (up + 1) gate sigmoid(alpha gate), biases, a router with bias


@dataclass(frozen=True, kw_only=True)
class HyperConnections:
    """Manifold-constrained hyper-connections: the residual is ``streams`` copies, mixed by learned weights."""

    streams: int
    iterations: int  # Sinkhorn normalisations of the mixing matrix
    eps: float


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One decoder layer; equal layers share one compiled body."""

    mixer: SoftmaxAttention | LatentAttention | DeltaNet
    feed_forward: DenseMLP | Experts
    convolution: int = 0  # taps of a residual, depthwise, causal convolution before the layer; 0: none

    def __post_init__(self) -> None:
        if self.convolution < 0 or self.convolution == 1:
            raise ValueError(
                f"convolution = {self.convolution} taps: 0 for none, or at least 2 to reach a token before"
            )


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """A frozen language model without its weights; hashable, so it can be a static argument of `jax.jit`.

    Example:
      >>> config = ActorConfig.from_hf("models/Qwen3-8B")  # doctest: +SKIP
      >>> config.parameter_count  # doctest: +SKIP
      8190735360
    """

    family: str  # transformers' model_type, without the suffix of nested text models
    hidden: int
    vocabulary: int
    tied: bool  # the head is the embedding
    layers: tuple[LayerConfig, ...]
    norm: Norm
    hyper: HyperConnections | None = None
    stop_ids: tuple[int, ...] = ()  # ids that end a generation
    nested: bool = False  # the released layout of multimodal models: names below model.language_model.
    source: str = field(default="", compare=False, repr=False)  # the config.json it was read from, for export

    @staticmethod
    def from_hf(config: str | PathLike[str] | Mapping[str, object]) -> ActorConfig:
        """Read a Hugging Face ``config.json``: the file, its folder, or the parsed dict.

        Old and new rotary fields are understood, and models nested under ``text_config``.

        Raises:
          InputError: an unsupported model_type, or a field that is missing, malformed or not supported, by name.
        """
        from remory_jax.actor.families import actor_config

        return actor_config(config)

    @functools.cached_property
    def parameter_count(self) -> int:
        """Parameters of the language model: exact, and nothing is allocated. A tied head counts once."""
        from remory_jax.actor.decoder import parameters
        from remory_jax.actor.parameters import leaves

        return sum(parameter.size for parameter in leaves(parameters(self)) if not parameter.buffer)
