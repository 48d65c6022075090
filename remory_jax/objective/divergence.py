"""`Divergence`: which divergence between student and teacher a loss is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import jax
from jaxtyping import Array, Float

from costmodel_jax.pytree import pytree

__all__ = ["Divergence", "Name"]

Name: TypeAlias = Literal["reverse", "forward", "jsd", "mixture"]


@pytree(static=("name",))
@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A divergence between the student's distribution q and the teacher's p over the vocabulary, in nats.

    ============= ===============================================================
    ``reverse``   KL(q || p) = sum_v q (log q - log p), the objective of REMORY
    ``forward``   KL(p || q) = sum_v p (log p - log q)
    ``jsd``       KL(q || m) / 2 + KL(p || m) / 2 with m = (p + q) / 2; at most log 2
    ``mixture``   s KL(q || p) + (1 - s) KL(p || q) with s = ``reverse_share``
    ============= ===============================================================

    A pytree: the name is part of the compiled program, ``reverse_share`` a value that may change from step to step, as
    the schedule `remory_jax.objective.reverse_share` makes it do.

    Raises:
      ValueError: for another name, a mixture without its share or a share without a mixture, or a share outside [0, 1]
        (a traced one is not looked at).
    """

    name: Name = "reverse"
    reverse_share: int | float | Float[Array, ""] | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(Name):
            raise ValueError(f"Divergence.name = {self.name!r}; use one of {', '.join(get_args(Name))}")
        if (self.name == "mixture") != (self.reverse_share is not None):
            raise ValueError(
                f"Divergence.reverse_share = {self.reverse_share!r} with name = {self.name!r}; give a share with "
                f"'mixture', and with 'mixture' only"
            )
        share = self.reverse_share
        if share is not None and not isinstance(share, jax.core.Tracer) and not 0.0 <= float(share) <= 1.0:
            raise ValueError(
                f"Divergence.reverse_share = {float(share)}; it is the share of reverse KL, so use 0 (all forward) to 1"
            )
