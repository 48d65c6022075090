"""The ledger: a tiny actor and a tiny memory network, trained in minutes on two cores.

Variant C (key, value, two filler tokens per fact): 8 facts in a history of 64 tokens, 2 of them in the summary, the
others to be carried by 8 rows. The actor's recipe and the learning rate, batch and steps come from trials on the actor
seeds 0 to 3; the one below was declared before any result of it was seen. (2610 was, before it: its actor, which ended
training at its levels after 400 steps, took rows of zeros for something. So the recipe has a least number of steps.)

    python -m launch.train configs/ledger_cpu.py
"""

from __future__ import annotations

from remory_jax.ledger.actor_config import LedgerActorConfig
from remory_jax.ledger.source import LedgerActor, LedgerData
from remory_jax.ledger.task import LedgerTask
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import Experiment, ObjectiveConfig, OptimizerConfig, Stage

ACTOR_SEED = 2611


def get_config() -> Experiment:
    """The experiment."""
    task = LedgerTask()
    actor = LedgerActorConfig(task=task)
    return Experiment(
        name="ledger_cpu",
        actor=LedgerActor(config=actor, seed=ACTOR_SEED),
        memory=ledger_memory(task, actor),
        template=task.template,
        stages=(Stage(name="continuation", data=LedgerData(task=task), steps=4000, batch=32),),
        objective=ObjectiveConfig(divergence="reverse", chunk=4096),
        optimizer=OptimizerConfig(peak_lr=2e-3, weight_decay=0.01),
        log_every=100,
        save_every=1000,
        probe_every=500,
    )


def ledger_memory(task: LedgerTask, actor: LedgerActorConfig) -> MemoryConfig:
    """A network of two layers with one row for every ``history / slots`` tokens, which starts as a copier."""
    return MemoryConfig(
        hidden_size=actor.hidden,
        intermediate_size=2 * actor.hidden,
        num_hidden_layers=2,
        num_attention_heads=actor.heads,
        num_key_value_heads=actor.heads,
        head_dim=actor.hidden // actor.heads,
        target_layer_ids=(0,),
        compression_ratio=task.history // task.slots,
        block_tokens=task.history,
        memory_budget=task.slots,
        init="copier",
    )
