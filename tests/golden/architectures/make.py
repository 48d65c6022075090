"""Write the small architecture fixtures: a config and the shapes of the checkpoint that transformers wrote for it.

    python tests/golden/architectures/make.py FOLDER

FOLDER holds one folder per family with ``config.json`` and ``names.txt`` (name, shape and dtype, tab-separated). Only
the decoder layers are kept; the experts of a layer become one stack.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

FAMILIES = [
    "llama",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_vl",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "glm5_next",
    "gpt_oss",
    "gpt_oss_mxfp4",
]


def shapes(folder: Path) -> dict[str, list[int]]:
    """Layer tensors; ``experts.E.`` tensors become one stack [experts, ...] named ``experts.*.``."""
    kept: dict[str, list[int]] = {}
    experts: dict[str, int] = {}
    for line in (folder / "names.txt").read_text().splitlines():
        name, shape, _ = line.split("\t")
        if not re.search(r"\blayers\.\d+\.", name):
            continue
        stacked = re.sub(r"\.experts\.\d+\.", ".experts.*.", name)
        if stacked != name:
            experts[stacked] = experts.get(stacked, 0) + 1
            kept[stacked] = [experts[stacked], *ast.literal_eval(shape)]
        else:
            kept[name] = ast.literal_eval(shape)
    return kept


def main(source: Path) -> None:
    """Write one JSON file per family beside this script."""
    for family in FAMILIES:
        config = json.loads((source / family / "config.json").read_text())
        config.pop("vision_config", None)
        lines = [
            f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in sorted(shapes(source / family).items())
        ]
        text = f'{{"config": {json.dumps(config)},\n "shapes": {{\n' + ",\n".join(lines) + "\n }}\n"
        (Path(__file__).parent / f"{family}.json").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
