"""Batches of random tokens, for timing."""

from __future__ import annotations

import numpy as np

from remory_jax.data.batch import Batch
from remory_jax.data.template import Template

TEMPLATE = Template(s_open=(1, 2), s_close=(3,), m_open=(4,), m_close=(5,))


def random_batch(rows: int, prefix: int, history: int, summary: int, response: int, vocabulary: int) -> Batch:
    """Full rows of random tokens."""
    random = np.random.default_rng(0)

    def ids(width: int) -> np.ndarray:
        return random.integers(6, vocabulary, (rows, width)).astype(np.int32)

    def full(width: int) -> np.ndarray:
        return np.full(rows, width, np.int32)

    return Batch(
        prefix=ids(prefix),
        prefix_length=full(prefix),
        histories=(ids(history),),
        history_lengths=(full(history),),
        summaries=(ids(summary),),
        summary_lengths=(full(summary),),
        response=ids(response),
        response_length=full(response),
        weights=np.ones((rows, response), np.float32),
        index=np.arange(rows, dtype=np.int32),
    )
