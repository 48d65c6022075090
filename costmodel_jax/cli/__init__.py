"""The ``costmodel`` command: one file per sub-command, found by name so that only the asked-for one is imported."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from costmodel_jax.errors import CostModelError, InfeasibleError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "price": ("price", "Count and price runs under policies and cache rules."),
    "sweep": ("sweep", "Any number of runs under everything, as Parquet parts."),
    "explain": ("explain", "One run call by call: what was processed again, and why."),
    "breakeven": ("breakeven", "After how many positions and calls an edit pays back."),
    "import": ("importing", "Turn agent logs into agent-run/1 JSON Lines."),
    "validate": ("validate", "Check logs and say everything that is wrong with them."),
    "arch": ("arch", "Layers, c, beta and P* of an architecture."),
    "plot": ("plot", "Draw figures, each with its numbers."),
}
"""Name of a command -> its module, which has ``Command`` (a dataclass with ``run``) and ``HELP``, and what it does."""

OK, BAD_INPUT, INFEASIBLE, INTERRUPTED = 0, 2, 3, 130
EXAMPLES = (
    ("costmodel price", "the newest session found on this machine"),
    ("costmodel price logs/ --policy compact:50k --cache vllm", ""),
    ("costmodel breakeven --prefix 3k --replaced 60k --by 2k --tail 20k", ""),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
      argv: the arguments, without the program's name; those of the process where ``None``.

    Returns:
      0; 2 for bad input or flags; 3 where a policy asked for by name is infeasible; 130 when interrupted.
    """
    own_process = argv is None
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python flushes once more at exit, which must not fail again.
        if own_process:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        print("costmodel: interrupted", file=sys.stderr)
        return INTERRUPTED
    except InfeasibleError as error:
        print(f"costmodel: {error}", file=sys.stderr)
        return INFEASIBLE
    except (CostModelError, OSError) as error:
        print(f"costmodel: {error}", file=sys.stderr)
        return BAD_INPUT
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return OK if arguments else BAD_INPUT
    if arguments[0] in ("--version", "-V"):
        print(f"costmodel {importlib.metadata.version('costmodel-remory-jax')}")
        return OK
    name = arguments[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise CostModelError(f"{name!r} is no command.{hint} Commands: {', '.join(COMMANDS)}; see costmodel --help")
    module = importlib.import_module(f"{__name__}.{COMMANDS[name][0]}")
    import tyro

    try:
        command = tyro.cli(
            module.Command,
            prog=f"costmodel {name}",
            description=f"{COMMANDS[name][1]}\n\n{module.HELP}",
            args=arguments[1:],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except SystemExit as exit:  # help was shown, or tyro has said what is wrong with the flags
        return exit.code if isinstance(exit.code, int) else OK
    code: int = command.run()
    return code


def _overview() -> str:
    lines = ["usage: costmodel COMMAND [PATH ...] [OPTIONS]", "", "What an agent's memory costs, in operations.", ""]
    lines += [f"  {name:<10} {title}" for name, (_, title) in COMMANDS.items()]
    lines += ["", "Examples:"]
    lines += [f"  {example}" + (f"    # {note}" if note else "") for example, note in EXAMPLES]
    lines += ["", "costmodel COMMAND --help says more; costmodel --version names the version.", ""]
    lines += ["Exit codes: 0, 2 bad input, 3 a policy asked for is infeasible."]
    return "\n".join(lines)
