"""Make the synthetic runs shipped in ``costmodel_jax/samples``: ``python -m launch.make_samples [FOLDER]``.

No sample is anybody's session. Lengths are drawn, with a fixed seed and in integers alone so that the bytes never
change, from quantiles measured on public logs of coding agents: six Codex CLI sessions (390 calls, 28 user turns) for
everything but the ``long`` profile's fixed prompt, which also follows three Claude Code sessions (18 to 25 thousand
tokens before the first answer). User messages were too few to take quantiles of; theirs are rounded by hand.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from costmodel_jax.schema import Call, Evidence, Run, Segment, dump_runs

SEED = 20260731
FOLDER = Path(__file__).resolve().parents[1] / "costmodel_jax" / "samples"
FILE = "agents.jsonl"
NOTE = "synthetic: lengths drawn by launch/make_samples.py in the magnitudes of real agent logs; nobody's session"

# Values at these shares of the measured calls, per mille; between two of them the distribution is taken as even.
SHARES = (0, 100, 250, 500, 750, 900, 950, 990, 1000)
Quantiles = tuple[int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How long the parts of a call are, in tokens."""

    system: int
    tools: int
    result: Quantiles  # of one tool result
    reasoning: Quantiles  # where a call reasons at all
    reasons: int  # calls that do, per mille
    answer: Quantiles  # text and tool calls


SHORT = Profile(
    system=1_700,
    tools=1_200,
    result=(27, 63, 96, 243, 735, 1_652, 1_840, 2_546, 3_872),
    reasoning=(64, 64, 64, 192, 768, 2_368, 3_904, 6_080, 6_336),
    reasons=471,
    answer=(34, 49, 58, 74, 82, 304, 421, 1_988, 3_640),
)
LONG = Profile(
    system=6_200,
    tools=11_300,
    result=(10, 48, 53, 164, 1_596, 3_381, 5_094, 7_927, 10_624),
    reasoning=(6, 9, 28, 69, 230, 738, 1_243, 2_290, 2_638),
    reasons=891,
    answer=(37, 39, 74, 165, 230, 475, 938, 1_456, 1_526),
)
MESSAGE: Quantiles = (20, 30, 60, 110, 240, 600, 2_500, 14_000, 20_000)  # the last ones hold an attached file
SECONDS_TOOL: Quantiles = (1, 2, 3, 6, 10, 23, 38, 87, 357)
SECONDS_USER: Quantiles = (3, 20, 45, 108, 225, 743, 1_065, 2_705, 2_705)
USER_TURN = 72  # calls that open a user turn, per mille
TWO_RESULTS = 180  # calls that used two tools at once, per mille
ERROR = 70  # tool results that report an error, per mille
TOOLS = ("read", "search", "run", "edit")

# Runs are counted in padded shapes and every shape is compiled once: these lengths make two of them.
RUNS: tuple[tuple[str, Profile, int, bool], ...] = (
    ("typo", SHORT, 40, True),
    ("typo", LONG, 33, True),
    ("parser", SHORT, 41, True),
    ("parser", LONG, 36, False),
    ("flaky-test", SHORT, 38, True),
    ("flaky-test", LONG, 39, True),
    ("flaky-test", LONG, 68, False),
    ("release-notes", SHORT, 46, True),
    ("release-notes", LONG, 37, True),
    ("refactor", SHORT, 47, False),
    ("refactor", LONG, 72, True),
    ("refactor", LONG, 78, True),
    ("migration", SHORT, 90, True),
    ("migration", LONG, 80, False),
    ("profiling", LONG, 75, True),
    ("profiling", SHORT, 84, True),
)


def main() -> None:
    """Write the samples and say how large they are."""
    path = (Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = make_runs()
    dump_runs(runs, path)
    print(f"{path.name}: {len(runs)} runs, {sum(len(run.calls) for run in runs)} calls, {path.stat().st_size:,} bytes")


def make_runs() -> list[Run]:
    """The samples, the same ones every time."""
    seen: dict[str, int] = {}
    runs = []
    for number, (task, profile, calls, solved) in enumerate(RUNS):
        seen[task] = seen.get(task, 0) + 1
        runs.append(
            Run(
                id=f"sample-{task}-{seen[task]}",
                task=f"sample-{task}",
                solved=solved,
                calls=tuple(_calls(Draw(SEED + number), profile, calls)),
                evidence=Evidence(lengths="modelled", cached="unknown", reasoning="observed"),
                notes=(NOTE,),
            )
        )
    return runs


class Draw:
    """Draws in integers only, from raw bits, so that no platform or Python release can round them differently."""

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed)

    def length(self, quantiles: Quantiles) -> int:
        """A value whose distribution has these quantiles."""
        share = self._below_million()
        for i in range(len(SHARES) - 1):
            low, high = SHARES[i] * 1_000, SHARES[i + 1] * 1_000
            if share < high:
                return quantiles[i] + (quantiles[i + 1] - quantiles[i]) * (share - low) // (high - low)
        return quantiles[-1]

    def happens(self, per_mille: int) -> bool:
        """True that often."""
        return self._below_million() < per_mille * 1_000

    def one_of(self, names: tuple[str, ...]) -> str:
        """One of them, evenly."""
        return names[self._below_million() * len(names) // 1_000_000]

    def _below_million(self) -> int:
        return self._bits.getrandbits(32) * 1_000_000 >> 32


def _calls(draw: Draw, profile: Profile, calls: int) -> Iterator[Call]:
    time = 0
    for call in range(calls):
        user = call > 0 and draw.happens(USER_TURN)
        if call:
            time += draw.length(SECONDS_USER if user else SECONDS_TOOL)
        yield Call(
            input=tuple(_input(draw, profile, first=call == 0, user=user)),
            output=tuple(_output(draw, profile)),
            time=float(time),
        )


def _input(draw: Draw, profile: Profile, *, first: bool, user: bool) -> Iterator[Segment]:
    if first:
        yield Segment(kind="system", tokens=profile.system)
        yield Segment(kind="tools", tokens=profile.tools)
    if first or user:
        yield Segment(kind="user", tokens=draw.length(MESSAGE))
        return
    for _ in range(1 + draw.happens(TWO_RESULTS)):
        tokens, name, error = draw.length(profile.result), draw.one_of(TOOLS), draw.happens(ERROR)
        yield Segment(kind="tool", tokens=tokens, name=name, error=True if error else None)


def _output(draw: Draw, profile: Profile) -> Iterator[Segment]:
    if draw.happens(profile.reasons):
        yield Segment(kind="reasoning", tokens=draw.length(profile.reasoning))
    yield Segment(kind="assistant", tokens=draw.length(profile.answer))


if __name__ == "__main__":
    main()
