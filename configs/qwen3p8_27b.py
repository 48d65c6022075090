"""Qwen3.8-27B with histories of 65,536 tokens, on 64 chips of TPU v5p (4x4x4): the released network's geometry.

Prepare the data as in configs/qwen3_8b.py, with models/Qwen3.8-27B and data/qwen3p8/.

Where the numbers come from. Actor: the preset Qwen3.6-27B, whose values are those of Qwen3.8-27B's config.json (both
use transformers' Qwen3.5 classes): 64 layers, three of Gated DeltaNet to one of attention, width 5120. Once the model's
own folder is there, its config.json decides. Network: the preset of the released checkpoint, 1,940,016,388 parameters.
Batch, learning rate, lengths and steps: as in configs/qwen3_8b.py.

Mesh and parts: what `python -m launch.compile_check configs/qwen3p8_27b.py --topology v5p:4x4x4` shows to fit. Each
part of a batch gives every device one example; where memory is short, ``tensor`` may be 4, as the actor has 4 key-value
heads.
"""

from __future__ import annotations

from remory_jax.data import Buckets, PreparedData
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import EncodingConfig, Experiment, MeshConfig, ObjectiveConfig, Stage
from remory_jax.training.pretrained import PretrainedActor


def get_config() -> Experiment:
    """The experiment."""
    passages, runs = "data/qwen3p8/repeat", "data/qwen3p8/runs"
    return Experiment(
        name="qwen3p8_27b",
        actor=PretrainedActor(folder="models/Qwen3.8-27B", preset="Qwen3.6-27B"),
        memory=MemoryConfig.preset("qwen3.8-27b"),
        stages=(
            Stage(
                name="reconstruction",
                data=PreparedData(folder=passages, buckets=Buckets(history=(1024,), summary=0, response=1024)),
                steps=1024,
                batch=128,
                microbatches=2,
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
                microbatches=2,
            ),
        ),
        encoding=EncodingConfig(remat=True, at_once=8),
        objective=ObjectiveConfig(chunk=1024),
        mesh=MeshConfig(data=1, fsdp=-1, tensor=1),
        dtype="bfloat16",
        log_every=1,
        save_every=50,
        probe_every=100,
        watchdog=1800.0,
    )
