"""DeepSeek sparse attention: a small indexer scores keys, and each query keeps the best (GLM-5), or the best pools of
consecutive keys and the incomplete last pool (GLM-5.3).
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from remory_jax.actor.attention.visibility import Tokens, visible
from remory_jax.actor.cache import Memory
from remory_jax.actor.call import Call, columns
from remory_jax.actor.config import Indexer, Rotary
from remory_jax.actor.norms import layer_norm
from remory_jax.actor.parameters import Parameter, Stored, projection, vector
from remory_jax.actor.rotary import rotate

__all__ = ["index_keys", "indexer_parameters", "select"]


def indexer_parameters(indexer: Indexer, hidden: int, q_rank: int) -> dict[str, Parameter]:
    """q [rq, heads, d], k [D, d] with its layer norm, the heads' weights [D, heads]; for pools a gate and offsets."""
    embed, width = (("embed", hidden),), (None, indexer.head_dim)
    found = {
        "q": projection("self_attn.indexer.wq_b.weight", (("rank", q_rank),), ((None, indexer.heads), width)),
        "k": projection("self_attn.indexer.wk.weight", embed, (width,)),
        "k_norm": vector("self_attn.indexer.k_norm.weight", width, init="ones"),
        "k_norm_bias": vector("self_attn.indexer.k_norm.bias", width, init="zeros"),
        "heads": projection("self_attn.indexer.weights_proj.weight", embed, ((None, indexer.heads),)),
    }
    if indexer.pool is not None:
        shape = (indexer.pool, indexer.head_dim)
        found["pool_gate"] = projection("self_attn.indexer.index_kpool_compress_gate", embed, (width,))
        found["pool_offset"] = Parameter(
            shape=shape,
            axes=(None, None),
            stored=(Stored(name="self_attn.indexer.index_kpool_compress_ape", shape=shape),),
            init="zeros",
        )
    return found


def index_keys(
    indexer: Indexer, weights: Mapping[str, Array], x: Float[Array, "batch length d"], call: Call, rotary: Rotary | None
) -> dict[str, Array]:
    """What the indexer keeps of each token: its key and, with pools, the logits of its share in its pool's key."""
    k = layer_norm(x @ weights["index_k"], weights["index_k_norm"], weights["index_k_norm_bias"], 1e-6)
    if rotary is not None:
        k = rotate(k[:, :, None], call.rotations[rotary], rotary)[:, :, 0]
    found = {"index_k": k}
    if indexer.pool is not None:
        found["index_gate"] = x @ weights["index_pool_gate"]
    return found


def select(
    indexer: Indexer,
    weights: Mapping[str, Array],
    x: Float[Array, "batch length d"],
    query_latent: Float[Array, "batch length r"],
    seen: Memory,
    call: Call,
    rotary: Rotary | None,
) -> Bool[Array, "batch length keys"] | None:
    """The keys each query may see: None where there are too few keys to leave any out.

    No gradient passes a choice, and none is computed.
    """
    keys = seen["index_k"]
    if keys.shape[1] <= indexer.top_k:
        return None
    q = jnp.einsum("bsr,rhk->bshk", query_latent, weights["index_q"])
    if rotary is not None:
        q = rotate(q, call.rotations[rotary], rotary)
    share = (x @ weights["index_heads"]).astype(jnp.float32) * indexer.heads**-0.5  # [B, S, h]
    if indexer.pool is None:
        scores = _scores(jax.lax.stop_gradient(q), jax.lax.stop_gradient(keys), jax.lax.stop_gradient(share))
        allowed = visible(call.tokens, call.keys, None)
        return _best(scores, allowed, indexer.top_k)
    pools = _Pools(call.keys, indexer.pool)
    pool_keys = pools.keys(keys, seen["index_gate"], weights["index_pool_offset"])
    scores = _scores(jax.lax.stop_gradient(q), jax.lax.stop_gradient(pool_keys), jax.lax.stop_gradient(share))
    chosen = _best(scores, visible(call.tokens, pools.ends, None), indexer.top_k // indexer.pool)
    return pools.members(chosen, call.tokens, indexer.tail)


def _scores(
    q: Float[Array, "batch length heads k"],
    keys: Float[Array, "batch keys k"],
    share: Float[Array, "batch length heads"],
) -> Float[Array, "batch length keys"]:
    """``sum_h share_h relu(q_h . k / sqrt(d))`` in float32, one head at a time so that no [S, keys, heads] exists."""
    q, keys = q.astype(jnp.float32) * q.shape[-1] ** -0.5, keys.astype(jnp.float32)

    def add(total: Array, head: tuple[Array, Array]) -> tuple[Array, None]:
        query, weight = head
        return total + weight[..., None] * jax.nn.relu(jnp.einsum("bsk,btk->bst", query, keys)), None

    start = jnp.zeros((*q.shape[:2], keys.shape[1]), jnp.float32)
    return jax.lax.scan(add, start, (jnp.moveaxis(q, 2, 0), jnp.moveaxis(share, 2, 0)))[0]


def _best(
    scores: Float[Array, "batch length keys"], allowed: Bool[Array, "batch length keys"], count: int
) -> Bool[Array, "batch length keys"]:
    """The ``count`` best of the allowed keys."""
    count = min(count, scores.shape[-1])
    best = jax.lax.top_k(jnp.where(allowed, scores, -jnp.inf), count)[1]
    chosen = jnp.put_along_axis(jnp.zeros_like(allowed), best, True, axis=-1, inplace=False)
    return chosen & allowed


class _Pools:
    """Complete pools of consecutive tokens of a segment, counted from its first token.

    Rows hold padding anywhere, so a pool's members are found by their order among the row's real tokens.
    """

    def __init__(self, tokens: Tokens, size: int) -> None:
        self.tokens, self.size = tokens, size
        real = tokens.segments != 0
        complete = real & (tokens.ranks % size == size - 1)
        count = tokens.segments.shape[1] // size  # complete pools share no token, so there are no more
        self.exists = jnp.arange(count)[None, :] < jnp.sum(complete, axis=1)[:, None]
        last = jnp.argsort(~complete, axis=1, stable=True)[:, :count]  # slot of each pool's last token
        order = jnp.cumsum(real, axis=1) - 1  # of each slot among the row's real ones
        slots = jnp.argsort(~real, axis=1, stable=True)  # and back
        members = columns(order, last)[:, :, None] - size + 1 + jnp.arange(size)[None, None, :]
        self.slots = columns(slots, jnp.maximum(members, 0))  # [B, P, size]
        self.number = jnp.cumsum(
            jnp.pad(complete, ((0, 0), (1, 0)))[:, :-1], axis=1
        )  # pool of each slot that is in one
        self.ends = Tokens(  # what decides who may see a pool
            segments=jnp.where(self.exists, columns(tokens.segments, last), 0), ranks=columns(tokens.ranks, last)
        )

    def keys(
        self, keys: Float[Array, "batch slots k"], gate: Float[Array, "batch slots k"], offset: Float[Array, "size k"]
    ) -> Float[Array, "batch pools k"]:
        """Per channel, the mean of the members' keys weighted by the softmax of gate + offset."""
        logits = columns(gate, self.slots).astype(jnp.float32) + offset.astype(jnp.float32)[None, None]
        return jnp.sum(jax.nn.softmax(logits, axis=2) * columns(keys, self.slots).astype(jnp.float32), axis=2)

    def members(
        self, chosen: Bool[Array, "batch length pools"], queries: Tokens, tail: bool
    ) -> Bool[Array, "batch length slots"]:
        """The slots of the chosen pools and, with ``tail``, of the pool that the query's token has not completed."""
        inside = jnp.zeros((*chosen.shape[:2], self.number.shape[1]), jnp.bool_)
        if chosen.shape[2]:
            number = jnp.minimum(self.number, chosen.shape[2] - 1)
            inside = jnp.take_along_axis(chosen, number[:, None, :], axis=2)
            inside &= (self.number < jnp.sum(self.exists, axis=1)[:, None])[:, None, :]
        if tail:
            start = (queries.ranks + 1) // self.size * self.size  # first rank outside complete pools
            inside |= self.tokens.ranks[:, None, :] >= start[:, :, None]
        return inside & visible(queries, self.tokens, None)
