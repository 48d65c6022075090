"""``costmodel price``: count and price every run under every policy and cache rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from costmodel_jax import specs
from costmodel_jax.cli import price_view as view
from costmodel_jax.cli.breaks import Breaks, find_breaks
from costmodel_jax.cli.findings import show_breaks, show_payback
from costmodel_jax.cli.floors import Infeasible, infeasible
from costmodel_jax.cli.options import Axes, File, Output, Reading, Weights, arg, configuration
from costmodel_jax.cli.payback import PaidEdit, holds_under, paid_edits
from costmodel_jax.cli.reading import Loaded, load, named_paths, sources
from costmodel_jax.cli.screen import Screen
from costmodel_jax.errors import InputError
from costmodel_jax.grid import KEEP_ALL, count_grid
from costmodel_jax.groups import compiling_quickly
from costmodel_jax.importers import detect
from costmodel_jax.pricing import Prices
from costmodel_jax.rows import Priced, price
from costmodel_jax.tables import CALL_COLUMNS, RUN_COLUMNS, Chunk, records, write_table

__all__ = ["HELP", "Command"]

HELP = "\n".join(
    [
        "Without a path, the newest session found on this machine is priced.",
        "",
        "Example:",
        "  costmodel price logs/ --policy keep-all --policy compact:50k --cache vllm",
        "",
        "Policies, fields after a colon as in compact:trigger=50k,keep_tail=8k:",
        *(f"  {name:<20} {kind.title}" for name, kind in specs.POLICIES.items()),
        "",
        "Cache rules, with overrides as in vllm:block=32:",
        "  paper, paper-16, prompt, prompt+generation, none, vllm, vllm-hybrid,",
        "  vllm-window, vllm-embeds, sglang, llama.cpp, anthropic, openai, deepseek",
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Output, Weights, Axes, Reading):
    """Options of ``costmodel price``."""

    runs: Annotated[int, arg(metavar="N", help="Runs to list one by one; 0 for all.")] = 20
    resamples: Annotated[int, arg(metavar="N", help="Bootstrap draws for 95% intervals over tasks; 0 for none.")] = 0
    seed: Annotated[int, arg(metavar="N", help="Seed of the bootstrap.")] = 0
    csv: Annotated[File, arg(metavar="FILE", help="Write all rows as CSV.", help_behavior_hint="")] = None
    parquet: Annotated[File, arg(metavar="FILE", help="Write all rows as Parquet.", help_behavior_hint="")] = None
    per_call: Annotated[
        bool, arg(help="One row per call instead of one per run, in JSON and files.", help_behavior_hint="")
    ] = False
    dry_run: Annotated[bool, arg(help="Say what would be read and computed, and stop.", help_behavior_hint="")] = False

    def run(self) -> int:
        """Price, and return the exit code."""
        screen = Screen(json=self.json, quiet=self.quiet)
        self._check()
        self.policies(), self.caches(), self.weights()  # a wrong spec is said before anything is read
        prices = {name: self.prices(architecture) for name, architecture in self.architectures().items()}
        if self.dry_run:
            return self._say_what(screen)
        loaded = load(self, screen)
        with compiling_quickly(loaded.runs):
            return self._price(screen, loaded, prices)

    def _price(self, screen: Screen, loaded: Loaded, prices: dict[str, Prices]) -> int:
        policies, caches, architectures = self.policies(), self.caches(), self.architectures()
        with screen.progress("counting", len(caches) * len({KEEP_ALL, *policies})) as advance:
            grid = count_grid(loaded.runs, policies, caches, advance=advance)
        priced = [price(grid, name, prices[name], w) for name in architectures for w in self.weights()]
        self._write(screen, self.csv, priced, "csv")
        self._write(screen, self.parquet, priced, "parquet")
        plain = next(iter(architectures.values())).prices()
        breaks = find_breaks(grid, next(iter(caches)), plain, limit=self.runs or len(loaded.runs))
        held = next((name for name, rule in caches.items() if holds_under(rule)), None)
        edits = [] if held is None else paid_edits(grid, held, plain, priced[0].w)
        refused = infeasible(grid)
        self._answer(screen, loaded, priced, breaks, held, edits, refused)
        return 3 if refused and self.policy else 0

    def _check(self) -> None:
        if self.per_call and not (self.json or self.csv or self.parquet):
            raise InputError("--per-call changes --json, --csv and --parquet alone; add one of them")
        for name, value, least in (("runs", self.runs, 0), ("resamples", self.resamples, 0), ("seed", self.seed, 0)):
            if value < least:
                raise InputError(f"--{name} {value}: give at least {least}")

    def _write(self, screen: Screen, path: File, priced: Sequence[Priced], format: Literal["csv", "parquet"]) -> None:
        if path is not None:
            columns = CALL_COLUMNS if self.per_call else RUN_COLUMNS
            screen.note(f"wrote {write_table(path, self._rows(priced), columns, format):,} rows to {path}")

    def _rows(self, priced: Sequence[Priced]) -> Iterator[Chunk]:
        for part in priced:
            yield from part.call_chunks() if self.per_call else part.chunks()

    def _totals(self, part: Priced) -> list[dict[str, Any]]:
        return part.totals(resamples=self.resamples, seed=self.seed)

    def _answer(
        self,
        screen: Screen,
        loaded: Loaded,
        priced: Sequence[Priced],
        breaks: Breaks,
        held: str | None,
        edits: Sequence[PaidEdit],
        refused: Sequence[Infeasible],
    ) -> None:
        totals = [self._totals(part) for part in priced]
        grid = priced[0].grid
        screen.answer(
            {
                "command": "price",
                "configuration": {
                    **configuration(self),
                    "policies": list(grid.policies),
                    "caches": {name: dataclasses.asdict(rule) for name, rule in grid.caches.items()},
                    "architectures": {
                        part.architecture: {
                            "linear": part.prices.linear, "pair": part.prices.pair, "extensions": part.prices.label
                        }
                        for part in priced
                    },
                },
                "loaded": loaded.to_dict(),
                "totals": [entry for part in totals for entry in part],
                "changed_nothing": sorted(grid.idle),
                "infeasible": [dataclasses.asdict(one) for one in refused],
                "breaks": {
                    **{name: getattr(breaks, name) for name in ("policy", "cache", "explained", "processed")},
                    "calls": [{"run": one.run, **dataclasses.asdict(one.explanation)} for one in breaks.breaks],
                },
                "payback": {"cache": held, "edits": [dataclasses.asdict(edit) for edit in edits]},
                "rows": list(records(self._rows(priced))) if self.json else [],
            }
        )  # fmt: skip
        view.show_loaded(screen, loaded)
        for part, entries in zip(priced, totals, strict=True):
            view.show_totals(screen, part, entries, all_rows=bool(self.policy))
        view.show_idle(screen, grid)
        view.show_infeasible(screen, refused)
        view.show_runs(screen, priced[0], self.runs)
        show_breaks(screen, grid.runs, breaks)
        show_payback(screen, grid, held, edits)

    def _say_what(self, screen: Screen) -> int:
        paths, format = named_paths(self, screen)
        files = []
        for source in sources(paths):
            found = detect(source) if format == "auto" else None
            files.append({"path": source.path, "format": found.name if found else format if format != "auto" else None})
        axes: dict[str, list[Any]] = {
            "policies": list(self.policies()),
            "caches": list(self.caches()),
            "architectures": list(self.architectures()),
            "w": list(self.weights()),
        }
        screen.answer(
            {"command": "price", "dry_run": True, "configuration": configuration(self), "files": files, **axes}
        )
        for file in files:
            screen.line(f"{file['format'] or 'no known format, would be passed over'}: {file['path']}")
        screen.say(
            f"would count each run under {len(axes['policies'])} policies and {len(axes['caches'])} cache rules, "
            f"and price {len(axes['architectures'])} architectures at {len(axes['w'])} values of w"
        )
        for name, values in axes.items():
            screen.say(f"  {name}: {', '.join(map(str, values))}")
        return 0
