"""FLOPs of a training step by costmodel_jax's account, for model FLOPs utilisation.

XLA's own cost analysis counts the body of a scan once, so it cannot serve. Here are useful FLOPs: of real positions,
not of padding, of what attention may see, and without recomputation. Elementwise work is not counted.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float64, Int64

from costmodel_jax.architecture import Architecture
from costmodel_jax.architecture.blocks import attention, mixture_of_experts, swiglu
from costmodel_jax.architecture.layers import Layer
from costmodel_jax.pricing import Prices
from remory_jax.actor.config import ActorConfig, DenseMLP, LayerConfig, SoftmaxAttention
from remory_jax.data.batch import Batch
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import Experiment

__all__ = ["StepCost", "architecture_of", "peak_flops", "step_cost", "step_flops"]

# Dense bfloat16 FLOP/s of one JAX device, from the makers' data sheets; a TPU7x chip is two devices. The longest name
# that a device's kind begins with counts.
_PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 2307e12 / 2,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
}

Counts = Int64[np.ndarray, " batch"]


def peak_flops(device: jax.Device | str | None = None) -> float | None:
    """Dense bfloat16 FLOP/s of one device, or None where it is not known, as for a CPU.

    Args:
      device: a device, or its ``device_kind``; the first local one by default.
    """
    if device is None:
        device = jax.local_devices()[0]
    kind = device if isinstance(device, str) else device.device_kind
    known = [name for name in _PEAKS if kind.startswith(name)]
    return _PEAKS[max(known, key=len)] if known else None


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What one step costs.

    Attributes:
      positions: real positions that the actor processes, by part: ``prefix``, ``teacher``, ``features`` (passes of
        their own, with several boundaries), ``summary``, ``merge`` and ``student``.
      flops: by part; also ``student_backward``, ``head``, ``encoder`` and ``encoder_backward``.
    """

    positions: dict[str, int]
    flops: dict[str, float]

    @property
    def total(self) -> float:
        """FLOPs of the step."""
        return sum(self.flops.values())


def step_flops(experiment: Experiment, actor: ActorConfig, batch: Batch) -> float:
    """Total of `step_cost`; 0 for an actor that `architecture_of` cannot price."""
    return 0.0 if architecture_of(actor) is None else step_cost(experiment, actor, batch).total


def step_cost(experiment: Experiment, actor: ActorConfig, batch: Batch) -> StepCost:
    """Account of one step with its shared prefix (REMORY.md, section 4; `remory_jax.training.reading`).

    The actor is frozen: its backward pass is that of the student's activations from the first memory row on, once the
    linear work again, and each pair once again, or twice where the key carries a gradient too. The network's backward
    pass is twice its forward, less the gradient of features, which are constants (with ``through_memory`` they are not,
    and the actor's backward pass over them is left out).

    Args:
      experiment: its memory, template and encoding count.
      actor: of the frozen actor.
      batch: host arrays; on pods those of this process, whose cost this then is.

    Raises:
      ValueError: an actor that `architecture_of` cannot price.
    """
    architecture = architecture_of(actor)
    if architecture is None:
        raise ValueError(
            "the actor's layers cannot be priced: it has no config.json and layers of a kind not known here"
        )
    memory, template = experiment.memory, experiment.template
    whole = _prices(architecture)
    tapped = _prices(replace(architecture, layers=architecture.layers[: max(memory.target_layer_ids) + 1]))
    account = _Account()
    prefix, response = _lengths(batch.prefix_length), _lengths(batch.response_length)
    histories = [_lengths(length) for length in batch.history_lengths]
    single = len(histories) == 1
    zero = np.zeros_like(prefix)
    account.actor("prefix", whole, zero, prefix)
    account.actor("teacher", whole, prefix, sum(histories, zero) + response)
    before, summarised, rows = zero, prefix, zero
    markers = len(template.m_open) + len(template.m_close)
    for boundary, history in enumerate(histories):
        last = boundary == len(histories) - 1
        source = before + history
        if not single:
            account.actor("features", tapped, prefix, source)
        summary, shown = _lengths(batch.summary_lengths[boundary]), zero
        if batch.summaries[boundary].shape[1]:
            shown = summary + len(template.s_open) + len(template.s_close)
            account.actor("summary", whole, prefix, shown)
        summarised = prefix + shown
        trained = last or (experiment.encoding.through_memory and boundary == len(histories) - 2)
        natural = experiment.encoding.short_blocks == "natural"
        rows, merges = account.encode(memory, source, summary, natural=natural, trained=trained)
        children = memory.slots_per_block * memory.compression_ratio
        account.actor("merge", tapped, np.repeat(prefix, merges), np.full(int(merges.sum()), children))
        before = shown + rows + markers
    account.actor("student", whole, summarised, markers + rows + response)
    account.backward(whole, summarised + len(template.m_open), rows + len(template.m_close) + response)
    judged = int(np.count_nonzero(np.asarray(batch.weights)))
    account.flops["head"] = 3 * 2.0 * actor.hidden * actor.vocabulary * judged  # teacher, student, student's gradient
    return StepCost(positions=account.positions, flops=account.flops)


class _Account:
    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.flops: dict[str, float] = {}

    def actor(self, part: str, prices: Prices, cached: Counts, new: Counts) -> None:
        """A pass over ``new`` positions after ``cached`` ones, row by row."""
        if not new.any():
            return
        self.positions[part] = self.positions.get(part, 0) + int(new.sum())
        spent = _linear(prices) * float(new.sum()) + float(_pair_flops(prices, cached, cached + new).sum())
        self.flops[part] = self.flops.get(part, 0.0) + spent

    def backward(self, prices: Prices, cached: Counts, new: Counts) -> None:
        """Gradient of the activations of ``new`` positions; what is cached is constant."""
        every, own = _pair_flops(prices, cached, cached + new), _pair_flops(prices, np.zeros_like(new), new)
        self.flops["student_backward"] = _linear(prices) * float(new.sum()) + float((every + own).sum())

    def encode(
        self, config: MemoryConfig, source: Counts, summary: Counts, *, natural: bool, trained: bool
    ) -> tuple[Counts, Counts]:
        """The network over each row's blocks, and over merges down to the budget. Returns rows and merges of each."""
        rows, merges = np.zeros_like(source), np.zeros_like(source)
        fused = forward = 0.0
        for row, (length, states) in enumerate(zip(source.tolist(), summary.tolist(), strict=True)):
            slots = [_slots(config, block, natural) for block in _blocks(config, length)]
            kept = sum(slots)
            removed = config.slots_per_block * (config.compression_ratio - 1)
            merges[row] = max(0, -(-(kept - config.memory_budget) // removed))
            rows[row] = kept - merges[row] * removed
            merged = [config.slots_per_block * config.compression_ratio] * int(merges[row])
            for block, count in zip(
                [*_blocks(config, length), *merged], [*slots, *[config.slots_per_block] * len(merged)], strict=True
            ):
                fused += 2.0 * block * len(config.target_layer_ids) * config.hidden_size**2
                forward += _block_flops(config, block, count, states)
            if slots:
                forward += _summary_flops(config, states)
        self.flops["encoder"] = self.flops.get("encoder", 0.0) + fused + forward
        if trained:
            self.flops["encoder_backward"] = self.flops.get("encoder_backward", 0.0) + fused + 2 * forward
        return rows, merges


def _lengths(lengths: Any) -> Counts:
    return np.asarray(lengths).astype(np.int64)


def _blocks(config: MemoryConfig, length: int) -> Iterator[int]:
    for start in range(0, length, config.block_tokens):
        yield min(config.block_tokens, length - start)


def _slots(config: MemoryConfig, block: int, natural: bool) -> int:
    return -(-(block if natural else config.block_tokens) // config.compression_ratio)


def _block_flops(config: MemoryConfig, block: int, slots: int, summary: int) -> float:
    """Forward FLOPs of one block beyond the fusion of its taps. At the edges of a window fewer pairs exist."""
    d, layers = config.hidden_size, config.num_hidden_layers
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    reads = min(block, config.local_window) + min(slots, -(-config.local_window // config.compression_ratio))
    project = 2.0 * slots * (2 * d * queries + 2 * d * keys)  # q, o; k, v of slots
    local = project + 2.0 * block * 2 * d * keys + 4.0 * queries * slots * reads
    if config.summary_attention and summary:
        local += 2.0 * slots * 2 * d * queries + 4.0 * queries * slots * summary
    both = 6.0 * slots * d * config.intermediate_size
    if config.dynamic_conv:
        both += 2 * 2.0 * slots * d * (2 * config.conv_kernel * d // config.conv_group)
    pooled = 2.0 * slots * d * d if config.query_init == "pooled" else 0.0
    return pooled + (layers - 1) * local + project + 4.0 * queries * slots**2 + layers * both


def _summary_flops(config: MemoryConfig, summary: int) -> float:
    """Keys and values of the summary, once for all blocks."""
    keys = config.num_key_value_heads * config.head_dim
    used = config.summary_attention * (config.num_hidden_layers - 1)
    return used * 2.0 * summary * 2 * config.hidden_size * keys


def _prices(architecture: Architecture) -> Prices:
    return architecture.prices(windowed=True, state=True)


def _linear(prices: Prices) -> float:
    return float(prices.linear) + float(prices.state)


def _pair_flops(prices: Prices, start: Counts, stop: Counts) -> Float64[np.ndarray, " batch"]:
    """FLOPs of the pairs of queries at positions start + 1 .. stop, each with the keys up to itself."""
    spent: Float64[np.ndarray, " batch"] = float(prices.pair) * (_pairs(stop, None) - _pairs(start, None)).astype(
        np.float64
    )
    for capped in prices.windows:
        met = _pairs(stop, int(capped.window)) - _pairs(start, int(capped.window))
        spent = spent + float(capped.pair) * met.astype(np.float64)
    return spent


def _pairs(n: Counts, window: int | None) -> Counts:
    """Sum of min(i, window) for i = 1 .. n."""
    short = n if window is None else np.minimum(n, window)
    pairs: Counts = short * (short + 1) // 2 + (n - short) * (window or 0)
    return pairs


@functools.cache
def architecture_of(actor: ActorConfig) -> Architecture | None:
    """costmodel_jax's layer table of an actor, or None where the actor was made by hand of layers not known here.

    Actors read from a ``config.json`` are priced from it; others layer by layer where they have softmax attention. A
    residual convolution before a layer is elementwise work, which is not counted.
    """
    if actor.source:
        return Architecture.from_hf(json.loads(actor.source), name=actor.family)
    layers = [_layer(index, layer, actor.hidden) for index, layer in enumerate(actor.layers)]
    known = tuple(layer for layer in layers if layer is not None)
    if len(known) < len(layers):
        return None
    return Architecture(
        name=actor.family,
        family=actor.family,
        layers=known,
        hidden=actor.hidden,
        vocabulary=actor.vocabulary,
        tied=actor.tied,
    )


def _layer(index: int, layer: LayerConfig, hidden: int) -> Layer | None:
    mixer, mlp = layer.mixer, layer.feed_forward
    if not isinstance(mixer, SoftmaxAttention):
        return None
    read = attention(hidden, mixer.heads, mixer.kv_heads, mixer.head_dim, gated=mixer.gated, window=mixer.window)
    if isinstance(mlp, DenseMLP):
        return Layer(index=index, mixer=read, feed_forward=swiglu(hidden, mlp.width))
    experts = mixture_of_experts(
        hidden, mlp.width, mlp.experts, mlp.active, shared_width=mlp.shared_width, shared_gate=mlp.shared_gate
    )
    return Layer(index=index, mixer=read, feed_forward=experts)
