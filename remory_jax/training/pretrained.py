"""`PretrainedActor`: a released model as the frozen actor of an experiment."""

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
from remory_jax.actor.sharding import Rules

__all__ = ["PretrainedActor"]


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
        name = architectures[self.preset].name
        file = resources.files("costmodel_jax") / "architectures" / f"{name}.json"
        return ActorConfig.from_hf(json.loads(file.read_text(encoding="utf-8"))["config"])

    def tokenizer(self) -> str:
        """The folder, which holds the tokenizer too."""
        return self.folder
