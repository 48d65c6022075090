"""Layer tables and prices: printed golden values, and checkpoint shapes as an oracle."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from costmodel_jax.architecture import Architecture, Presets, architectures
from costmodel_jax.errors import InputError

GOLDEN = Path(__file__).parent / "golden" / "architectures"
FIXTURES = sorted(path.stem for path in GOLDEN.glob("*.json"))

# c in GFLOP, beta and P* as the specification prints them
PRICES = {
    "Qwen3-0.6B": (0.8808, 229_376, 3_840),
    "Qwen3-1.7B": (2.8186, 229_376, 12_288),
    "Qwen3-4B": (7.2666, 589_824, 12_320),
    "Qwen3-8B": (13.8915, 589_824, 23_552),
    "Qwen3-32B": (62.4112, 2_097_152, 29_760),
    "Qwen3-30B-A3B": (5.4610, 786_432, 6_944),
    "SmolLM2-135M": (0.2123, 69_120, 3_072),
    "GLM-4.7-Flash": (6.5242, 962_560, 6_778),
    "gpt-oss-20b": (6.0560, 196_608, None),
}

# total 1e9 parameters, c in GFLOP with state and saturated windows, head in 1e9 weights, beta, recurrence and windows
# in MFLOP: an independent account of the same models. Its gpt-oss rows also count biases.
ACCOUNT = {
    "SmolLM2-135M": (0.134, 0.212, 0.028, 69_120, 0.0, 0.0),
    "SmolLM2-360M": (0.362, 0.629, 0.047, 122_880, 0.0, 0.0),
    "SmolLM2-1.7B": (1.711, 3.221, 0.101, 196_608, 0.0, 0.0),
    "Qwen3-0.6B": (0.596, 0.881, 0.156, 229_376, 0.0, 0.0),
    "Qwen3-1.7B": (1.720, 2.819, 0.311, 229_376, 0.0, 0.0),
    "Qwen3-4B": (4.022, 7.267, 0.389, 589_824, 0.0, 0.0),
    "Qwen3-8B": (8.190, 13.892, 0.622, 589_824, 0.0, 0.0),
    "Qwen3-14B": (14.768, 26.424, 0.778, 819_200, 0.0, 0.0),
    "Qwen3-32B": (32.761, 62.411, 0.778, 2_097_152, 0.0, 0.0),
    "Qwen3-30B-A3B": (30.532, 5.461, 0.311, 786_432, 0.0, 0.0),
    "Qwen3.5-2B": (1.882, 2.779, 0.509, 49_152, 33.0, 0.0),
    "Qwen3.5-9B": (8.954, 13.927, 1.017, 131_072, 88.1, 0.0),
    "Qwen3.6-27B": (26.895, 48.969, 1.271, 393_216, 264.2, 0.0),
    "Qwen3.5-35B-A3B": (34.660, 4.985, 0.509, 163_840, 110.1, 0.0),
    "gpt-oss-20b": (20.915, 6.082, 0.579, 196_608, 0.0, 25.2),
    "gpt-oss-120b": (116.829, 9.142, 0.579, 294_912, 0.0, 37.7),
    "GLM-4.7-Flash": (29.943, 6.524, 0.317, 962_560, 0.0, 0.0),
    "GLM-5.3-Flash": (313.326, 33.951, 0.634, 5_632, 249.6, 1487.2),
}


def test_anchor_is_exact() -> None:
    model = architectures["Qwen3.6-27B"]
    assert model.linear_weights == 24_350_556_160
    prices = model.prices()
    assert (prices.linear, prices.pair) == (48_701_112_320.0, 393_216.0)
    assert round(prices.linear / prices.pair, 1) == 123_853.3
    assert Counter(layer.mixer.kind for layer in model.layers) == {"gated deltanet": 48, "gated attention": 16}


def test_all_attention_variant_is_exact() -> None:
    prices = architectures["Qwen3.6-27B-all-attention"].prices()
    assert (prices.linear, prices.pair) == (47_647_293_440.0, 1_572_864.0)
    assert round(prices.linear / prices.pair, 1) == 30_293.3


def test_all_attention_variant_is_a_config() -> None:
    config = json.loads((GOLDEN / "qwen3_5.json").read_text())["config"]
    config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    model = Architecture.from_hf(config)
    assert {layer.mixer.kind for layer in model.layers} == {"gated attention"}
    assert model.prices().pair == 4 * 4 * 32 * 4
    assert model.prices(state=True).state == 0


@pytest.mark.parametrize("name", PRICES)
def test_printed_prices(name: str) -> None:
    linear, pair, rate = PRICES[name]
    prices = architectures[name].prices()
    assert round(prices.linear / 1e9, 4) == linear
    assert prices.pair == pair
    assert prices.label == "" and prices.windows == () and prices.state == prices.head == 0.0
    if rate is not None:
        assert round(prices.linear / prices.pair) == rate


@pytest.mark.parametrize("name", ACCOUNT)
def test_account_with_extensions(name: str) -> None:
    total, linear, head, pair, recurrence, windows = ACCOUNT[name]
    model = architectures[name]
    prices = model.prices(windowed=True, state=True, head=True)
    saturated = sum(capped.window * capped.pair for capped in prices.windows)
    biases = 0.001 if name.startswith("gpt-oss") else 0.0
    assert (prices.linear + prices.state + saturated) / 1e9 == pytest.approx(linear, abs=0.0005 + biases)
    assert round(prices.head / 2e9, 3) == head
    assert prices.pair == pair
    assert round(saturated / 1e6, 1) == windows
    delta = sum(term.flops for layer in model.layers for term in layer.mixer.state if term.name == "delta rule")
    assert round(delta / 1e6, 1) == recurrence
    assert model.parameters / 1e9 == pytest.approx(total, rel=5e-4, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "linear", "pair"),
    [
        ("Qwen3.5-2B", 2.517, 196_608),
        ("Qwen3.5-9B", 13.422, 524_288),
        ("Qwen3.6-27B", 47.647, 1_572_864),
        ("Qwen3.5-35B-A3B", 4.488, 655_360),
    ],
)
def test_account_of_all_attention_variants(name: str, linear: float, pair: int) -> None:
    root = Path(__file__).parents[1] / "costmodel_jax" / "architectures"
    config = json.loads((root / f"{name}.json").read_text())["config"]
    config["text_config"]["full_attention_interval"] = 1
    prices = Architecture.from_hf(config).prices(state=True)
    assert round((prices.linear + prices.state) / 1e9, 3) == linear
    assert prices.pair == pair


def test_absorbed_latent_attention() -> None:
    prices = architectures["GLM-4.7-Flash"].prices(absorbed=True)
    assert (prices.pair, prices.pair_generated, prices.label) == (962_560.0, 2_045_440.0, "absorbed")
    assert architectures["Qwen3-8B"].prices(absorbed=True).label == ""


def test_sparse_attention_grows_by_its_indexer() -> None:
    model = architectures["GLM-5.3-Flash"]
    prices = model.prices(windowed=True, absorbed=True)
    assert prices.pair == 5_632 and prices.pair_generated is None
    (capped,) = prices.windows
    assert (capped.window, capped.pair) == (2_063, 720_896.0)  # 2048 keys and up to 15 of an unfinished pool
    assert capped.pair_generated == 11 * 2 * 64 * (512 + 512)
    assert prices.label == "windows, absorbed"
    assert model.prices().windows == ()


# Checkpoint shapes as the oracle


def checkpoint_weights(shapes: dict[str, list[int]], config: dict[str, Any]) -> tuple[dict[int, int], dict[int, int]]:
    """Per layer: weights a token is multiplied with, and taps of short convolutions, from tensor shapes alone."""
    text = config.get("text_config", config)
    linear: dict[int, int] = defaultdict(int)
    taps: dict[int, int] = defaultdict(int)
    for name, shape in shapes.items():
        layer = re.search(r"(?<!visual)\.layers\.(\d+)\.", name)
        if layer is None or "visual" in name:
            continue
        size = math.prod(shape)
        if "conv1d" in name:
            taps[int(layer[1])] += size
        elif ".experts." in name:
            if name.endswith(("_bias", "_scales")):
                continue
            values = 2 * size if name.endswith("_blocks") else size  # two 4-bit weights a byte
            stored = shape[0] if len(shape) > 2 else 1
            share = text["num_experts_per_tok"] / (stored if len(shape) > 2 else experts_in(text))
            assert (values * share).is_integer()
            linear[int(layer[1])] += int(values * share)
        elif len(shape) == 2 and not name.endswith("_ape"):
            linear[int(layer[1])] += size
    return dict(linear), dict(taps)


def experts_in(text: dict[str, Any]) -> int:
    return int(next(text[key] for key in ("n_routed_experts", "num_experts", "num_local_experts") if key in text))


def check_against_shapes(model: Architecture, shapes: dict[str, list[int]], config: dict[str, Any]) -> None:
    linear, taps = checkpoint_weights(shapes, config)
    assert {layer.index: layer.linear_weights for layer in model.layers} == linear
    assert model.linear_weights == sum(linear.values())
    convolutions = {
        layer.index: term.flops
        for layer in model.layers
        for term in layer.mixer.state
        if term.name == "short convolution"
    }
    assert convolutions == {index: 2 * size for index, size in taps.items()}


@pytest.mark.parametrize("family", FIXTURES)
def test_weights_equal_checkpoint_shapes(family: str) -> None:
    fixture = json.loads((GOLDEN / f"{family}.json").read_text())
    check_against_shapes(Architecture.from_hf(fixture["config"]), fixture["shapes"], fixture["config"])


def test_every_family_has_a_fixture() -> None:
    families = {Architecture.from_hf(json.loads((GOLDEN / f"{f}.json").read_text())["config"]).family for f in FIXTURES}
    assert families == {
        "llama",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "glm5_next",
        "gpt_oss",
    }


def test_weights_equal_shared_checkpoints(shared: Path) -> None:
    folders = sorted(path.parent for path in (shared / "golden" / "actors").glob("*/config.json"))
    assert len(folders) == 16
    for folder in folders:
        lines = [line.split("\t") for line in (folder / "names.txt").read_text().splitlines()]
        shapes = {name: ast.literal_eval(shape) for name, shape, _ in lines}
        model = Architecture.from_hf(folder)
        assert model.name == folder.name
        check_against_shapes(model, shapes, json.loads((folder / "config.json").read_text()))


# The table and its text


@pytest.mark.parametrize("name", ["Qwen3.6-27B", "gpt-oss-20b", "GLM-5.3-Flash"])
def test_table_adds_up(name: str) -> None:
    model = architectures[name]
    rows = model.table()
    assert [row["layer"] for row in rows] == list(range(len(model.layers)))
    for folded in (rows, model.table(fold=True)):

        def total(column: str, rows: list[dict[str, Any]] = folded) -> int:
            return sum(row["count"] * row[column] for row in rows)

        assert total("linear_weights") == total("mixer_weights") + total("feed_forward_weights") == model.linear_weights
        assert total("pair") == model.prices().pair
        assert total("state") == model.prices(state=True).state
    assert len(model.table(fold=True)) < len(rows) or name == "gpt-oss-20b"


def test_terms_multiply_out() -> None:
    for row in architectures["Qwen3.5-35B-A3B"].table():
        total = 0
        for name, inputs, outputs, active in re.findall(
            r"([\w.]+) (\d+)x(\d+)(?: \((\d+) of \d+\))?", str(row["terms"])
        ):
            assert name
            total += int(inputs) * int(outputs) * int(active or 1)
        assert total == row["linear_weights"]


def test_describe_names_every_term_and_sum() -> None:
    text = architectures["Qwen3.6-27B"].describe()
    for part in (
        "48 x gated deltanet + swiglu (layers 0-2, 4-6, 8-10, ..., 60-62)",
        "16 x gated attention + swiglu",
        "5120 x 12288 = 62,914,560",
        "24,350,556,160",
        "48,701,112,320",
        "393,216",
        "123,853.3",
        "short convolution",
        "source:",
    ):
        assert part in text
    assert "2,063 keys per query" in architectures["GLM-5.3-Flash"].describe()
    assert "4 of 32 experts" in architectures["gpt-oss-20b"].describe()


# Presets


def test_presets_are_a_mapping() -> None:
    assert {*PRICES, *ACCOUNT, "Qwen3.6-27B-all-attention"} == set(architectures)
    assert len(architectures) == len(list(architectures))
    assert architectures["qwen3.6-27b"] is architectures["Qwen3.6-27B"]
    assert architectures["QWEN3-8B"].name == "Qwen3-8B"
    assert "no such model" not in architectures and architectures.get("no such model") is None
    assert all(model.source for model in architectures.values())


def test_unknown_preset_lists_the_near_ones() -> None:
    with pytest.raises(InputError, match=r"Qwen3-9B.*Qwen3-8B.*from_hf"):
        architectures["Qwen3-9B"]
    with pytest.raises(KeyError):
        architectures["zzz"]


def test_presets_are_read_one_by_one_on_use(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    loads = json.loads

    def counting(text: str) -> Any:
        reads.append(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", counting)
    fresh = Presets()
    assert "Qwen3-8B" in list(fresh) and not reads
    assert fresh["qwen3-8b"] is fresh["Qwen3-8B"]
    assert len(reads) == 1


def test_architectures_are_static_arguments() -> None:
    first, second = (Architecture.from_hf(json.loads((GOLDEN / "llama.json").read_text())["config"]) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert hash(first) != hash(architectures["Qwen3-8B"])
