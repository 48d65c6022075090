"""Qwen3-8B with histories of 65,536 tokens, on 32 chips of 16 GB (TPU v5e 4x8) or 16 of 32 GB (v6e 4x4).

Download the model into models/Qwen3-8B and prepare the data:

    python -m launch.prepare_data repeat --rows mmfinereason/ --model models/Qwen3-8B --style chat --passage 960 \\
        --out data/qwen3/repeat
    python -m launch.prepare_data runs runs/ --model models/Qwen3-8B --style chat --trigger 65536 --response 1024 \\
        --out data/qwen3/runs
    python -m launch.prepare_data summaries data/qwen3/runs --model models/Qwen3-8B --tokens 1024

Where the numbers come from. Actor: the preset Qwen3-8B. Network: width, MLP, heads of the released network for an actor
of the same width (GLM-5.3-Flash: 4096, 12288, 32 over 8 heads of 128), depth, taps from the second layer to the last
but two and the gated reading of the summary as the released one for a Qwen actor; blocks of 1,024, ratio 16 and a
budget of 4,096 rows as both: 65,536 tokens fill it without a merge. Batch 128, learning rate and schedule, 20% of Stage
I within Stage II: the defaults of this project. Response 1,024 and summary 1,024: the paper compares with summaries of
about that many tokens. Steps: a guess that trains on 131 thousand examples of each stage.

Mesh and parts: what `python -m launch.compile_check configs/qwen3_8b.py --topology v5e:4x8` shows to fit. Each part of
a batch gives every 4 devices (``tensor``) one example on v5e 4x8 and two on v6e 4x4.
"""

from __future__ import annotations

from remory_jax.data import Buckets, PreparedData
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import EncodingConfig, Experiment, MeshConfig, ObjectiveConfig, Stage
from remory_jax.training.pretrained import PretrainedActor


def get_config() -> Experiment:
    """The experiment."""
    passages, runs = "data/qwen3/repeat", "data/qwen3/runs"
    return Experiment(
        name="qwen3_8b",
        actor=PretrainedActor(folder="models/Qwen3-8B", preset="Qwen3-8B"),
        memory=MemoryConfig(
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=5,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            target_layer_ids=(1, 9, 17, 25, 33),
        ),
        stages=(
            Stage(
                name="reconstruction",
                data=PreparedData(folder=passages, buckets=Buckets(history=(1024,), summary=0, response=1024)),
                steps=1024,
                batch=128,
                microbatches=4,
            ),
            Stage(
                name="continuation",
                data=PreparedData(
                    folder=runs,
                    replay=passages,
                    replay_share=0.2,
                    buckets=Buckets(history=(1024, 8192, 65536), prefix=2048, summary=1024, response=1024),
                    curriculum=0.5,
                    curriculum_batches=1024,
                    longer=4096 + 1024,  # summary++ has as many positions as summary and memory
                ),
                steps=1024,
                batch=128,
                lr=0.2,
                microbatches=16,
            ),
        ),
        encoding=EncodingConfig(remat=True, at_once=8),
        objective=ObjectiveConfig(chunk=1024),
        mesh=MeshConfig(data=1, fsdp=-1, tensor=4),
        dtype="bfloat16",
        log_every=1,
        save_every=50,
        probe_every=100,
        watchdog=1800.0,
    )
