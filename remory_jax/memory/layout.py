"""Where source rows and memory slots stand, and what sees what.

Source rows may be padded anywhere; slots are padded on the left, so a batch's last slots line up. A source may declare
another length than it has rows (``source_lengths``): its rows are then spread over that many positions. Slots may cover
more positions than there are (``slot_lengths``), as a short block of a long history still has all its slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from costmodel_jax.precision import has_tracer
from costmodel_jax.pytree import pytree

__all__ = ["FORCED_WINDOW", "Layout", "Lengths", "check_lengths", "global_mask", "layout", "local_mask"]

FORCED_WINDOW = 2048
"""Smallest local window with which slots may cover positions beyond the source."""

Lengths = Int[Array, " batch"] | Int[np.ndarray, " batch"]
Mask = Bool[Array, "batch source"] | Bool[np.ndarray, "batch source"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Places of a batch's source rows and slots.

    Attributes:
      source_mask: which source rows are real [B, T].
      source_coordinates: place of each source row, a real number [B, T]; 0 for padding.
      source_positions: the same as an integer, for its rotary angle [B, T].
      slot_mask: which slots are real [B, N].
      slot_centres: middle of the positions that a slot covers, in halves [B, N].
      slot_positions: the same as an integer, halves rounded up [B, N]; 0 for padding.
      slot_ids: number of each slot in its own block [B, N]; 0 for padding.
      counts: real slots [B].
    """

    source_mask: Bool[Array, "batch source"]
    source_coordinates: Float[Array, "batch source"]
    source_positions: Int[Array, "batch source"]
    slot_mask: Bool[Array, "batch slots"]
    slot_centres: Float[Array, "batch slots"]
    slot_positions: Int[Array, "batch slots"]
    slot_ids: Int[Array, "batch slots"]
    counts: Int[Array, " batch"]


def check_lengths(
    mask: Any, source_lengths: Any, slot_lengths: Any, *, ratio: int, window: int, slots: int | None
) -> int:
    """Check concrete lengths against one another, and count the slots of the widest row.

    Values that are being traced are not looked at; then ``slots`` must be given.

    Returns:
      the number of slot columns N.

    Raises:
      ValueError: lengths that contradict one another, naming the row; or no ``slots`` under a transformation.
    """
    if slots is not None and slots < 0:
        raise ValueError(f"slots = {slots}; it must be at least 0")
    if has_tracer((mask, source_lengths, slot_lengths)):
        if slots is None:
            raise ValueError("give slots= (columns of the output) where lengths are traced: it decides a shape")
        return slots
    span = np.sum(np.asarray(mask), axis=1)
    source = span if source_lengths is None else np.asarray(source_lengths)
    slot = source if slot_lengths is None else np.asarray(slot_lengths)
    for row, (rows, declared, covered) in enumerate(zip(span, source, slot, strict=True)):
        if len({int(length > 0) for length in (rows, declared, covered)}) > 1 or min(declared, covered) < 0:
            raise ValueError(
                f"row {row} has {rows} source rows, source length {declared} and slot length {covered}; "
                "they must be zero together"
            )
        if covered < declared:
            raise ValueError(f"row {row}: slot length {covered} is less than its source length {declared}")
        if covered > declared and window < FORCED_WINDOW:
            raise ValueError(
                f"row {row}: slot length {covered} is more than its source length {declared}, for which local_window = "
                f"{window} must be at least {FORCED_WINDOW}"
            )
    most = int(np.max(-(-slot // ratio), initial=0))
    if slots is not None and most > slots:
        raise ValueError(f"slots = {slots} and a row needs {most}; give at least that many")
    return most if slots is None else slots


def layout(
    mask: Bool[Array, "batch source"],
    source_lengths: Int[Array, " batch"] | None,
    slot_lengths: Int[Array, " batch"] | None,
    *,
    ratio: int,
    slots: int,
) -> Layout:
    """Places of a batch.

    A real source row of rank t among its row's ``span`` real ones stands at ``(t + 1/2) length / span - 1/2``. Slot k
    covers ``[k r, min(k r + r - 1, slot length - 1)]``, and there are ``ceil(slot length / r)``.

    Args:
      source_lengths: positions that a source stands for; by default as many as it has rows.
      slot_lengths: positions that slots cover; by default those of the source.
      ratio: positions per slot.
      slots: columns N, at least as many as any row's slots.
    """
    span = jnp.sum(mask, axis=1, dtype=jnp.int32)  # [B]
    length = span if source_lengths is None else source_lengths.astype(jnp.int32)
    covered = length if slot_lengths is None else slot_lengths.astype(jnp.int32)
    rank = (jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1).astype(jnp.float32)  # [B, T]
    stretch = length.astype(jnp.float32) / jnp.maximum(span, 1).astype(jnp.float32)
    coordinates = jnp.where(mask, (rank + 0.5) * stretch[:, None] - 0.5, 0.0)
    nearest = jnp.round(coordinates).astype(jnp.int32)  # halves to even
    positions = jnp.where(mask, jnp.clip(nearest, 0, jnp.maximum(length - 1, 0)[:, None]), 0)

    counts = -(-covered // ratio)
    number = jnp.arange(slots, dtype=jnp.int32)[None, :] - (slots - counts)[:, None]  # [B, N]
    real = number >= 0
    number = jnp.maximum(number, 0)
    first = number * ratio
    last = jnp.minimum(first + ratio - 1, covered[:, None] - 1)
    return Layout(
        source_mask=mask,
        source_coordinates=coordinates,
        source_positions=positions,
        slot_mask=real,
        slot_centres=(first + last).astype(jnp.float32) / 2,
        slot_positions=jnp.where(real, (first + last + 1) // 2, 0),
        slot_ids=number,
        counts=counts,
    )


def local_mask(places: Layout, window: int) -> Bool[Array, "batch slots keys"]:
    """What a slot reads in a local layer, source rows then slots: [B, N, T + N].

    Both within half a window of its centre, exclusive. A padding slot reads itself, so that its softmax is defined.
    """
    centre = places.slot_centres
    near_source = jnp.abs(places.source_coordinates[:, None, :] - centre[:, :, None]) < window / 2
    near_slot = jnp.abs(centre[:, None, :] - centre[:, :, None]) < window / 2
    source = near_source & places.source_mask[:, None, :] & places.slot_mask[:, :, None]
    return jnp.concatenate([source, _or_itself(places, near_slot)], axis=2)


def global_mask(places: Layout) -> Bool[Array, "batch slots slots"]:
    """What a slot reads in the last layer: every real slot of its block [B, N, N]."""
    return _or_itself(places, jnp.ones((1, 1, 1), bool))


def _or_itself(places: Layout, near: Bool[Array, "#batch #slots #slots"]) -> Bool[Array, "batch slots slots"]:
    real = places.slot_mask
    itself = jnp.eye(real.shape[1], dtype=bool)[None]
    return (near & real[:, None, :] & real[:, :, None]) | (itself & ~real[:, :, None])
