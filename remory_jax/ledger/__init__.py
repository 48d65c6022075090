"""The ledger: the smallest honest test of a memory. A summary keeps some facts of a history; the response asks for all.

`LedgerSource` gives training batches, `train_ledger_actor` the frozen actor, trained from scratch in a minute or two.
"""

from remory_jax.ledger.actor import LedgerActorReport, LevelNotReachedError, train_ledger_actor
from remory_jax.ledger.actor_config import LedgerActorConfig
from remory_jax.ledger.episodes import Episodes, LedgerSource, draw_episodes
from remory_jax.ledger.task import LedgerTask

__all__ = [
    "Episodes",
    "LedgerActorConfig",
    "LedgerActorReport",
    "LedgerSource",
    "LedgerTask",
    "LevelNotReachedError",
    "draw_episodes",
    "train_ledger_actor",
]
