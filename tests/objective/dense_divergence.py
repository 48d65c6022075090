"""The oracle of the objective: dense divergences in float64 NumPy, from their definitions.

Gradients are complex-step derivatives of the values: exact to rounding, and derived by nobody. Positions do not depend
on one another, so one coordinate is stepped at all positions at once.
"""

from __future__ import annotations

import numpy as np

STEP = 1e-100


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Of complex logits too: the maximum is that of the real parts."""
    shifted = logits - logits.real.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def divergence(name: str, log_q: np.ndarray, log_p: np.ndarray, share: float = 0.0) -> np.ndarray:
    """By position, over the last axis."""
    q, p = np.exp(log_q), np.exp(log_p)
    if name == "mixture":
        return share * divergence("reverse", log_q, log_p) + (1 - share) * divergence("forward", log_q, log_p)
    if name == "reverse":
        return (q * (log_q - log_p)).sum(axis=-1)
    if name == "forward":
        return (p * (log_p - log_q)).sum(axis=-1)
    larger = np.where(log_q.real > log_p.real, log_q, log_p)
    log_m = larger + np.log1p(np.exp(log_q + log_p - 2 * larger)) - np.log(2)
    return ((q * (log_q - log_m)).sum(axis=-1) + (p * (log_p - log_m)).sum(axis=-1)) / 2


def merged(log_probs: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Log-masses [N, k + 1] of the tokens of each row of ``ids`` and, last, of all other tokens together."""
    rows = []
    for line, chosen in zip(log_probs, ids, strict=True):
        others = np.setdiff1d(np.arange(len(line)), chosen)
        rows.append([*line[chosen], np.log(np.exp(line[others]).sum())])
    return np.asarray(rows)


def dense(
    student: np.ndarray,
    teacher: np.ndarray,
    head: np.ndarray,
    *,
    name: str = "reverse",
    share: float = 0.0,
    vocabulary: int | None = None,
    ids: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Divergences [B, T] and their gradients with respect to the student's hidden states [B, T, D]."""
    batch, length, width = student.shape
    head = head[:, :vocabulary].astype(np.float64)
    log_p = log_softmax(teacher.reshape(-1, width).astype(np.float64) @ head)
    chosen = None if ids is None else ids.reshape(batch * length, -1)
    if chosen is not None:
        log_p = merged(log_p, chosen)

    def values(hidden: np.ndarray) -> np.ndarray:
        log_q = log_softmax(hidden @ head)
        return divergence(name, log_q if chosen is None else merged(log_q, chosen), log_p, share)

    flat = student.reshape(-1, width).astype(np.complex128)
    steps = 1j * STEP * np.eye(width)
    gradient = np.stack([values(flat + step[None]).imag / STEP for step in steps], axis=-1)
    return values(flat).real.reshape(batch, length), gradient.reshape(student.shape)


def close(value: object, wanted: float, tolerance: float = 1e-5) -> None:
    """A scalar, relatively where it is large."""
    np.testing.assert_allclose(np.float64(value), wanted, rtol=tolerance, atol=tolerance)  # type: ignore[arg-type]


def close_gradient(gradient: object, wanted: np.ndarray, tolerance: float = 1e-4) -> None:
    """Relative to the largest entry."""
    scale = np.abs(wanted).max()
    assert scale > 0
    np.testing.assert_allclose(np.asarray(gradient, np.float64) / scale, wanted / scale, rtol=0, atol=tolerance)
