"""From forward to reverse KL over the steps of a run."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["reverse_share"]


def reverse_share(
    step: int | Int[Array, ""], *, begin: int, end: int, initial: int | float = 0.0, final: int | float = 1.0
) -> Float[Array, ""]:
    """Share of reverse KL in the loss at a step: ``initial`` up to ``begin``, ``final`` from ``end`` on, a straight
    line between them.

    Pure reverse KL from scratch starts badly: where the teacher is peaked and the student far off, its gradient
    ``q (log q/p - KL)`` drives the student to its own mode. Forward KL, whose gradient is ``q - p``, does not; so a run
    starts with it. Use it as ``Divergence(name="mixture", reverse_share=reverse_share(step, begin=0, end=500))``.

    Args:
      step: may be traced.
      begin, end: steps; equal ones make a jump.
      initial, final: shares, 0 to 1.

    Returns:
      float32.

    Raises:
      ValueError: if ``end`` is before ``begin``, or a share is outside [0, 1].

    >>> [float(reverse_share(step, begin=10, end=20)) for step in (0, 10, 15, 20, 99)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    if end < begin:
        raise ValueError(f"begin = {begin}, end = {end}; the schedule must end after it begins")
    for name, share in (("initial", initial), ("final", final)):
        if not 0.0 <= share <= 1.0:
            raise ValueError(
                f"{name} = {share}; it is the share of reverse KL, so use 0 (all forward) to 1 (all reverse)"
            )
    now = jnp.asarray(step)
    # integers: the difference is exact at any step, and a jump (end == begin) divides by one
    progress = (now - begin).astype(jnp.float32) / max(end - begin, 1)
    ramp = initial + (final - initial) * jnp.clip(progress, 0.0, 1.0)
    return jnp.where(now >= end, jnp.float32(final), ramp.astype(jnp.float32))
