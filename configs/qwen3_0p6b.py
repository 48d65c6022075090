"""Qwen3-0.6B with histories of 8,192 tokens, on 8 chips of 16 GB (TPU v5e 2x4): the smallest pod run.

Download the model into models/Qwen3-0.6B and prepare the data as in configs/qwen3_8b.py, with --trigger 8192, --tokens
256 and data/qwen3_0p6b/.

Where the numbers come from. Actor: the preset Qwen3-0.6B. Network: as in configs/qwen3_8b.py for a width of 1024: MLP
three times as wide, as many channels in the heads as in the residual stream, 5 layers, 5 taps from the second layer to
the last but two; 8,192 tokens make 512 rows. Batch, learning rate and steps: as there.

Mesh and parts: everything is small, so the batch alone is split, and parameters at rest; see `python -m
launch.compile_check configs/qwen3_0p6b.py --topology v5e:2x4`.
"""

from __future__ import annotations

from remory_jax.data import Buckets, PreparedData
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import EncodingConfig, Experiment, MeshConfig, ObjectiveConfig, Stage
from remory_jax.training.pretrained import PretrainedActor


def get_config() -> Experiment:
    """The experiment."""
    passages, runs = "data/qwen3_0p6b/repeat", "data/qwen3_0p6b/runs"
    return Experiment(
        name="qwen3_0p6b",
        actor=PretrainedActor(folder="models/Qwen3-0.6B", preset="Qwen3-0.6B"),
        memory=MemoryConfig(
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=5,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=64,
            target_layer_ids=(1, 7, 13, 19, 25),
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
                    buckets=Buckets(history=(1024, 4096, 8192), prefix=1024, summary=256, response=1024),
                    curriculum=0.5,
                    curriculum_batches=1024,
                    longer=512 + 256,  # summary++ has as many positions as summary and memory
                ),
                steps=1024,
                batch=128,
                lr=0.2,
                microbatches=8,
            ),
        ),
        encoding=EncodingConfig(remat=True, at_once=8),
        objective=ObjectiveConfig(chunk=1024),
        mesh=MeshConfig(data=1, fsdp=-1, tensor=1),
        dtype="bfloat16",
        log_every=10,
        save_every=100,
        probe_every=100,
        watchdog=1800.0,
    )
