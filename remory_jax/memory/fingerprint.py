"""`Fingerprint`: which actor a memory belongs to, by what the actor is and not by where it lies.

Rows live in one actor's embedding space, were trained against its outputs, and stand between one template's markers.
With another actor they would be noise that looks like memory, so a checkpoint names its own.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from costmodel_jax.errors import InputError
from remory_jax.actor import Actor
from remory_jax.data.template import Template

__all__ = ["Fingerprint", "fingerprint"]

_SEEDS = (0x9E3779B1, 0x85EBCA77)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Hashes that identify an actor; None for what is not known.

    Args:
      tensors: of its weights.
      tokenizer: of its tokenizer.
      template: of the markers around summary and memory.
    """

    tensors: str | None = None
    tokenizer: str | None = None
    template: str | None = None

    def check(self, other: Fingerprint, path: str | PathLike[str] | None = None) -> None:
        """Refuse ``other`` where both know a hash and it differs.

        Raises:
          InputError: saying which of the three differ.
        """
        parts = {"tensors": "weights", "tokenizer": "tokenizer", "template": "template of markers"}
        wrong = []
        for field, word in parts.items():
            ours, theirs = getattr(self, field), getattr(other, field)
            if None not in (ours, theirs) and ours != theirs:
                wrong.append(f"{word} ({field} hash {ours[:12]} in the checkpoint, {theirs[:12]} given)")
        if wrong:
            raise InputError(
                f"was made for another actor: it differs in {', '.join(wrong)}; use the actor it was trained with, or "
                "train a memory network for this one",
                path=None if path is None else str(path),
            )


def fingerprint(actor: Actor | None, *, tokenizer: Any = None, template: Template | None = None) -> Fingerprint:
    """The fingerprint of an actor as it is in memory.

    The weights are hashed in float32 on their devices, so it does not matter how they are sharded or in which dtype a
    bfloat16 checkpoint was loaded. The hash tells models apart; it is no protection against forgery.

    Args:
      tokenizer: a folder with ``tokenizer.json``, that file, or a tokenizer of ``transformers`` or ``tokenizers``.
      template: the markers.

    Raises:
      InputError: a tokenizer that cannot be read.
    """
    return Fingerprint(
        tensors=None if actor is None else _weights(actor),
        tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
        template=None if template is None else _sha256(template.describe()),
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _weights(actor: Actor) -> str:
    lines = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(actor.weights):
        sums = " ".join(str(int(value)) for value in np.asarray(_mixed(leaf)))
        lines.append(f"{jax.tree_util.keystr(path)} {leaf.shape} {sums}")
    return _sha256("\n".join(sorted(lines)))


@jax.jit
def _mixed(values: Array) -> UInt32[Array, " seeds"]:
    """Sums of every value's bits mixed with its index: the order of additions, and so the sharding, does not matter."""
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    index, stride = jnp.zeros(values.shape, jnp.uint32), 1
    for axis in reversed(range(values.ndim)):
        index = index + jax.lax.broadcasted_iota(jnp.uint32, values.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= values.shape[axis]
    return jnp.stack(
        [jnp.sum(_avalanche(bits ^ (_avalanche(index + jnp.uint32(seed)))), dtype=jnp.uint32) for seed in _SEEDS]
    )


def _avalanche(bits: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """MurmurHash3's finaliser: every input bit reaches every output bit."""
    bits = (bits ^ (bits >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    mixed: Array = bits ^ (bits >> jnp.uint32(16))
    return mixed


def _tokenizer(tokenizer: Any) -> str:
    if isinstance(tokenizer, str | PathLike):
        file = Path(tokenizer)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read as a tokenizer: {error}", path=file) from error
    else:
        inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(inner, "to_str"):
            raise InputError(
                f"a {type(tokenizer).__name__} has no tokenizer.json form; give a fast tokenizer, or the folder of one"
            )
        text = inner.to_str()
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"the tokenizer is not JSON: {error}") from error
    if isinstance(content, dict):  # what a caller last asked for, not what the tokenizer is
        content = {key: value for key, value in content.items() if key not in ("padding", "truncation")}
    return _sha256(json.dumps(content, sort_keys=True))
