"""``costmodel sweep`` on several hosts: python -m launch.sweep PATH ... --out DIR [options]

Run the same command on each host, with --cluster.coordinator HOST:PORT --cluster.processes N --cluster.process I, or
--cluster.auto on TPU pods and under Slurm, and a folder that all of them see. Every process makes its own parts; they
are the same bytes that one process would have made. All other options are those of ``costmodel sweep``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import tyro

from costmodel_jax.cli.sweep import Command
from costmodel_jax.errors import CostModelError
from launch.cluster import Cluster


@dataclass(frozen=True, kw_only=True)
class Options(Command):
    """Those of ``costmodel sweep``, and the processes."""

    cluster: Cluster = field(default_factory=Cluster)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    options = tyro.cli(
        Options,
        prog="python -m launch.sweep",
        description=__doc__,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    try:
        options.cluster.connect()
        several = options.cluster.auto or options.cluster.coordinator is not None
        return options.sweep(None) if several else options.run()
    except (CostModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
