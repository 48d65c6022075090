"""Soft memory for context compaction: a memory network beside a frozen actor.

Frozen actors are in ``remory_jax.actor``; the mesh and its axes in ``mesh``.
"""

from remory_jax.mesh import AXES, make_mesh

__all__ = ["AXES", "make_mesh"]
