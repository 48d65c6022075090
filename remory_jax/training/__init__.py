"""Training of a memory network on a frozen actor.

`remory_jax.training.loop.train` runs an experiment and goes on where it was killed; `step` is what it computes, and
`experiment` the configuration.
"""
