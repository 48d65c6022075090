"""`Architecture`: a model as the layers one token passes through, and the prices that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from os import PathLike

from costmodel_jax.architecture.config import REQUIRED, read_config
from costmodel_jax.architecture.describe import describe
from costmodel_jax.architecture.families import FAMILIES
from costmodel_jax.architecture.layers import Layer
from costmodel_jax.errors import InputError
from costmodel_jax.pricing import Capped, Prices

__all__ = ["Architecture"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The layers of a language model, hashable and free of weights.

    Args:
      name: what tables call it.
      family: the transformers ``model_type`` whose classes run it.
      layers: decoder layers in order.
      hidden: width of the residual stream.
      vocabulary: rows of the embedding and of the lm head.
      tied: whether the lm head is the embedding.
      source: where the numbers come from.
    """

    name: str
    family: str
    layers: tuple[Layer, ...]
    hidden: int
    vocabulary: int
    tied: bool = False
    source: str = ""

    @staticmethod
    def from_hf(
        config: str | PathLike[str] | Mapping[str, object], *, name: str | None = None, source: str | None = None
    ) -> Architecture:
        """Read a Hugging Face ``config.json``.

        Args:
          config: the file, a folder that holds one, or the parsed dict; flat or with a nested ``text_config``, of
            transformers 4 or 5.
          name: overrides the name found in the config or that of its folder.
          source: overrides the path as the place the numbers come from.

        Raises:
          InputError: an unsupported model_type, or a field that is missing, malformed or contradicts another.
        """
        fields, whole = read_config(config)
        model_type = fields.values.get("model_type") or whole.get("model_type")
        family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
        if family is None:
            raise InputError(
                f"{fields.prefix}model_type = {model_type!r} is not supported. Supported: {', '.join(FAMILIES)}. "
                "For another family, build Prices(linear=..., pair=...) by hand",
                path=fields.path,
            )
        tied = fields.flag("tie_word_embeddings", default=bool(whole.get("tie_word_embeddings", False)))
        given = str(whole.get("_name_or_path") or "").rstrip("/").rsplit("/", maxsplit=1)[-1]
        folder = "" if fields.path is None else fields.path.absolute().parent.name
        return Architecture(
            name=name or given or folder or family.name,
            family=family.name,
            layers=family.layers(fields),
            hidden=fields.integer("hidden_size", default=REQUIRED),
            vocabulary=fields.integer("vocab_size", default=REQUIRED),
            tied=tied,
            source=str(fields.path or "") if source is None else source,
        )

    @property
    def linear_weights(self) -> int:
        """Weights of the decoder layers that one token is multiplied with: c = 2 x this.

        Attention or delta-rule projections with output gates, MLPs, active and shared experts, routers, indexers. No
        embedding, lm head, norms, biases or convolutions.
        """
        return sum(layer.linear_weights for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Stored weight matrices with embedding and lm head; norms, biases and convolutions are not counted."""
        stored = sum(weight.stored_size for layer in self.layers for weight in layer.weights)
        return stored + self.hidden * self.vocabulary * (1 if self.tied else 2)

    def table(self, *, fold: bool = False) -> list[dict[str, int | str | None]]:
        """One row a layer; the products ``count * linear_weights`` add up to `linear_weights`.

        Args:
          fold: merge consecutive layers that are equal; ``layer`` and ``last`` are the first and last index.

        Returns:
          Rows with layer, last, count, mixer, feed_forward, their weights per layer, pair and window_pair (FLOPs per
          pair of growing and of capped attention), window, absorbed_pair, state (FLOPs per position) and terms.
        """
        if not fold:
            return [layer.row() for layer in self.layers]
        rows = []
        for _, run in groupby(self.layers, key=lambda layer: (layer.mixer, layer.feed_forward)):
            layers = list(run)
            rows.append(layers[0].row() | {"last": layers[-1].index, "count": len(layers)})
        return rows

    def describe(self) -> str:
        """The derivation of c and beta in plain text, term by term."""
        return describe(self.name, self.family, self.layers, self.hidden, self.vocabulary, self.source)

    def prices(
        self, *, windowed: bool = False, state: bool = False, head: bool = False, absorbed: bool = False
    ) -> Prices:
        """FLOPs per processed position and per query-key pair.

        By default the paper's two prices: c = 2 x `linear_weights` and beta = the pairs that grow with the context.
        For DeepSeek sparse attention the growing pairs are the indexer's scores; the attended pairs are capped at its
        top k (``windowed``). Below the top k such a model attends densely and ``windowed`` prices exactly that.

        Args:
          windowed: add the pairs of sliding-window layers and of sparse attention, capped per query. A pooled indexer
            (GLM-5.3-Flash) also attends to 0 to pool - 1 keys of an unfinished pool: capped at the most.
          state: add the delta rule in its recurrent form and the short convolutions, per processed position. (The
            chunked form of prefill does about 1.4 times the work of the recurrence.)
          head: add the lm head, 2 x hidden x vocabulary per generated position.
          absorbed: price the pairs of generated positions at the absorbed form of latent attention.

        Returns:
          `Prices` whose label names the extensions that are on and change something.
        """
        mixers = [layer.mixer for layer in self.layers]
        pair = sum(mixer.pair for mixer in mixers)
        pair_absorbed = sum(
            mixer.pair if mixer.absorbed_pair is None or mixer.window is not None else mixer.absorbed_pair
            for mixer in mixers
        )
        caps = []
        for window in sorted({mixer.window for mixer in mixers if mixer.window is not None}) if windowed else []:
            capped = [mixer for mixer in mixers if mixer.window == window]
            expanded = sum(mixer.window_pair for mixer in capped)
            decoded = sum(mixer.absorbed_pair or mixer.window_pair for mixer in capped) if absorbed else expanded
            caps.append(
                Capped(
                    window=window,
                    pair=float(expanded),
                    pair_generated=None if decoded == expanded else float(decoded),
                )
            )
        state_flops = sum(layer.state for layer in self.layers) if state else 0
        extensions = {
            "windows": bool(caps),
            "state": state_flops > 0,
            "head": head,
            "absorbed": absorbed and any(mixer.absorbed_pair is not None for mixer in mixers),
        }
        return Prices(
            linear=2.0 * self.linear_weights,
            pair=float(pair),
            windows=tuple(caps),
            state=float(state_flops),
            head=2.0 * self.hidden * self.vocabulary if head else 0.0,
            pair_generated=float(pair_absorbed) if absorbed and pair_absorbed != pair else None,
            label=", ".join(name for name, on in extensions.items() if on),
        )
