"""The vocabulary as columns of the head: reductions over them, whole or spread over a mesh axis, and their products."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array

__all__ = ["HIDDEN", "Columns"]

HIDDEN = -1e30  # logit of a padded column: its exponential is 0, and differences of two stay finite


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How one device sees the vocabulary. Arrays are [C, V] with V the columns here; results are over all columns."""

    axis: str | None  # mesh axis of the columns, inside `jax.shard_map`
    real: int | None  # columns that are tokens; those after them are padding. None: all are
    products: str  # dtype of matrix products; sums are in float32 whatever it is

    @property
    def precision(self) -> jax.lax.Precision | None:
        """float32 is meant when it is asked for: accelerators would round to bf16 or TF32 by default."""
        return jax.lax.Precision.HIGHEST if self.products == "float32" else None

    def logits(self, hidden: Array, head: Array) -> Array:
        """[C, D] by [D, V], float32; padded columns are `HIDDEN`."""
        u = jnp.dot(
            hidden.astype(self.products),
            head.astype(self.products),
            precision=self.precision,
            preferred_element_type=jnp.float32,
        )
        if self.real is None:
            return u
        return jnp.where((self.first(head) + jnp.arange(head.shape[1]) < self.real)[None], u, HIDDEN)

    def back(self, dlogits: Array, head: Array) -> Array:
        """[C, V] by the transposed head: the gradient of hidden states [C, D], float32."""
        product = jax.lax.dot_general(
            dlogits.astype(self.products),
            head.astype(self.products),
            (((1,), (1,)), ((), ())),
            precision=self.precision,
            preferred_element_type=jnp.float32,
        )
        return product if self.axis is None else jax.lax.psum(product, self.axis)

    def first(self, head: Array) -> Array | int:
        """Id of the first column here."""
        return 0 if self.axis is None else jax.lax.axis_index(self.axis) * head.shape[1]

    def max(self, x: Array) -> Array:
        """Maximum over the vocabulary [C, 1]."""
        top = jnp.max(x, axis=-1, keepdims=True)
        return top if self.axis is None else jax.lax.pmax(top, self.axis)

    def sums(self, *terms: Array) -> tuple[Array, ...]:
        """Sums over the vocabulary, [C, 1] each, in one reduction over the mesh axis."""
        sums = jnp.stack([jnp.sum(term, axis=-1, keepdims=True) for term in terms])
        return tuple(sums if self.axis is None else jax.lax.psum(sums, self.axis))

    def argmax(self, x: Array, top: Array) -> Array:
        """Id of the first column that has the value ``top`` [C, 1], the maximum; [C]."""
        ids = jnp.arange(x.shape[1])[None]
        best = jnp.min(jnp.where(x == top, ids, 2**30), axis=-1)
        if self.axis is not None:
            best = jax.lax.pmin(best + jax.lax.axis_index(self.axis) * x.shape[1], self.axis)
        return best

    def here(self, ids: Array, width: int) -> Array:
        """Columns [C, k] of token ids; ``width``, one past the last, for those that another device has, and for -1."""
        local = ids if self.axis is None else ids - jax.lax.axis_index(self.axis) * width
        return jnp.where((ids >= 0) & (local >= 0) & (local < width), local, width)
