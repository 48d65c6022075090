"""SmolLM2-135M-Instruct on real English text: a memory network for the embedded real model, on a CPU for a start.

Stage I repeats passages from memory; Stage II continues documents whose first 256 tokens were replaced by a summary
that the actor itself wrote. The text is Python's own documentation topics, which every machine has. Prepare once
(minutes), then train; 130 steps are a start that two cores make in less than an hour:

    python -m launch.prepare_data repeat --python-docs --passage 64 --out out/data/docs-repeat
    python -m launch.prepare_data continue --python-docs --history 256 --response 64 --out out/data/docs
    python -m launch.prepare_data summaries out/data/docs --tokens 48 --batch 16
    python -m launch.train configs/smollm2_cpu.py
    python -m launch.evaluate configs/smollm2_cpu.py --batch 8 --batches 16

On better hardware the same command goes on for longer: --stages.0.steps 2000 --stages.1.steps 4000 --stages.1.batch 64,
with more text (--text, --rows) and a --folder of its own. Agent runs take the place of the documents:

    python -m launch.prepare_data runs RUNS --trigger 1200 --response 128 --out out/data/runs
    python -m launch.prepare_data summaries out/data/runs --tokens 48
    ... --stages.1.data.folder out/data/runs --stages.1.data.buckets.prefix 1152 \\
        --stages.1.data.buckets.history 512 4096

Where the numbers come from. Network: the width of the actor, two layers, one row for 8 tokens, taps of layers 0, 10 and
20. It starts as a copier of layer 0 whose slots see 16 tokens: of five starts that were looked at untrained on 16
examples (taps of layer 0, 4 or 20; 4 or 8 tokens a row; twice the scale), the one that disturbs the actor least.
Learning rate, steps and batch: a guess. A fifth of the topics is held out.
"""

from __future__ import annotations

from remory_jax.data import Buckets, PreparedData
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import Experiment, ObjectiveConfig, OptimizerConfig, Stage
from remory_jax.training.pretrained import SmolLM2Actor

PASSAGES, DOCUMENTS = "out/data/docs-repeat", "out/data/docs"


def get_config() -> Experiment:
    """The experiment."""
    return Experiment(
        name="smollm2_cpu",
        actor=SmolLM2Actor(),
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
        log_every=5,
        save_every=20,
        probe_every=25,
    )
