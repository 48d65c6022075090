"""An experiment of seconds, as a configuration file: an untrained actor, a few ledger episodes, two stages."""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import Mesh

from remory_jax.actor import Actor, ActorConfig, init_actor
from remory_jax.ledger.source import LedgerData
from remory_jax.ledger.task import LedgerTask
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import Experiment, ObjectiveConfig, OptimizerConfig, Stage

TASK = LedgerTask(facts=2, kept=1, history=16, keys=4, values=4, fillers=4, slots=2)


@dataclass(frozen=True, kw_only=True)
class RandomActor:
    """An actor that was never trained."""

    def load(self, mesh: Mesh | None) -> Actor:
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = {"model_type": "llama", "vocab_size": TASK.vocabulary, "num_key_value_heads": 2, **sizes}
        return init_actor(ActorConfig.from_hf(config), seed=1, mesh=mesh)


def get_config() -> Experiment:
    """Forty steps, the last ten a stage of their own."""
    memory = MemoryConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        target_layer_ids=(0,),
        compression_ratio=8,
        block_tokens=16,
        memory_budget=2,
    )
    data = LedgerData(task=TASK)
    return Experiment(
        name="tiny",
        actor=RandomActor(),
        memory=memory,
        template=TASK.template,
        stages=(
            Stage(name="first", data=data, steps=30, batch=8),
            Stage(name="second", data=data, steps=10, batch=8, lr=0.2),
        ),
        objective=ObjectiveConfig(chunk=64),
        optimizer=OptimizerConfig(peak_lr=1e-2),
        log_every=3,
        save_every=4,
        probe_every=10,
    )
