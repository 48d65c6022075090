"""Compile a training step for a pod on any machine: python -m launch.compile_check CONFIG.py --topology v5e:4x8

Lowers and compiles the real step of each stage, for its largest batch, from shapes alone: no weights, no data and no
TPU are needed. Prints what each device must hold against what it has, and exits with 1 where a step does not fit.

TPU topologies are named by their chips: v4:2x2x2, v5e:4x8, v5p:4x4x4, v6e:4x4, tpu7x:2x2x1. They need the TPU compiler,
which is large and wanted for nothing else here, so it is installed aside:

    {install}
    PYTHONPATH=DIR python -m launch.compile_check ...

cpu:8 compiles for eight fake CPU devices, without it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from costmodel_jax.errors import CostModelError, InputError
from launch.configs import read_experiment
from remory_jax.mesh import make_mesh
from remory_jax.training.aot import StepProgram, compile_step, topology_devices, widest
from remory_jax.training.experiment import Experiment, Request
from remory_jax.training.loop import check

WIDTH = 80


@dataclass(frozen=True, kw_only=True)
class Options:
    """Beside the experiment's own fields, which change what is compiled: --mesh.tensor 8."""

    topology: str = "v5e:4x8"  # or cpu:N
    stage: str = ""  # only this one
    memory: float | None = None  # GiB of a device, in place of what the compiler says of it
    quick: bool = False  # compile with little effort: half the time, and memory that may be up to a third too small
    json: Path | None = None  # write the results there


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    given = sys.argv[1:] if arguments is None else arguments
    text = (__doc__ or "").format(install=install_command())
    try:
        _fake_devices(given)
        experiment, options = read_experiment(given, Options(), prog="python -m launch.compile_check", text=text)
        check(experiment)
        programs = compile_all(experiment, options)
    except (CostModelError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        if "libtpu" in str(error):
            print(f"install it aside, 650 MB:\n  {install_command()}\nand set PYTHONPATH=DIR", file=sys.stderr)
        return 1
    if options.json is not None:
        described = [asdict(program) | {"fits": program.fits} for program in programs]
        options.json.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    show(experiment, options, programs)
    return 0 if all(program.fits for program in programs) else 1


def compile_all(experiment: Experiment, options: Options) -> list[StepProgram]:
    """One program for each stage, or for the one that was asked for.

    Raises:
      InputError: no such stage, an actor that cannot be described without its weights, or a topology that is not known.
      ValueError: an experiment that does not fit the mesh.
    """
    stages = [stage for stage in experiment.stages if options.stage in ("", stage.name)]
    if not stages:
        names = ", ".join(stage.name for stage in experiment.stages)
        raise InputError(f"stage = {options.stage!r}: the stages are {names}")
    abstract = getattr(experiment.actor, "abstract", None)
    if abstract is None:
        raise InputError(
            f"actor: {type(experiment.actor).__name__} has no abstract(mesh), so it is known by loading only"
        )
    devices = topology_devices(options.topology)
    mesh = None
    if len(devices) > 1:
        sizes = experiment.mesh
        mesh = make_mesh(data=sizes.data, fsdp=sizes.fsdp, tensor=sizes.tensor, devices=devices)
    actor = abstract(mesh)
    limit = None if options.memory is None else round(options.memory * 2**30)
    effort = {"exec_time_optimization_effort": -1.0} if options.quick else None
    programs = []
    for stage in stages:
        request = Request(
            batch=stage.batch,
            seed=experiment.seed,
            template=experiment.template,
            objective=experiment.objective,
        )
        bucket = widest(stage, request)
        print(f"compiling {stage.name}: {bucket} ...", file=sys.stderr)
        programs.append(compile_step(experiment, stage, actor, bucket, limit=limit, options=effort))
    return programs


def show(experiment: Experiment, options: Options, programs: list[StepProgram]) -> None:
    """The table, 80 columns wide."""
    console = Console(width=WIDTH, highlight=False)
    first = programs[0]
    mesh = " x ".join(f"{name} {size}" for name, size in first.mesh.items()) or "none"
    console.print(f"{experiment.name} on {options.topology}: {first.devices} x {first.kind}, mesh {mesh}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("GiB of a device")
    for program in programs:
        table.add_column(program.stage, justify="right")
    rows: list[tuple[str, Any]] = [
        ("arguments", lambda p: _gib(p.arguments)),
        ("outputs beyond them", lambda p: _gib(p.outputs)),
        ("temporaries", lambda p: _gib(p.temporaries)),
        ("program", lambda p: _gib(p.code)),
        ("needed", lambda p: _gib(p.needed)),
        ("there is", lambda p: _gib(p.limit)),
        ("fits", lambda p: "yes" if p.fits else "NO"),
        ("history, tokens", lambda p: f"{sum(p.bucket.histories):,}"),
        ("response, tokens", lambda p: f"{p.bucket.response:,}"),
        ("examples / parts", lambda p: f"{p.rows} / {p.microbatches}"),
        ("PFLOPs of a step", lambda p: f"{p.flops / 1e15:.3g}"),
        ("seconds to lower", lambda p: f"{p.seconds[0]:.0f}"),
        ("seconds to compile", lambda p: f"{p.seconds[1]:.0f}"),
    ]
    for name, cell in rows:
        table.add_row(name, *(cell(program) for program in programs))
    console.print(table)
    for program in programs:
        if program.refused is not None:
            console.print(f"{program.stage}: {program.refused.splitlines()[0]}", soft_wrap=False)


def install_command() -> str:
    """How to get the TPU compiler that this jax wants, beside everything else."""
    try:
        wanted = [line.split(";")[0].strip() for line in requires("jax") or () if line.startswith("libtpu")]
    except PackageNotFoundError:
        wanted = []
    return f"python -m pip install --no-deps --target DIR '{wanted[0] if wanted else 'libtpu'}'"


def _fake_devices(arguments: list[str]) -> None:
    """Make as many CPU devices as are asked for, where JAX has not started yet, and keep it off all others."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for at, argument in enumerate(arguments):
        value = argument.partition("=")[2] if "=" in argument else "".join(arguments[at + 1 : at + 2])
        count = value.removeprefix("cpu:")
        if argument.partition("=")[0] == "--topology" and value.startswith("cpu:") and count.isdigit():
            try:
                jax.config.update("jax_num_cpu_devices", int(count))
            except RuntimeError:
                return  # it runs already, with the devices it has


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**30:.2f}"


if __name__ == "__main__":
    sys.exit(main())
