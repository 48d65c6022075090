"""`MemoryConfig`: everything that decides a memory network's shape and the function it computes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["MemoryConfig"]

_POSITIVE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "compression_ratio",
    "block_tokens",
    "memory_budget",
    "max_depth",
    "local_window",
    "conv_kernel",
    "conv_group",
)


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Geometry and options of a memory network (REMORY, arXiv 2610.11287); hashable, so a jit static.

    Args:
      hidden_size: width of the actor's residual stream, and of the network's.
      intermediate_size: width of the MLP.
      num_hidden_layers: layers; all but the last are local, and the last lets slots see one another.
      num_attention_heads, num_key_value_heads, head_dim: of every attention.
      target_layer_ids: the actor's decoder layers whose outputs are the features, in order. They are part of a
        checkpoint and never derived from the actor's depth.
      compression_ratio: source positions per memory row.
      block_tokens: source positions that are encoded at once.
      memory_budget: rows that a memory may hold.
      max_depth: rows of the depth table; deeper inputs use its last.
      local_window: a local layer's slot sees what is less than half of this from its centre, in source positions.
      summary_attention: local layers read the summary's states, and slots start with their input's depth.
      dynamic_conv: input-dependent short convolutions around every sublayer, as in DFlash-2; see `dynamic_conv`.
      rope_theta: base of the rotary frequencies.
      rms_norm_eps: of every norm.
      output_rms: scale of the rows, that of the actor's input embeddings. A checkpoint carries its own.
      rope_table_dtype: "bfloat16" rounds rotary frequencies and the output scale as the released summary-conditioned
        loader does when it serves in bfloat16. At real size that is worth up to 1.2 rad of phase.
      query_init: what a slot starts as: "learned" one vector for all slots, as released; "pooled" adds a projection of
        the mean of the slot's own source rows (ours).
      init: values of a fresh network: "standard", or "copier", whose rows start as averages of one tap (ours).
      gate_init: of the summary gates, before the tanh.
      conv_kernel: slots that a dynamic convolution spans.
      conv_group: channels that share one dynamic coefficient.
      copier_tap: index into ``target_layer_ids`` of the tap that a copier copies.
      copier_noise: standard deviation of a copier's random part, in units of the standard one.

    Raises:
      ValueError: a field that is out of range, naming it and the rule.

    Example:
      >>> MemoryConfig.preset("qwen3.8-27b").parameter_count
      1940016388
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    target_layer_ids: tuple[int, ...]
    compression_ratio: int = 16
    block_tokens: int = 1024
    memory_budget: int = 4096
    max_depth: int = 8
    local_window: int = 2048
    summary_attention: bool = True
    dynamic_conv: bool = False
    rope_theta: int | float = 1e7
    rms_norm_eps: int | float = 1e-6
    output_rms: int | float = 0.02
    rope_table_dtype: Literal["float32", "bfloat16"] = "float32"
    query_init: Literal["learned", "pooled"] = "learned"
    init: Literal["standard", "copier"] = "standard"
    gate_init: int | float = 1e-3
    conv_kernel: int = 2
    conv_group: int = 16
    copier_tap: int = -1
    copier_noise: int | float = 0.1

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; it must be at least 1")
        taps = self.target_layer_ids
        if not taps or min(taps) < 0 or len(set(taps)) < len(taps):
            raise ValueError(f"target_layer_ids = {taps}; give at least one decoder layer, each once, counted from 0")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} is not a multiple of num_key_value_heads = "
                f"{self.num_key_value_heads}; every key head serves as many query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim = {self.head_dim}; rotary positions turn pairs, so it must be even")
        if self.compression_ratio < 2 or self.block_tokens % self.compression_ratio:
            raise ValueError(
                f"block_tokens = {self.block_tokens} and compression_ratio = {self.compression_ratio}: a block must "
                "hold a whole number of rows, of at least two positions each"
            )
        if self.memory_budget < self.slots_per_block:
            raise ValueError(
                f"memory_budget = {self.memory_budget} is less than one block's {self.slots_per_block} rows"
            )
        if self.local_window < self.compression_ratio:
            raise ValueError(
                f"local_window = {self.local_window} is less than compression_ratio = {self.compression_ratio}, so "
                "some positions would be seen by no slot"
            )
        if self.dynamic_conv and self.hidden_size % self.conv_group:
            raise ValueError(f"conv_group = {self.conv_group} does not divide hidden_size = {self.hidden_size}")
        if not -len(taps) <= self.copier_tap < len(taps):
            raise ValueError(
                f"copier_tap = {self.copier_tap}; there are {len(taps)} taps, and negative ones count back"
            )
        for name in ("rope_theta", "rms_norm_eps", "output_rms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} = {value}; it must be positive and finite")
        if not (math.isfinite(self.gate_init) and math.isfinite(self.copier_noise) and self.copier_noise >= 0):
            raise ValueError(
                f"gate_init = {self.gate_init} and copier_noise = {self.copier_noise} must be finite, no less than 0"
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> MemoryConfig:
        """A published geometry: "qwen3.8-27b", "glm-5.3-flash" or "glm-5.3-flash-paper".

        Raises:
          ValueError: an unknown name, with those that exist.
        """
        from remory_jax.memory.presets import PRESETS

        if name not in PRESETS:
            raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
        return replace(PRESETS[name], **changes)

    @property
    def slots_per_block(self) -> int:
        """Rows of a full block, and of every node of the hierarchy."""
        return self.block_tokens // self.compression_ratio

    @property
    def parameter_count(self) -> int:
        """Exact number of trained values; nothing is allocated."""
        from remory_jax.memory.parameters import parameters, trained

        return sum(parameter.size for parameter in trained(parameters(self)))

    @property
    def tensor_count(self) -> int:
        """Tensors of a released-format checkpoint, ``output_embedding_rms`` among them."""
        from remory_jax.memory.parameters import stored_shapes

        return len(stored_shapes(self))
