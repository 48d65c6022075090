"""Softmax attention of the actor: one definition, several implementations, and the rule that chooses among them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from jaxtyping import Array, Bool, Float

from remory_jax.actor.attention.blocked import blocked
from remory_jax.actor.attention.dot_product import dot_product
from remory_jax.actor.attention.reference import reference
from remory_jax.actor.attention.splash import obstacle, splash
from remory_jax.actor.attention.visibility import Tokens
from remory_jax.mesh import platform

__all__ = ["IMPLEMENTATIONS", "attention", "choose"]

FEW_QUERIES = 8


class Implementation(Protocol):
    """What every implementation takes."""

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        /,
        *,
        queries: Tokens,
        keys: Tokens,
        scale: float,
        window: int | None,
        sinks: Array | None,
        selected: Array | None,
        aligned: bool,
    ) -> Array: ...


IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        "reference": reference,
        "dot_product": dot_product,
        "cudnn": partial(dot_product, kernel="cudnn"),  # never chosen: nothing here has run it
        "blocked": blocked,
        "splash": splash,
    }
)


def choose(length: int, dim: int, value_dim: int, *, aligned: bool, selected: bool) -> str:
    """The implementation for a call of this shape on the platform that is traced for.

    On CPU always ``blocked``, which was the fastest at every shape tried, decoding included: it passes over the unused
    end of a cache. Elsewhere, for few queries (decoding) ``reference``, one softmax without loops; on TPU ``splash``,
    where its kernel takes the call; and ``blocked`` for the rest.

    Args:
      length: queries in a row.
      selected: whether there is a selection of keys.
    """
    backend = platform()
    if backend == "cpu":
        return "blocked"
    if length <= FEW_QUERIES:
        return "reference"
    if backend == "tpu" and obstacle(dim, value_dim, aligned=aligned, selected=selected) is None:
        return "splash"
    return "blocked"


def attention(
    q: Float[Array, "batch queries heads dim"],
    k: Float[Array, "batch keys kv_heads dim"],
    v: Float[Array, "batch keys kv_heads value_dim"],
    *,
    queries: Tokens,
    keys: Tokens,
    scale: float,
    window: int | None = None,
    sinks: Float[Array, " heads"] | None = None,
    selected: Bool[Array, "batch queries keys"] | None = None,
    aligned: bool = False,
    implementation: str | None = None,
) -> Float[Array, "batch queries heads value_dim"]:
    """Grouped-query softmax attention over the keys that each query may see::

        out_i = sum_j exp(scale q_i . k_j) v_j / (sum_j exp(scale q_i . k_j) + exp(sink))

    over keys j with `visible` (and ``selected``); the sink's term only where there are sinks. Query head h reads key
    head ``h // (heads / kv_heads)``. A query that sees no key, as padding does, gives 0 and passes no gradient.

    The softmax is in float32, the output in q's dtype; products are in the inputs' dtype with float32 sums, at JAX's
    default precision. Differentiable once with respect to q, k, v and sinks, in reverse mode.

    Args:
      queries, keys: segments and ranks of the tokens of q and of k.
      scale: factor of the scores, usually ``dim ** -0.5``.
      window: number of ranks a query sees, its own included; None for no limit.
      sinks: per head, the logit of an extra key without a value (gpt-oss); unscaled.
      selected: keys a query may see besides being visible (sparse attention).
      aligned: promises that the last keys are the queries' own tokens, column by column, and that the keys before them,
        if any, came earlier; implementations then skip what is hidden by causality.
      implementation: a name in `IMPLEMENTATIONS`; None lets `choose` decide. ``cudnn`` (`jax.nn`'s, on NVIDIA GPUs) is
        offered untested.

    Raises:
      ValueError: for an unknown implementation or one that cannot take the call, a window below 1, heads that are no
        multiple of the key heads, inputs that are empty or differ in dtype, or ``aligned`` with fewer keys than
        queries.
    """
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation = {implementation!r} is not an attention; use one of {', '.join(IMPLEMENTATIONS)}, or None"
        )
    length, heads, dim = q.shape[1:]
    if 0 in q.shape or 0 in k.shape:
        raise ValueError(f"q {q.shape} or k {k.shape} is empty; a call needs a query and a key")
    if heads % k.shape[2]:
        raise ValueError(f"q has {heads} heads and k {k.shape[2]}; the first must be a multiple of the second")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; cast them to one")
    if window is not None and window < 1:
        raise ValueError(
            f"window = {window}; a query sees at least its own rank, so use 1 or more, or None for no limit"
        )
    if aligned and k.shape[1] < length:
        raise ValueError(
            f"aligned = True promises a key for each query, and there are {length} queries and {k.shape[1]} keys; "
            f"pass aligned = False"
        )
    if implementation is None:
        implementation = choose(length, dim, v.shape[3], aligned=aligned, selected=selected is not None)
    return IMPLEMENTATIONS[implementation](
        q,
        k,
        v,
        queries=queries,
        keys=keys,
        scale=scale,
        window=window,
        sinks=sinks,
        selected=selected,
        aligned=aligned,
    )
