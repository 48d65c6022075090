"""The memory network: configuration, forward pass, hierarchy, recursion, and the released checkpoint format.

Start with ``network = load_memory(folder)`` or ``MemoryNetwork(config, rngs=nnx.Rngs(0))``, and
``out = network(features, features_mask, summary=states)``. A whole history is
``run(plan_compaction(contract, prefix=.., history=.., summary=..), ActorEncoder(actor, network))``.
"""

from remory_jax.memory.checkpoint import actor_of, load_memory, read_memory_config, save_memory
from remory_jax.memory.config import MemoryConfig
from remory_jax.memory.encoder import ActorEncoder, embed_tokens
from remory_jax.memory.fingerprint import Fingerprint, fingerprint
from remory_jax.memory.network import Buffer, MemoryNetwork, MemoryOutput, abstract_network, memory_axes
from remory_jax.memory.pyramid import BudgetError, plan_frontier
from remory_jax.memory.recursion import plan_compaction, run
from remory_jax.memory.released import Released
from remory_jax.memory.sequences import Contract, Memory, restored
from remory_jax.memory.tensors import memory_from_tensors

__all__ = [
    "ActorEncoder",
    "BudgetError",
    "Buffer",
    "Contract",
    "Fingerprint",
    "Memory",
    "MemoryConfig",
    "MemoryNetwork",
    "MemoryOutput",
    "Released",
    "abstract_network",
    "actor_of",
    "embed_tokens",
    "fingerprint",
    "load_memory",
    "memory_axes",
    "memory_from_tensors",
    "plan_compaction",
    "plan_frontier",
    "read_memory_config",
    "restored",
    "run",
    "save_memory",
]
