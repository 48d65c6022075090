"""SmolLM2-135M-Instruct on real English text: a memory network for the embedded real model, on a CPU for a start.

Stage I repeats passages from memory; Stage II continues documents whose first 256 tokens were replaced by a summary
that the actor itself wrote. The text is Python's own documentation topics, which every machine has. Prepare once:

    python -m launch.prepare_data repeat --python-docs --passage 64 --out out/data/docs-repeat
    python -m launch.prepare_data continue --python-docs --history 256 --response 64 --out out/data/docs
    python -m launch.prepare_data summaries out/data/docs --tokens 48 --batch 16
"""

from __future__ import annotations

from remory_jax.actor.loading.smollm2 import smollm2_folder
from remory_jax.data import Buckets, PreparedData
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import Experiment, ObjectiveConfig, OptimizerConfig, Stage
from remory_jax.training.pretrained import PretrainedActor

PASSAGES, DOCUMENTS = "out/data/docs-repeat", "out/data/docs"


def get_config() -> Experiment:
    """The experiment."""
    return Experiment(
        name="smollm2_cpu",
        actor=PretrainedActor(folder=str(smollm2_folder()), dtype="float32"),
        memory=MemoryConfig(
            hidden_size=576,
            intermediate_size=1152,
            num_hidden_layers=2,
            num_attention_heads=9,
            num_key_value_heads=9,
            head_dim=64,
            target_layer_ids=(0, 10, 20),
            compression_ratio=8,
            block_tokens=256,
            memory_budget=1024,
            local_window=16,
            init="copier",
            copier_tap=0,
        ),
        stages=(
            Stage(
                name="reconstruction",
                data=PreparedData(
                    folder=PASSAGES,
                    buckets=Buckets(history=(64,), prefix=24, summary=0, response=96),
                    held_out_share=0.2,
                ),
                steps=30,
                batch=8,
            ),
            Stage(
                name="continuation",
                data=PreparedData(
                    folder=DOCUMENTS,
                    buckets=Buckets(history=(256,), prefix=24, summary=48, response=64),
                    held_out_share=0.2,
                ),
                steps=100,
                batch=8,
            ),
        ),
        objective=ObjectiveConfig(chunk=256),
        optimizer=OptimizerConfig(peak_lr=1e-3),
        log_every=10,
        save_every=20,
    )
