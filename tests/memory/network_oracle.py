"""The memory network in float64 NumPy, written from its definition in words: one block, head and slot at a time.

It shares nothing with the network under test but the names of the tensors. Weights are a mapping from released names to
arrays, a block is a plain list of rows, and padding does not exist here: the caller takes it out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from remory_jax.memory import MemoryConfig

Weights = Mapping[str, np.ndarray]


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return np.stack([row / math.sqrt(float(np.dot(row, row)) / len(row) + eps) for row in x]) * weight if len(x) else x


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def turned(head: np.ndarray, position: int, theta: float) -> np.ndarray:
    half = len(head) // 2
    out = np.empty_like(head)
    for pair in range(half):
        # The angle is a product of float32 numbers, as the definition says.
        frequency = np.float32(theta ** (-2 * pair / len(head)))
        angle = float(np.float32(position) * frequency)
        first, second = head[pair], head[half + pair]
        out[pair] = first * math.cos(angle) - second * math.sin(angle)
        out[half + pair] = second * math.cos(angle) + first * math.sin(angle)
    return out


class Block:
    """One block: where its rows and slots stand."""

    def __init__(self, rows: int, source: int, slot: int, ratio: int) -> None:
        self.coordinates = [(rank + 0.5) * source / rows - 0.5 for rank in range(rows)]
        self.positions = [min(max(round(x), 0), source - 1) for x in self.coordinates]  # Python rounds halves to even
        ends = [(k * ratio, min(k * ratio + ratio, slot) - 1) for k in range(math.ceil(slot / ratio))]
        self.centres = [(first + last) / 2 for first, last in ends]
        self.slot_positions = [math.floor(centre + 0.5) for centre in self.centres]
        self.owned = [
            [rank for rank, at in enumerate(self.positions) if k * ratio <= at < (k + 1) * ratio]
            for k in range(len(ends))
        ]


class Oracle:
    """The network of one config and its weights."""

    def __init__(self, config: MemoryConfig, weights: Weights) -> None:
        self.c = config
        self.w = {name: np.asarray(value, np.float64) for name, value in weights.items()}

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms(x, self.w[f"{name}.weight"], self.c.rms_norm_eps)

    def heads(self, x: np.ndarray, name: str, count: int, norm: str | None, positions: list[int] | None) -> np.ndarray:
        """[rows, heads, dim], normalised per head and turned where asked."""
        out = (x @ self.w[f"{name}.weight"].T).reshape(len(x), count, self.c.head_dim)
        for row in range(len(out)):
            if norm is not None:
                out[row] = rms(out[row], self.w[f"{norm}.weight"], self.c.rms_norm_eps)
            if positions is not None:
                out[row] = np.stack([turned(head, positions[row], self.c.rope_theta) for head in out[row]])
        return out

    def read(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: list[list[int]], output: str) -> np.ndarray:
        """Every query reads the keys it is allowed; query head h reads key head floor(h G / H)."""
        heads, groups, dim = q.shape[1], k.shape[1], self.c.head_dim
        out = np.zeros((len(q), heads, dim))
        for row, keys in enumerate(allowed):
            for head in range(heads):
                group = head * groups // heads
                scores = np.array([q[row, head] @ k[key, group] / math.sqrt(dim) for key in keys])
                shares = np.exp(scores - scores.max())
                out[row, head] = (shares / shares.sum()) @ v[keys, group]
        return out.reshape(len(q), heads * dim) @ self.w[f"{output}.weight"].T

    def attention(self, x: np.ndarray, source: np.ndarray | None, block: Block, name: str, near: bool) -> np.ndarray:
        heads, groups = self.c.num_attention_heads, self.c.num_key_value_heads
        at, half = block.slot_positions, self.c.local_window / 2
        q = self.heads(x, f"{name}.q_proj", heads, f"{name}.q_norm", at)
        k = self.heads(x, f"{name}.k_proj", groups, f"{name}.k_norm", at)
        v = self.heads(x, f"{name}.v_proj", groups, None, None)
        rows = 0 if source is None else len(source)
        if source is not None:
            k = np.concatenate([self.heads(source, f"{name}.k_proj", groups, f"{name}.k_norm", block.positions), k])
            v = np.concatenate([self.heads(source, f"{name}.v_proj", groups, None, None), v])
        allowed = []
        for centre in block.centres:
            keys = [key for key in range(rows) if abs(block.coordinates[key] - centre) < half]
            others = [rows + key for key, other in enumerate(block.centres) if not near or abs(other - centre) < half]
            allowed.append(keys + others)
        return self.read(q, k, v, allowed, f"{name}.o_proj")

    def convolved(self, x: np.ndarray, inputs: np.ndarray, name: str, side: int) -> np.ndarray:
        """``sum_o (base[side, o] + expand(D[t, side, o])) x_{t - o}``, D from the sublayer's normalised inputs."""
        kernel, group, d = self.c.conv_kernel, self.c.conv_group, self.c.hidden_size
        dynamic = (inputs @ self.w[f"{name}.proj.weight"].T).reshape(len(inputs), 2, kernel, d // group)
        out = np.zeros_like(x)
        for t in range(len(x)):
            for offset in range(min(kernel, t + 1)):
                for channel in range(d):
                    tap = self.w[f"{name}.base"][side, offset, channel] + dynamic[t, side, offset, channel // group]
                    out[t, channel] += tap * x[t - offset, channel]
        return out

    def around(self, x: np.ndarray, name: str, sublayer: object) -> np.ndarray:
        if not self.c.dynamic_conv:
            return sublayer(x)  # type: ignore[operator]
        return self.convolved(sublayer(self.convolved(x, x, name, 0)), x, name, 1)  # type: ignore[operator]

    def summary_step(self, z: np.ndarray, summary: np.ndarray, layer: int) -> np.ndarray:
        name = f"summary_attention.{layer}"
        x, states = self.norm(z, f"{name}.query_norm"), self.norm(summary, f"{name}.summary_norm")
        q = self.heads(x, f"{name}.q_proj", self.c.num_attention_heads, f"{name}.q_norm", None)
        k = self.heads(states, f"{name}.k_proj", self.c.num_key_value_heads, f"{name}.k_norm", None)
        v = self.heads(states, f"{name}.v_proj", self.c.num_key_value_heads, None, None)
        everything = [list(range(len(states)))] * len(z)
        return z + np.tanh(self.w[f"{name}.gate"]) * self.read(q, k, v, everything, f"{name}.o_proj")

    def mlp(self, x: np.ndarray, name: str) -> np.ndarray:
        gate, up = (x @ self.w[f"{name}.{part}_proj.weight"].T for part in ("gate", "up"))
        return (silu(gate) * up) @ self.w[f"{name}.down_proj.weight"].T

    def __call__(
        self, features: np.ndarray, summary: np.ndarray | None, depth: int, source: int, slot: int
    ) -> np.ndarray:
        """Rows of one block; ``source`` and ``slot`` are its declared lengths."""
        block = Block(len(features), source, slot, self.c.compression_ratio)
        fused = self.norm(features.astype(np.float64) @ self.w["fc.weight"].T, "hidden_norm")
        z = np.repeat(self.w["mask_embedding"].reshape(1, -1), len(block.centres), axis=0)
        if self.c.summary_attention:
            z = z + self.w["depth_embedding.weight"][depth]
        if self.c.query_init == "pooled":
            means = [fused[own].mean(axis=0) if own else np.zeros(self.c.hidden_size) for own in block.owned]
            z = z + np.stack(means) @ self.w["pool_proj.weight"].T
        last = self.c.num_hidden_layers - 1
        for layer in range(last + 1):
            name, local = f"layers.{layer}", layer < last

            def attend(x: np.ndarray, name: str = name, local: bool = local) -> np.ndarray:
                return self.attention(x, fused if local else None, block, f"{name}.self_attn", local)

            def feed(x: np.ndarray, name: str = name) -> np.ndarray:
                return self.mlp(x, f"{name}.mlp")

            z = z + self.around(self.norm(z, f"{name}.input_layernorm"), f"{name}.attention_conv", attend)
            if local and summary is not None:
                z = self.summary_step(z, summary.astype(np.float64), layer)
            z = z + self.around(self.norm(z, f"{name}.post_attention_layernorm"), f"{name}.mlp_conv", feed)
        return self.norm(z, "norm") * self.w["output_embedding_rms"]
