"""The tokenizer inside a GGUF file, as the files a Hugging Face folder holds.

GGUF keeps the vocabulary, the merges and the *name* of the rule that splits text before merging; the rules themselves
are part of the format's practice, and those below are the ones of the tokenizers each name was given to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from remory_jax.actor.loading.gguf_reader import GGUFFile

__all__ = ["special_ids", "tokenizer_files"]

_UNUSED = 5  # a place-holder that fills the vocabulary up
_SPECIAL = MappingProxyType({3: True, 4: False})  # control and user-defined tokens; the former are hidden when decoding

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CASELESS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
        "gpt-2": (_GPT2,),
        "llama-bpe": (_CASELESS.replace("DIGITS", r"\p{N}{1,3}"),),
        "qwen2": (_CASELESS.replace("DIGITS", r"\p{N}"),),
        "smollm": (r"\p{N}", _GPT2),
    }
)


def special_ids(file: GGUFFile) -> dict[str, int | list[int] | None]:
    """``bos_token_id``, ``eos_token_id`` (a list where several tokens end a turn) and ``pad_token_id``.

    Raises:
      InputError: an id that the vocabulary does not have.
    """
    ends = [_token_id(file, name) for name in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(end for end in ends if end is not None))
    return {
        "bos_token_id": _token_id(file, "bos"),
        "eos_token_id": unique[0] if len(unique) == 1 else unique or None,
        "pad_token_id": _token_id(file, "padding"),
    }


def tokenizer_files(file: GGUFFile, *, max_length: int) -> dict[str, str]:
    """``tokenizer.json`` and ``tokenizer_config.json`` with the chat template, by file name.

    Args:
      file: with a byte-level BPE tokenizer (``tokenizer.ggml.model`` is ``gpt2``).
      max_length: positions the model was made for.

    Raises:
      InputError: another kind of tokenizer, a splitting rule not known here, or a vocabulary that contradicts itself.
    """
    tokenizer = _tokenizer(file)
    tokens = file.listed("tokenizer.ggml.tokens", str)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = _token_id(file, key)
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    template = file.get("tokenizer.chat_template", str)
    if template is not None:
        config["chat_template"] = template
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False),
        "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n",
    }


def _tokenizer(file: GGUFFile) -> Any:
    kind = file.require("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise file.error(f"key tokenizer.ggml.model = {kind!r}; only byte-level BPE ('gpt2') can be converted")
    rule = file.get("tokenizer.ggml.pre", str) or "default"
    if rule not in _SPLITS:
        raise file.error(f"key tokenizer.ggml.pre = {rule!r} names no splitting rule known here: {', '.join(_SPLITS)}")
    tokens = file.listed("tokenizer.ggml.tokens", str)
    types = file.listed("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise file.error(f"keys tokenizer.ggml.tokens and .token_type have {len(tokens)} and {len(types)} items")
    vocabulary = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    if len(vocabulary) != len(tokens) - types.count(_UNUSED):
        raise file.error("key tokenizer.ggml.tokens holds the same token twice")
    merges = []
    for i, merge in enumerate(file.listed("tokenizer.ggml.merges", str)):
        left, _, right = merge.partition(" ")
        if not vocabulary.keys() >= {left, right, left + right}:
            raise file.error(f"key tokenizer.ggml.merges, item {i}: is no pair of tokens that makes a third")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule == "llama-bpe"))
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), behavior="isolated") for split in _SPLITS[rule]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=_SPECIAL[kind])
            for token, kind in zip(tokens, types, strict=True)
            if kind in _SPECIAL
        ]
    )
    _add_around(file, tokenizer, tokens, rule)
    return tokenizer


def _add_around(file: GGUFFile, tokenizer: Any, tokens: list[str], rule: str) -> None:
    first, last = file.get("tokenizer.ggml.add_bos_token", bool), file.get("tokenizer.ggml.add_eos_token", bool)
    around = []
    for name, wanted in (("bos", rule == "llama-bpe" if first is None else first), ("eos", last)):
        token_id = _token_id(file, name) if wanted else None
        if wanted and token_id is None:
            raise file.error(
                f"key tokenizer.ggml.add_{name}_token is set and tokenizer.ggml.{name}_token_id is missing"
            )
        around.append([] if token_id is None else [(tokens[token_id], token_id)])
    if any(around):
        before, after = ([f"{token}:0" for token, _ in side] for side in around)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A:0", *after], special_tokens=[*around[0], *around[1]]
        )


def _token_id(file: GGUFFile, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = file.get(key, int)
    count = len(file.listed("tokenizer.ggml.tokens", str)) if token_id is not None else 0
    if token_id is not None and not 0 <= token_id < count:
        raise file.error(f"key {key} = {token_id}; the vocabulary has {count} tokens")
    return token_id
