"""Stand-ins for packages that the library imports and a program on a bare accelerator machine never calls.

Such a machine has jax, flax, optax, orbax and numpy. Annotations (jaxtyping), log formats (msgspec), files of weights
and of data, and figures are not needed to time a step; where they are absent, their names become classes that can be
subscripted, subclassed and called at import time, and do nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

NOT_CALLED = (
    "array_record",
    "gguf",
    "grain",
    "jaxtyping",
    "matplotlib",
    "msgspec",
    "pyarrow",
    "safetensors",
    "tensorboardX",
    "tokenizers",
    "tyro",
)


class _Kind(type):
    """Of the stand-ins: classes, because annotations join them with ``|`` and other classes inherit from them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __getitem__(cls, _: Any) -> Any:
        return cls


def _stand_in(name: str) -> Any:
    def accept(*_: Any, **__: Any) -> None:
        return None

    return _Kind(name, (), {"__init__": accept, "__init_subclass__": classmethod(accept)})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in NOT_CALLED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


def install() -> None:
    """Stand in for those of `NOT_CALLED` that are not installed: the finder is asked when all others found nothing."""
    sys.meta_path.append(_Finder())
