"""Peak memory of `load_actor` beyond the weights; the same while the whole file is held; the largest tensor: in MiB."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from remory_jax.actor import Actor, load_actor

D, F, V, LAYERS, HEADS, KV = 1024, 2048, 24576, 3, 16, 4


def model(folder: Path, *, hidden: int, vocabulary: int) -> int:
    """Write a llama of zeros, a sparse file; bytes of its largest tensor."""
    width = hidden // HEADS
    config = {"model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": F}
    config |= {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "rms_norm_eps": 1e-5,
    }
    shapes = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden), "model.norm": (hidden,)}
    each = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "mlp.down_proj": (hidden, F)}
    each |= {f"mlp.{name}_proj": (F, hidden) for name in ("gate", "up")}
    each |= {f"self_attn.{name}_proj": (hidden, hidden) for name in "qo"}
    each |= {f"self_attn.{name}_proj": (KV * width, hidden) for name in "kv"}
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in each.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return 4 * max(math.prod(shape) for shape in shapes.values())


def resident() -> int:
    """Bytes of this process in memory, pages of mapped files among them."""
    with Path("/proc/self/status").open() as status:
        return 1024 * sum(int(line.split()[1]) for line in status if line.startswith(("RssAnon", "RssFile")))


@contextmanager
def peak() -> Iterator[Callable[[], int]]:
    """Most bytes held inside over what was held before."""
    before, most, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: most[0] - before
    finally:
        done.set()
        watcher.join()


def own(actor: Actor) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(actor.weights))


def main(folder: Path) -> None:
    model(folder / "small", hidden=256, vocabulary=8192)
    load_actor(folder / "small")  # what the first call of anything allocates
    largest = model(folder / "large", hidden=D, vocabulary=V)
    with peak() as over:
        actor = load_actor(folder / "large")
        time.sleep(0.1)
    ours = over() - own(actor)
    size = own(actor)
    del actor
    with peak() as over:
        everything = np.fromfile(folder / "large" / "model.safetensors", np.uint8)
        load_actor(folder / "large")
        time.sleep(0.1)
    assert everything.nbytes > size
    print(*(round(value / 2**20, 1) for value in (ours, over() - size, largest)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
