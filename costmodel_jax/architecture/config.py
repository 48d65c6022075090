"""Reading a Hugging Face ``config.json``: where it is, which part is the language model, fields with their rules."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NoReturn

from costmodel_jax.errors import InputError

__all__ = ["REQUIRED", "Fields", "read_config"]

REQUIRED = -1
"""Default of an integer field that has none: a size that a wrong guess would silently misprice."""


@dataclass(frozen=True)
class Fields:
    """The fields of one config, read with their rules; every error names the file, the field and its value.

    Args:
      values: the config, or its ``text_config``.
      path: the file it came from, if any.
      prefix: ``"text_config."`` when `values` is nested.
    """

    values: Mapping[str, object]
    path: Path | None = None
    prefix: str = ""

    def fail(self, field: str, rule: str) -> NoReturn:
        """Raise an `InputError` that shows the field's value beside the rule it breaks."""
        shown = (
            f"{self.prefix}{field} = {reprlib.repr(self.values[field])}"
            if field in self.values
            else f"{self.prefix}{field}"
        )
        raise InputError(f"{shown}: {rule}", path=self.path)

    def integer(self, *names: str, default: int, minimum: int = 1) -> int:
        """An integer field under any of its ``names``; null counts as absent.

        Args:
          names: the name the family's class uses, then its aliases.
          default: what transformers assumes where the field is absent, or `REQUIRED`.
          minimum: the least value that makes sense.

        Raises:
          InputError: absent and required, not an integer, below the minimum, or two names that disagree.
        """
        given = [name for name in names if self.values.get(name) is not None]
        if not given:
            if default == REQUIRED:
                self.fail(names[0], "missing. Its size decides the price, so it is never guessed; add it to the config")
            return default
        value = self.values[given[0]]
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self.fail(given[0], f"must be an integer of at least {minimum}")
        for alias in given[1:]:
            if self.values[alias] != value:
                self.fail(alias, f"contradicts {given[0]} = {value}, which is the same quantity; keep the right one")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """A true-or-false field; null counts as absent."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, "must be true or false")
        return value

    def schedule(self, name: str, layers: int, kinds: Collection[str]) -> tuple[str, ...] | None:
        """A list with one of ``kinds`` per layer, or None where the field is absent or null.

        Raises:
          InputError: not a list, of another length than ``layers``, or an entry of another kind.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.fail(name, "must be a list with one entry per layer")
        if len(value) != layers:
            raise InputError(
                f"{self.prefix}{name} has {len(value)} entries but num_hidden_layers = {layers}; "
                "they must agree, one entry per layer",
                path=self.path,
            )
        for index, kind in enumerate(value):
            if kind not in kinds:
                known = ", ".join(sorted(kinds))
                raise InputError(
                    f"{self.prefix}{name}[{index}] = {reprlib.repr(kind)}: this family knows {known}", path=self.path
                )
        return tuple(value)

    def divides(self, part: str, small: int, whole: str, large: int) -> None:
        """Require ``small`` (field ``part``) to divide ``large`` (field ``whole``)."""
        if large % small:
            self.fail(part, f"{small} does not divide {whole} = {large}; one of the two is wrong")


def read_config(config: str | PathLike[str] | Mapping[str, object]) -> tuple[Fields, Mapping[str, object]]:
    """The language model's fields of a config, and the whole config around them.

    Args:
      config: a ``config.json``, a folder that holds one, or the parsed dict. Wrappers of several modalities nest the
        language model under ``text_config``.

    Raises:
      InputError: no such file, not JSON, or not an object.
    """
    path: Path | None = None
    whole: object = config
    if not isinstance(config, Mapping):
        path = Path(config)
        if path.is_dir():
            path = path / "config.json"
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror}); give a config.json or the folder that holds it", path=path
            ) from error
        except ValueError as error:
            raise InputError(f"is not JSON ({error}); a Hugging Face config.json is expected", path=path) from error
    if not isinstance(whole, Mapping):
        raise InputError("must be a JSON object, as every Hugging Face config.json is", path=path)
    text = whole.get("text_config")
    if text is None:
        return Fields(whole, path), whole
    if not isinstance(text, Mapping):
        raise InputError("text_config must be an object: the config of the language model", path=path)
    return Fields(text, path, "text_config."), whole
