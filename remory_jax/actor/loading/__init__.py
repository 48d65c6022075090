"""Where frozen actors come from: Hugging Face folders, GGUF files, and the small real model that a package carries."""

from remory_jax.actor.loading.create import abstract_actor, init_actor
from remory_jax.actor.loading.export import save_actor
from remory_jax.actor.loading.load import load_actor

__all__ = ["abstract_actor", "init_actor", "load_actor", "save_actor"]
