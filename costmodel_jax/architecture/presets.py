"""Presets of released models: one JSON file each, a Hugging Face config with a note of where its numbers come from."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable

from costmodel_jax.architecture.model import Architecture
from costmodel_jax.errors import InputError

__all__ = ["Presets", "UnknownArchitectureError", "architectures"]


class UnknownArchitectureError(InputError, KeyError):
    """No preset of that name. Also a `KeyError`, so that ``in`` and ``get`` work as for any mapping."""

    def __str__(self) -> str:
        """The message as it is, where a `KeyError` alone would quote it."""
        return self.message


class Presets(Mapping[str, Architecture]):
    """Name -> `Architecture`, read on first use; names ignore case."""

    @functools.cached_property
    def _files(self) -> dict[str, Traversable]:
        """Lower-case name -> file."""
        folder = resources.files("costmodel_jax") / "architectures"
        files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
        return {file.name.removesuffix(".json").lower(): file for file in files}

    @functools.cached_property
    def _loaded(self) -> dict[str, Architecture]:
        return {}

    def __getitem__(self, name: str) -> Architecture:
        """The preset of that name.

        Raises:
          UnknownArchitectureError: none; the message lists the near ones, or all.
        """
        key = name.lower()
        if key not in self._files:
            near = difflib.get_close_matches(key, self._files, n=4, cutoff=0.4) or list(self._files)
            names = ", ".join(self._files[match].name.removesuffix(".json") for match in near)
            raise UnknownArchitectureError(
                f"no preset architecture {name!r}; near it: {names}. "
                "For any other model use Architecture.from_hf with its config.json"
            )
        if key not in self._loaded:
            preset = json.loads(self._files[key].read_text(encoding="utf-8"))
            self._loaded[key] = Architecture.from_hf(
                preset["config"], name=self._files[key].name.removesuffix(".json"), source=preset["source"]
            )
        return self._loaded[key]

    def __iter__(self) -> Iterator[str]:
        return (file.name.removesuffix(".json") for file in self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"Presets({', '.join(self)})"


architectures: Mapping[str, Architecture] = Presets()
"""The presets, e.g. ``architectures["Qwen3.6-27B"]``."""
