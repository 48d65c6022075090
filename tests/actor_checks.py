"""What every recorded model must reproduce, whichever folder its recording lies in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from remory_jax.actor import Actor, load_actor

GOLDEN = Path(__file__).parent / "golden" / "actors"
FAMILIES = (
    "glm4_moe_lite",
    "glm4_moe_lite_groups",
    "glm5_next",
    "glm_moe_dsa",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "llama",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_vl",
    "qwen3_5_tied",
    "qwen3_5_vl",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_untied_yarn",
)
DELTA = ("glm5_next", "qwen3_5", "qwen3_next")


def tolerance(family: str) -> float:
    """Absolute, on logits whose standard deviation is 3 to 4: delta rules amplify float32 rounding."""
    return 2e-3 if family.startswith(DELTA) else 3e-4


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An actor and what transformers computed with the same weights."""

    family: str
    actor: Actor
    arrays: dict[str, np.ndarray]

    def close(self, ours: object, theirs: np.ndarray, what: str) -> None:
        error = float(np.max(np.abs(np.asarray(ours, np.float64) - theirs)))
        assert error <= tolerance(self.family), f"{self.family}, {what}: off by {error:.1e}"


def recording(folder: Path) -> Recording:
    with np.load(folder / "golden.npz") as file:
        arrays = {name: file[name] for name in file.files}
    return Recording(family=folder.name, actor=load_actor(folder), arrays=arrays)


def tail(ours: jax.Array, theirs: np.ndarray) -> jax.Array:
    """As many of the last positions as were recorded."""
    return ours[:, -theirs.shape[1] :]


def check_ids_and_padding(r: Recording) -> None:
    """Token ids, and the same program on the left-padded batch."""
    ids, wanted = r.arrays["input_ids"], r.arrays["logits_ids"]
    ones = np.ones(ids.shape, np.int32)
    r.close(tail(r.actor.logits(r.actor(tokens=ids, segment_ids=ones).hidden), wanted), wanted, "logits from ids")
    mask, wanted = r.arrays["leftpad_mask"].astype(np.int32), r.arrays["leftpad_logits"]
    logits = tail(r.actor.logits(r.actor(tokens=r.arrays["leftpad_ids"], segment_ids=mask).hidden), wanted)
    real = tail(mask, wanted)[:, :, None] > 0
    r.close(jnp.where(real, logits, 0), np.where(real, wanted, 0), "left-padded logits")


def check_embeddings(r: Recording) -> None:
    """Embeddings with soft vectors: every layer, the final norm, logits, the loss and its gradient."""
    actor, arrays = r.actor, r.arrays
    soft = arrays.get("soft_positions", np.arange(5, 13))
    start, depth = int(soft.max()) + 1, len(actor.config.layers)
    targets = jnp.asarray(arrays["input_ids"][:, 1:])

    def loss(embeddings: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        out = actor(embeddings=embeddings, taps=range(depth), use_cache=False)
        logits = actor.logits(out.hidden)
        likely = jax.nn.log_softmax(logits[:, :-1], axis=-1)
        nll = -jnp.take_along_axis(likely, targets[..., None], axis=-1)[..., 0]
        return jnp.mean(nll[:, start:]), (logits, out.taps, out.hidden)

    embeddings = jnp.asarray(arrays["inputs_embeds"])
    (value, (logits, taps, hidden)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(embeddings)
    positions = arrays.get("hidden_positions", np.arange(embeddings.shape[1]))
    r.close(taps[:, :, positions], arrays["hidden_embeds"][1:], "layers")
    r.close(hidden[:, positions], arrays["final_norm_embeds"], "final norm")
    r.close(tail(logits, arrays["logits_embeds"]), arrays["logits_embeds"], "logits from embeddings")
    if "logits_embeds_row0" in arrays:
        r.close(logits[0], arrays["logits_embeds_row0"], "logits of row 0")
    assert abs(float(value) - float(arrays["loss"])) < 1e-4 * abs(float(arrays["loss"]))
    largest = np.max(np.abs(arrays["grad_embeds"]))
    error = float(np.max(np.abs(np.asarray(gradient) - arrays["grad_embeds"])) / largest)
    assert error < 5e-4, f"{r.family}, gradient of the embeddings: off by {error:.1e} of the largest"


def check_cache(r: Recording, chunk: int, steps: int) -> None:
    """A prefill, then the rest at once; and a prefill, then one token at a time."""
    actor, embeddings = r.actor, jnp.asarray(r.arrays["inputs_embeds"])
    first = actor(embeddings=embeddings[:, :chunk])
    second = actor(embeddings=embeddings[:, chunk:], cache=first.cache)
    wanted = r.arrays["logits_chunked"]
    both = jnp.concatenate([first.hidden, second.hidden], axis=1)
    r.close(tail(actor.logits(both), wanted), wanted, "logits in two chunks")

    length = embeddings.shape[1]
    out = actor(embeddings=embeddings[:, : length - steps], capacity=length)
    hidden = [out.hidden]
    for index in range(length - steps, length):
        out = actor(embeddings=embeddings[:, index : index + 1], cache=out.cache)
        hidden.append(out.hidden)
    wanted = r.arrays["logits_cached"]
    r.close(tail(actor.logits(jnp.concatenate(hidden, axis=1)), wanted), wanted, "logits one token at a time")


def check_greedy(r: Recording, new: int) -> None:
    """The same ids as transformers' greedy search."""
    wanted = r.arrays["greedy_ids"]
    got = r.actor.generate(wanted[:, : wanted.shape[1] - new], max_new_tokens=new, stop_ids=())
    np.testing.assert_array_equal(got, wanted)
