"""The derivation of an architecture's prices in plain text, so that a person can check every product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costmodel_jax.architecture.layers import FeedForward, Layer, Mixer

__all__ = ["describe"]


def describe(name: str, family: str, layers: Sequence[Layer], hidden: int, vocabulary: int, source: str) -> str:
    """Plain text: each distinct layer with its weights, then the sums c, beta and P* = c / beta."""
    distinct: dict[tuple[Mixer, FeedForward], list[Layer]] = {}
    for layer in layers:
        distinct.setdefault((layer.mixer, layer.feed_forward), []).append(layer)
    lines = [f"{name} ({family}): {len(layers)} layers, hidden {hidden}, vocabulary {vocabulary}"]
    if source:
        lines.append(f"source: {source}")
    for alike in distinct.values():
        lines += ["", f"{len(alike)} x {alike[0].kind} (layers {_ranges(layer.index for layer in alike)})"]
        lines += _terms(alike[0])
    weights = sum(layer.linear_weights for layer in layers)
    pair = sum(layer.mixer.pair for layer in layers)
    lines += [
        "",
        f"linear weights a token touches  {weights:,}",
        f"c = 2 x linear weights          {2 * weights:,} FLOPs per processed position",
        f"beta = sum of the pair prices   {pair:,} FLOPs per query-key pair",
    ]
    if pair:
        lines.append(f"P* = c / beta                   {2 * weights / pair:,.1f} positions")
    extensions = _extensions(layers)
    extensions.append(f"lm head 2 x {hidden} x {vocabulary} = {2 * hidden * vocabulary:,} FLOPs per generated position")
    lines += ["extensions, off unless asked for:", *(f"  {text}" for text in extensions)]
    lines.append("not counted: embedding, norms, biases, rotary angles, softmax, activations")
    return "\n".join(lines)


def _terms(layer: Layer) -> list[str]:
    width = max(len(weight.name) for weight in layer.weights)
    lines = []
    for weight in layer.weights:
        product = f"{weight.inputs} x {weight.outputs}"
        if weight.stored > 1:
            product += f" x {weight.active} of {weight.stored} experts"
        lines.append(f"  {weight.name:<{width}}  {product} = {weight.size:,}")
    lines.append(f"  {'linear weights per layer':<{width}}  {layer.linear_weights:,}")
    mixer = layer.mixer
    if mixer.formula:
        capped = "" if mixer.window is None else f", {mixer.window_pair:,} per capped pair"
        lines.append(f"  pairs: {mixer.formula} = {mixer.pair:,} FLOPs per growing pair{capped}")
    return lines


def _extensions(layers: Sequence[Layer]) -> list[str]:
    texts = []
    for window in sorted({layer.mixer.window for layer in layers if layer.mixer.window is not None}):
        price = sum(layer.mixer.window_pair for layer in layers if layer.mixer.window == window)
        texts.append(f"capped attention {price:,} FLOPs per pair, at most {window:,} keys per query")
    states: dict[str, int] = {}
    formulas: dict[str, str] = {}
    for layer in layers:
        for term in layer.mixer.state:
            states[term.name] = states.get(term.name, 0) + term.flops
            formulas[term.name] = term.formula
    texts += [f"{name} {flops:,} FLOPs per position ({formulas[name]} a layer)" for name, flops in states.items()]
    absorbed = sum(layer.mixer.absorbed_pair or 0 for layer in layers)
    if absorbed:
        texts.append(f"absorbed latent attention {absorbed:,} FLOPs per pair of a generated position")
    return texts


def _ranges(indices: Iterable[int]) -> str:
    """0, 1, 2, 4 -> "0-2, 4", cut after a few ranges."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:3], "...", texts[-1]])
