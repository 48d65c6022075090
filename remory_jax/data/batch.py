"""`Batch`: what one training step is given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float, Int

from costmodel_jax.pytree import pytree

__all__ = ["Batch", "Ids", "Lengths"]

Ids = Int[Array, "batch _"] | Int[np.ndarray, "batch _"]
Lengths = Int[Array, " batch"] | Int[np.ndarray, " batch"]


@pytree()
@dataclass(frozen=True, kw_only=True)
class Batch:
    """Token ids of a global batch, every row padded on the right with id 0.

    The teacher reads ``prefix | histories[0] | .. | histories[-1] | response``. The student reads, after the last
    boundary, ``prefix | summary | memory | response`` with the template's markers around summary and memory. Shapes are
    those of the bucket, so each bucket is one compiled program.

    Attributes:
      prefix: persistent instructions [B, P]; P may be 0.
      prefix_length: [B].
      histories: per boundary, oldest first, the tokens that are new since the boundary before [B, H_i].
      history_lengths: per boundary [B].
      summaries: per boundary the summary without its markers [B, S_i]; of width 0 where there is none (Stage I).
      summary_lengths: per boundary [B].
      response: what follows the context for teacher and student alike [B, Y].
      response_length: [B].
      weights: of the prediction of each response token [B, Y]; 0 for padding and for tokens that are not judged, such
        as the instruction to repeat a passage.
      index: of each example in its source [B]; -1 for rows that fill up a batch, whose weights are 0.
    """

    prefix: Ids
    prefix_length: Lengths
    histories: tuple[Ids, ...]
    history_lengths: tuple[Lengths, ...]
    summaries: tuple[Ids, ...]
    summary_lengths: tuple[Lengths, ...]
    response: Ids
    response_length: Lengths
    weights: Float[Array, "batch _"] | Float[np.ndarray, "batch _"]
    index: Lengths

    @property
    def boundaries(self) -> int:
        """Compaction boundaries of each example."""
        return len(self.histories)
