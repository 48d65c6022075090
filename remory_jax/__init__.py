"""Soft memory for context compaction: a memory network beside a frozen actor. The mesh and its axes are in ``mesh``."""

from remory_jax.mesh import AXES, make_mesh

__all__ = ["AXES", "make_mesh"]
