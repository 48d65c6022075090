"""Frozen language models in JAX: token ids or embeddings in, hidden states and tapped layers out, with a cache.

Start with ``actor = load_actor(folder)`` and ``out = actor(tokens=ids, taps=(5, 20))``; logits are
``actor.logits(out.hidden)``, a continuation is ``actor.generate(ids, max_new_tokens=32)``.
"""

from remory_jax.actor.cache import Cache
from remory_jax.actor.chat import Chat, load_tokenizer
from remory_jax.actor.config import ActorConfig
from remory_jax.actor.loading import abstract_actor, init_actor, load_actor, save_actor
from remory_jax.actor.model import Actor, Output
from remory_jax.actor.sharding import Rules

__all__ = [
    "Actor",
    "ActorConfig",
    "Cache",
    "Chat",
    "Output",
    "Rules",
    "abstract_actor",
    "init_actor",
    "load_actor",
    "load_tokenizer",
    "save_actor",
]
