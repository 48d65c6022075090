"""Make the README's pictures: ``python -m launch.make_figures [RECORDINGS.json ...] [--log SESSION] [--out DIR]``.

They show the shipped samples, the preset architectures, and recordings of a prefix cache (by default the excerpt that
the tests hold). Pictures are reduced to a palette, which keeps the repository small and changes nothing to the eye.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import tyro
from PIL import Image

import costmodel_jax as cm
from costmodel_jax.architecture import architectures
from costmodel_jax.figures import FIGURES, predicted_reuse, save
from costmodel_jax.specs import DEFAULT_CACHES, DEFAULT_POLICIES, parse_cache, parse_policy, policy_name
from launch.plot_prefix_cache import compare

ROOT = Path(__file__).resolve().parents[1]
EXCERPT = ROOT / "tests" / "golden" / "prefix_cache" / "excerpt.json"
COLORS = 96
REAL = ("as-recorded", "keep-all", "keep-latest:5", "compact")
WATERFALL = ("keep-all", "keep-latest:5", "clear-tool-results", "compact")
ARCHITECTURE = "Qwen3.6-27B"


def main(
    recordings: Annotated[tuple[Path, ...], tyro.conf.Positional] = (EXCERPT,),
    log: Path | None = None,
    out: Path = ROOT / "launch" / "figures",
) -> None:
    """Make every picture.

    Args:
      recordings: files of recorded cache hits.
      log: a real session, for the worked example under the rule of its server.
      out: folder for the pictures.
    """
    runs = cm.load_runs(ROOT / "costmodel_jax" / "samples")
    caches = {name: parse_cache(name) for name in DEFAULT_CACHES}
    given = {ARCHITECTURE: architectures[ARCHITECTURE]}

    def policies(names: tuple[str, ...]) -> dict[str, cm.policies.Policy]:
        return {policy_name(policy): policy for policy in map(parse_policy, names)}

    records = [record for path in recordings for record in json.loads(path.read_text())]
    made = {name: FIGURES[name](runs, policies(DEFAULT_POLICIES), caches, given, 1.0) for name in ("cost", "trigger")}
    made["waterfall"] = FIGURES["waterfall"](runs, policies(WATERFALL), caches, given, 1.0)
    made["crossover"] = FIGURES["crossover"]([], {}, {}, given, 1.0)
    made["prefix_cache"] = predicted_reuse(
        *compare(records), f"{len(records)} recorded runs of a real vLLM prefix cache"
    )
    if log is not None:
        session = cm.load_runs(log)
        made["session"] = FIGURES["waterfall"](
            session, policies(REAL), {"openai": cm.cache_rules["openai"]}, given, 1.0
        )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, (figure, rows) in made.items():
            picture, _ = save(figure, rows, Path(folder) / name)
            reduced = Image.open(picture).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
            reduced.save(out / picture.name, optimize=True)
            print(f"{out / picture.name}: {(out / picture.name).stat().st_size:,} bytes")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
