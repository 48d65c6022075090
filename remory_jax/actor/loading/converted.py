"""GGUF files converted once: the folder in a cache, found again by the file's digest."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Literal

from costmodel_jax.errors import InputError
from remory_jax.actor.loading.gguf import convert_gguf

__all__ = ["converted"]

_FORMAT = 1  # of the converted folder; raised when the conversion changes what it writes


def converted(file: Path, *, exact: bool, cache: Path | None = None) -> Path:
    """The Hugging Face folder of a GGUF file, converted on the first call.

    Several processes may call at once: each converts into a folder of its own, and the first to finish names it.

    Args:
      exact: keep the dequantised weights in float32; else they are rounded to bfloat16, in half the space.
      cache: where folders are kept; ``$XDG_CACHE_HOME/remory_jax``, else ``~/.cache/remory_jax``.

    Raises:
      InputError: the file is missing, damaged or of an unknown architecture.
    """
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); give a GGUF file or a folder", path=file) from error
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remory_jax"
    dtype: Literal["float32", "bfloat16"] = "float32" if exact else "bfloat16"
    folder = cache / f"{file.stem}-{digest[:12]}-{dtype}-{_FORMAT}"
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        convert_gguf(file, partial, dtype=dtype)
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():  # else somebody else was first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
