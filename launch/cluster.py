"""Options of a run on several hosts."""

from __future__ import annotations

from dataclasses import dataclass

import jax

__all__ = ["Cluster"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Processes of a run on several hosts; none by default."""

    auto: bool = False  # take the rest from the environment, as TPU pods and Slurm give it
    coordinator: str | None = None  # host:port of process 0
    processes: int | None = None
    process: int | None = None
    timeout: int = 300  # seconds to wait for the others

    def connect(self) -> None:
        """Meet the other processes, if there are any."""
        if not self.auto and self.coordinator is None:
            return
        if jax.config.jax_platforms == "cpu":
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator_address=self.coordinator,
            num_processes=self.processes,
            process_id=self.process,
            initialization_timeout=self.timeout,
        )
