"""Write the parity fixtures of this folder: tiny random models of every actor family, with transformers' outputs.

Usage, in an environment with torch==2.13.0 and transformers==5.24.0 (CPU):

    python tests/golden/actors/make.py                      # all families
    python tests/golden/actors/make.py llama qwen3          # some
    python tests/golden/actors/make.py --search 100 qwen3   # print the margins of seeds 0..99, write nothing

The README beside this file says what each file and array holds. ``cases.py`` lists the models, ``checkpoints.py`` draws
and stores their weights.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from cases import CASES, HIDDEN, VOCAB, Case
from checkpoints import IMPLEMENTATIONS, Arrays, build, rng, save

HERE = Path(__file__).parent
LIMIT = 300_000  # bytes, a whole folder
SOFT = range(5, 9)  # positions of the soft vectors
TAIL = 12  # logits are kept at the last 12 positions
STEPS = 4  # single steps after a prefill of length - 4
PADS = 7
PROMPT, NEW = 12, 8
ROUTE_MARGIN, GREEDY_MARGIN = 1e-4, 1e-3


class Margins:
    """Least gap between the last chosen and the first unchosen value, over all top-k choices of all runs."""

    def __init__(self) -> None:
        self.route = self.index = math.inf

    @contextmanager
    def watching(self, mask: torch.Tensor) -> Iterator[None]:
        """Watch every ``topk`` inside: experts [tokens, experts], keys [batch, length, keys]. ``mask``: real tokens."""
        original = torch.topk

        def topk(values: torch.Tensor, k: int, dim: int = -1, **more: Any) -> Any:
            if values.shape[-1] > k and (values.ndim == 2 or values.shape[:2] == mask.shape):
                rows = values.reshape(-1, values.shape[-1])[mask.reshape(-1).bool()]
                ordered = original(rows, k + 1, dim=-1)[0][:, -2:]
                gaps = (ordered[:, 0] - ordered[:, 1])[ordered[:, 1] > -1e30]  # masked values are no candidates
                least = gaps.min().item() if len(gaps) else math.inf
                if values.ndim == 2:
                    self.route = min(self.route, least)
                else:
                    self.index = min(self.index, least)
            return original(values, k, dim=dim, **more)

        with mock.patch.object(torch, "topk", topk), mock.patch.object(torch.Tensor, "topk", topk):
            yield


def stack(model: torch.nn.Module) -> torch.nn.Module:
    """The decoder: the module with ``layers`` and ``norm``."""
    return getattr(model.model, "language_model", model.model)


@contextmanager
def recording_hidden(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Fill a dict during a forward: ``hidden``, every layer's input and the last output; ``norm``, the final norm."""
    seen: dict[str, Any] = {"hidden": []}
    decoder = stack(model)

    def take_last(_module: Any, _args: Any, output: Any) -> None:
        seen["hidden"].append(output[0] if isinstance(output, tuple) else output)

    def take_norm(_module: Any, _args: Any, output: torch.Tensor) -> None:
        seen["norm"] = output

    handles = [
        layer.register_forward_pre_hook(lambda _m, args: seen["hidden"].append(args[0])) for layer in decoder.layers
    ]
    handles += [decoder.layers[-1].register_forward_hook(take_last), decoder.norm.register_forward_hook(take_norm)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def inputs_of(model: torch.nn.Module, case: Case, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [2, length] and their embeddings with soft vectors of the same scale at ``SOFT``."""
    ids = torch.from_numpy(rng(seed, "input_ids").integers(1, VOCAB, (2, case.length)))
    table = model.get_input_embeddings()
    embeds = table(ids).clone()
    soft = rng(seed, "soft").standard_normal((2, len(SOFT), HIDDEN)) * table.weight.std().item()
    embeds[:, SOFT.start : SOFT.stop] = torch.from_numpy(soft.astype(np.float32))
    return ids, embeds


def golden(model: torch.nn.Module, case: Case, seed: int) -> Arrays:
    """Every array of ``golden.npz``."""
    ids, embeds = inputs_of(model, case, seed)
    length, margins, everything = case.length, Margins(), torch.ones_like(ids)
    positions = [
        0,
        SOFT.start,
        SOFT.stop - 1,
        SOFT.stop,
        length // 2,
        64 if length > 64 else 32,
        length - 2,
        length - 1,
    ]

    with torch.no_grad(), margins.watching(everything):
        from_ids = model(input_ids=ids, use_cache=False).logits

    leaf = embeds.clone().requires_grad_(True)
    with margins.watching(everything), recording_hidden(model) as seen:
        from_embeds = model(inputs_embeds=leaf, use_cache=False).logits
    # Logits at positions after the soft vectors, each against the next token.
    loss = torch.nn.functional.cross_entropy(
        from_embeds[:, SOFT.stop : -1].reshape(-1, VOCAB), ids[:, SOFT.stop + 1 :].reshape(-1)
    )
    loss.backward()
    from_embeds = from_embeds.detach()

    def in_pieces(*bounds: int) -> torch.Tensor:
        cache, logits = None, []
        for start, stop in zip((0, *bounds), (*bounds, length), strict=True):
            out = model(inputs_embeds=embeds[:, start:stop], cache=cache, use_cache=True)
            cache = out.cache
            logits.append(out.logits)
        return torch.cat(logits, 1)

    with torch.no_grad():
        cached = in_pieces(*range(length - STEPS, length))
        chunked = in_pieces(length * 9 // 16)

        left_ids, mask = ids.clone(), torch.ones_like(ids)
        left_ids[1] = torch.cat([torch.zeros(PADS, dtype=ids.dtype), ids[1, :-PADS]])
        mask[1, :PADS] = 0
        left_positions = (mask.cumsum(1) - 1).clamp(min=0)
        with margins.watching(mask):
            leftpad = model(
                input_ids=left_ids, attention_mask=mask, position_ids=left_positions, use_cache=False
            ).logits

        greedy, greedy_margin = ids[:, :PROMPT], math.inf
        for _ in range(NEW):
            with margins.watching(torch.ones_like(greedy)):
                logits = model(input_ids=greedy, use_cache=False).logits
            best, token = logits[:, -1].topk(2)
            greedy_margin = min(greedy_margin, (best[:, 0] - best[:, 1]).min().item())
            greedy = torch.cat([greedy, token[:, :1]], 1)

    def error(got: torch.Tensor, expected: torch.Tensor) -> float:
        return (got - expected).abs().max().item()

    arrays: dict[str, Any] = {
        "input_ids": ids.int(),
        "inputs_embeds": embeds,
        "soft_positions": np.array(SOFT, np.int32),
        "logits_ids": from_ids[:, -TAIL:],
        "logits_embeds": from_embeds[:, -TAIL:],
        "logits_embeds_row0": from_embeds[0],
        "hidden_positions": np.array(positions, np.int32),
        "hidden_embeds": torch.stack(seen["hidden"]).detach()[:, :, positions],
        "final_norm_embeds": seen["norm"].detach()[:, positions],
        "logits_cached": cached[:, -STEPS - 1 :],
        "logits_chunked": chunked[:, -TAIL:],
        "chunk": np.int32(length * 9 // 16),
        "leftpad_ids": left_ids.int(),
        "leftpad_mask": mask.int(),
        "leftpad_pos": left_positions.int(),
        "leftpad_logits": leftpad[:, -TAIL:],
        "loss": loss.detach(),
        "grad_embeds": leaf.grad,
        "greedy_ids": greedy.int(),
        "route_margin": np.float32(margins.route),
        "index_margin": np.float32(margins.index),
        "greedy_margin": np.float32(greedy_margin),
        "cached_error": np.float32(error(cached, from_embeds)),
        "chunked_error": np.float32(error(chunked, from_embeds)),
        "leftpad_error": np.float32(error(leftpad[1, PADS:], from_ids[1, :-PADS])),
    }
    return {name: np.asarray(value) for name, value in arrays.items()}


def headroom(arrays: Arrays) -> float:
    """The smallest margin in units of what is asked for; a fixture is fit for use at 1 or more."""
    choice = min(arrays["route_margin"], arrays["index_margin"])
    return float(min(choice / ROUTE_MARGIN, arrays["greedy_margin"] / GREEDY_MARGIN))


def reload_error(case: Case, folder: Path, arrays: Arrays, config_name: str) -> float:
    """Largest difference of the logits when transformers reads the folder back in float32."""
    model_class = getattr(transformers, case.architecture)
    more = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if case.layout == "mxfp4" else {}
    with tempfile.TemporaryDirectory() as scratch:
        for file in folder.glob("model*"):
            shutil.copy(file, scratch)
        shutil.copy(folder / config_name, Path(scratch) / "config.json")
        model, info = model_class.from_pretrained(
            scratch,
            dtype=torch.float32,
            **IMPLEMENTATIONS,
            output_loading_info=True,
            **more,
        )
    problems = {name: found for name, found in info.items() if found}
    if problems:
        raise SystemExit(f"{folder.name}: {problems}")
    with torch.no_grad():
        logits = model.eval()(inputs_embeds=torch.from_numpy(arrays["inputs_embeds"]), use_cache=False).logits
    return float(np.abs(logits[:, -TAIL:].numpy() - arrays["logits_embeds"]).max())


def write(name: str) -> None:
    """Make one folder, and refuse it when it is too large, unfit or not what transformers reads back."""
    case, folder = CASES[name], HERE / name
    model, packed = build(case, case.seed)
    arrays = golden(model, case, case.seed)
    shutil.rmtree(folder, ignore_errors=True)
    save(model, packed, case, folder)
    np.savez_compressed(folder / "golden.npz", **arrays)
    for file in folder.iterdir():
        file.chmod(0o644)
    errors = [reload_error(case, folder, arrays, file.name) for file in sorted(folder.glob("config*.json"))]
    size = sum(file.stat().st_size for file in folder.iterdir())
    spread = arrays["logits_embeds_row0"].std()
    print(
        f"| {name} | {size / 1000:.0f} | {spread:.1f} | {arrays['cached_error']:.0e} | {arrays['chunked_error']:.0e} "
        f"| {arrays['leftpad_error']:.0e} | {arrays['route_margin']:.1e} | {arrays['index_margin']:.1e} "
        f"| {arrays['greedy_margin']:.1e} |",
        flush=True,
    )
    if size >= LIMIT or headroom(arrays) < 1 or any(errors):
        raise SystemExit(f"{name}: {size} bytes, headroom {headroom(arrays):.2f}, reload errors {errors}")


def search(name: str, seeds: int) -> None:
    """Print the seeds with the best margins."""
    case, found = CASES[name], []
    for seed in range(seeds):
        arrays = golden(build(case, seed)[0], case, seed)
        found.append((headroom(arrays), seed))
    print(name, ", ".join(f"seed {seed}: {room:.2f}" for room, seed in sorted(found, reverse=True)[:5]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(CASES))
    parser.add_argument("--search", type=int, metavar="SEEDS")
    arguments = parser.parse_args()
    if unknown := set(arguments.families) - set(CASES):
        parser.error(f"no such family: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for family in arguments.families or CASES:
        if arguments.search:
            search(family, arguments.search)
        else:
            write(family)
