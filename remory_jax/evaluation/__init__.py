"""How much of what a summary lost a memory gives back, always beside its controls.

`evaluate` judges every condition on held-out responses, `gap_table` says how much of the gap each closes.
"""

from remory_jax.evaluation.conditions import CONDITIONS, Judged, Measured, evaluate
from remory_jax.evaluation.gap import Gap, gap_rows, gap_table

__all__ = ["CONDITIONS", "Gap", "Judged", "Measured", "evaluate", "gap_rows", "gap_table"]
