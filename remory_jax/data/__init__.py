"""Data of the memory network: records of text, examples of token ids, batches.

Records (`read_passages`, `read_conversations`, `read_trajectories`) are tokenised and cut once into `Example`s, which
`write_prepared` stores; `make_pipeline` batches them. Names are loaded when they are first used, so that `Batch` and
`Template` need neither Grain nor Arrow.
"""

from __future__ import annotations

import importlib
from typing import Any

from remory_jax.data.batch import Batch
from remory_jax.data.template import Template

_PLACES: dict[str, str] = {
    "BatchIterator": "iteration",
    "Batches": "iteration",
    "Bucket": "buckets",
    "Buckets": "buckets",
    "Conversation": "records",
    "Cutting": "cutting",
    "Example": "examples",
    "ExampleList": "prepared",
    "Passage": "records",
    "PassageCutting": "passages",
    "Prepared": "prepared",
    "PreparedData": "source",
    "Problems": "problems",
    "Renderer": "rendering",
    "Trajectory": "records",
    "Turn": "records",
    "batches_of": "pipeline",
    "collate": "batching",
    "continuations": "passages",
    "cut_records": "cutting",
    "data_files": "readers",
    "generate_missing": "generations",
    "make_pipeline": "pipeline",
    "make_renderer": "rendering",
    "process_rows": "pipeline",
    "python_topics": "documents",
    "read_conversations": "readers",
    "read_passages": "readers",
    "read_texts": "documents",
    "read_trajectories": "readers",
    "reconstructions": "passages",
    "write_prepared": "prepared",
}
__all__ = ["Batch", "Template", *sorted(_PLACES)]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
