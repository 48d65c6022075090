"""The mixers and feed-forward blocks of the supported families: one definition per weight, pair price and state term.

Biases, norms, rotary angles, softmax, activations and elementwise gates are not counted anywhere. The sizes are those
of the transformers modules of the same name; the state and pair prices count 2 FLOPs per multiply-add.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel_jax.architecture.layers import FeedForward, Mixer, StateTerm, Weight

__all__ = [
    "Indexer",
    "attention",
    "gated_deltanet",
    "hyper_connected",
    "kimi_delta_attention",
    "latent_attention",
    "mixture_of_experts",
    "short_convolution",
    "swiglu",
]


def attention(
    hidden: int, heads: int, kv_heads: int, head_dim: int, *, gated: bool = False, window: int | None = None
) -> Mixer:
    """Softmax attention with grouped key-value heads: 2 heads (d_qk + d_v) = 4 heads head_dim FLOPs per pair.

    ``gated`` doubles the rows of q_proj: the second half of each head is the output gate. With a ``window`` a query
    meets at most that many keys, its own position included, so its pairs do not grow with the context.
    """
    price = 4 * heads * head_dim
    product = f"4 x {heads} heads x {head_dim}"
    return Mixer(
        kind=("sliding " if window is not None else "") + ("gated " if gated else "") + "attention",
        weights=(
            Weight("q_proj", hidden, heads * head_dim * (2 if gated else 1)),
            Weight("k_proj", hidden, kv_heads * head_dim),
            Weight("v_proj", hidden, kv_heads * head_dim),
            Weight("o_proj", heads * head_dim, hidden),
        ),
        pair=price if window is None else 0,
        window=window,
        window_pair=0 if window is None else price,
        formula=product if window is None else f"{product}, at most {window} keys per query",
    )


def _delta_rule(heads: int, key_dim: int, value_dim: int) -> StateTerm:
    """The recurrence on S [key_dim, value_dim] per head: decay 1, S^T k 2, rank-one update 2, S^T q 2."""
    return StateTerm("delta rule", 7 * heads * key_dim * value_dim, f"7 x {heads} heads x {key_dim} x {value_dim}")


def short_convolution(channels: int, taps: int) -> StateTerm:
    """A causal convolution of each channel with its own ``taps`` weights."""
    return StateTerm("short convolution", 2 * taps * channels, f"2 x {taps} taps x {channels} channels")


def gated_deltanet(hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, taps: int) -> Mixer:
    """Gated DeltaNet (Qwen3-Next, Qwen3.5): no pairs; a state of value_heads x key_dim x value_dim numbers.

    Qwen3-Next stores the same rows grouped as in_proj_qkvz and in_proj_ba.
    """
    keys, values = key_heads * key_dim, value_heads * value_dim
    return Mixer(
        kind="gated deltanet",
        weights=(
            Weight("in_proj_qkv", hidden, 2 * keys + values),
            Weight("in_proj_z", hidden, values),
            Weight("in_proj_b", hidden, value_heads),
            Weight("in_proj_a", hidden, value_heads),
            Weight("out_proj", values, hidden),
        ),
        state=(_delta_rule(value_heads, key_dim, value_dim), short_convolution(2 * keys + values, taps)),
    )


def kimi_delta_attention(hidden: int, heads: int, head_dim: int, taps: int) -> Mixer:
    """KDA (GLM-5.3-Flash): the delta rule with a decay per key channel and low-rank decay and output gates."""
    width = heads * head_dim
    return Mixer(
        kind="kda",
        weights=(
            Weight("q_proj", hidden, width),
            Weight("k_proj", hidden, width),
            Weight("v_proj", hidden, width),
            Weight("f_a_proj", hidden, head_dim),
            Weight("f_b_proj", head_dim, width),
            Weight("b_proj", hidden, heads),
            Weight("g_a_proj", hidden, head_dim),
            Weight("g_b_proj", head_dim, width),
            Weight("o_proj", width, hidden),
        ),
        state=(_delta_rule(heads, head_dim, head_dim), short_convolution(3 * width, taps)),
    )


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """The scorer of DeepSeek sparse attention (DSA), which picks the keys a query attends to.

    Args:
      q_rank: width of the query latent it projects from.
      heads, head_dim: its own query heads and their dimension.
      top_k: keys it picks for a query.
      pool: keys that share one pooled index key; None for an indexer without pooling.
      tail: whether the keys of the last, incomplete pool are attended as well.
      shared: the layer reuses the selection of an earlier one: no weights and no scores of its own.
    """

    q_rank: int
    heads: int
    head_dim: int
    top_k: int
    pool: int | None = None
    tail: bool = True
    shared: bool = False

    @property
    def most_keys(self) -> int:
        """The most keys one query attends to. A pooled tail has 0 to pool - 1 of them: counted at its longest."""
        return self.top_k + (self.pool - 1 if self.pool is not None and self.tail else 0)

    @property
    def pair(self) -> int:
        """FLOPs of its scores per query-key pair: one score per key, or per pool of keys."""
        return 0 if self.shared else 2 * self.heads * self.head_dim // (self.pool or 1)

    @property
    def formula(self) -> str:
        """How `pair` comes about."""
        if self.shared:
            return "keys chosen by an earlier layer"
        per_pool = "" if self.pool is None else f" / {self.pool} keys per pool"
        return f"indexer 2 x {self.heads} heads x {self.head_dim}{per_pool}"

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its projections of the query latent and of the residual stream."""
        if self.shared:
            return ()
        weights = (
            Weight("indexer.wq_b", self.q_rank, self.heads * self.head_dim),
            Weight("indexer.wk", hidden, self.head_dim),
            Weight("indexer.weights_proj", hidden, self.heads),
        )
        if self.pool is None:
            return weights
        return (*weights, Weight("indexer.index_kpool_compress_gate", hidden, self.head_dim))


def latent_attention(
    hidden: int,
    heads: int,
    q_rank: int | None,
    kv_rank: int,
    nope: int,
    rope: int,
    value: int,
    indexer: Indexer | None = None,
) -> Mixer:
    """Multi-head latent attention (MLA), sparse (DSA) where it has an ``indexer``.

    Expanded, the form of prefill: 2 heads (nope + rope + value) FLOPs per pair; kv_b_proj, among the linear weights,
    expands each key once (expanding reused keys again is not counted). Absorbed, the form of decoding: queries meet the
    cached latent itself, 2 heads (2 kv_rank + rope) FLOPs per pair, with the same linear weights.

    With an ``indexer`` the attended pairs are capped at its top k, like a window, and the pairs that grow with the
    context are the indexer's scores.
    """
    if q_rank is None:
        queries: tuple[Weight, ...] = (Weight("q_proj", hidden, heads * (nope + rope)),)
    else:
        queries = (Weight("q_a_proj", hidden, q_rank), Weight("q_b_proj", q_rank, heads * (nope + rope)))
    expanded = 2 * heads * (nope + rope + value)
    formula = f"2 x {heads} heads x ({nope + rope} + {value})"
    dense = Mixer(
        kind="mla",
        weights=(
            *queries,
            Weight("kv_a_proj_with_mqa", hidden, kv_rank + rope),
            Weight("kv_b_proj", kv_rank, heads * (nope + value)),
            Weight("o_proj", heads * value, hidden),
        ),
        pair=expanded,
        absorbed_pair=2 * heads * (2 * kv_rank + rope),
        formula=formula,
    )
    if indexer is None:
        return dense
    return replace(
        dense,
        kind="mla + shared dsa" if indexer.shared else "mla + dsa",
        weights=dense.weights + indexer.weights(hidden),
        pair=indexer.pair,
        window=indexer.most_keys,
        window_pair=expanded,
        formula=f"{indexer.formula}; attention {formula}, at most {indexer.most_keys} keys per query",
    )


def _gated_mlp(prefix: str, hidden: int, width: int, active: int = 1, stored: int = 1) -> tuple[Weight, ...]:
    """The three matrices of down(act(gate x) * up x)."""
    return (
        Weight(f"{prefix}gate_proj", hidden, width, active, stored),
        Weight(f"{prefix}up_proj", hidden, width, active, stored),
        Weight(f"{prefix}down_proj", width, hidden, active, stored),
    )


def swiglu(hidden: int, width: int) -> FeedForward:
    """A dense gated MLP."""
    return FeedForward(kind="swiglu", weights=_gated_mlp("", hidden, width))


def mixture_of_experts(
    hidden: int, width: int, experts: int, active: int, *, shared_width: int = 0, shared_gate: bool = False
) -> FeedForward:
    """A router, ``active`` of ``experts`` gated MLPs, and a shared one of ``shared_width`` (0: none), maybe gated."""
    weights = (Weight("router", hidden, experts), *_gated_mlp("experts.", hidden, width, active, experts))
    if shared_width:
        weights += _gated_mlp("shared_expert.", hidden, shared_width)
    if shared_gate:
        weights += (Weight("shared_expert_gate", hidden, 1),)
    return FeedForward(kind="moe + shared expert" if shared_width else "moe", weights=weights)


def hyper_connected(mixer: Mixer, feed_forward: FeedForward, hidden: int, streams: int) -> tuple[Mixer, FeedForward]:
    """Hyper-connections: before each half, a map from all residual streams to the weights that mix them."""
    outputs = 2 * streams + streams * streams
    return (
        replace(mixer, weights=(*mixer.weights, Weight("hc_attn_fn", streams * hidden, outputs))),
        replace(feed_forward, weights=(*feed_forward.weights, Weight("hc_ffn_fn", streams * hidden, outputs))),
    )
