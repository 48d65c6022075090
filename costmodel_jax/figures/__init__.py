"""Pictures of what policies cost, each with the table behind it.

Every function takes plain numbers and returns ``(figure, rows)``; ``save`` writes both. ``FIGURES`` makes them from
runs. Matplotlib is imported with this package, never with ``costmodel_jax``; no display and no pyplot is needed.

Example:
  >>> figure, rows = crossover({"Qwen3.6-27B": architectures["Qwen3.6-27B"].prices()})  # doctest: +SKIP
  >>> save(figure, rows, "out/crossover.png")  # doctest: +SKIP
"""

from costmodel_jax.figures.builders import FIGURES
from costmodel_jax.figures.cost import cost_by_policy
from costmodel_jax.figures.crossover import crossover
from costmodel_jax.figures.files import save
from costmodel_jax.figures.generation_price import cost_by_generation_price
from costmodel_jax.figures.horizon import horizon
from costmodel_jax.figures.reuse import predicted_reuse
from costmodel_jax.figures.trigger import cost_by_trigger
from costmodel_jax.figures.waterfall import waterfall

__all__ = [
    "FIGURES",
    "cost_by_generation_price",
    "cost_by_policy",
    "cost_by_trigger",
    "crossover",
    "horizon",
    "predicted_reuse",
    "save",
    "waterfall",
]
