"""The parts of a sweep: shapes, one compiled program a shape, and tables; see `costmodel_jax.sweep`."""
