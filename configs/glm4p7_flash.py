"""GLM-4.7-Flash (31B, 3B active) with histories of 32,768 tokens, on 32 chips of TPU v6e (4x8).

Prepare the data as in configs/qwen3_8b.py, with models/GLM-4.7-Flash, --trigger 32768 and data/glm4p7/.

Where the numbers come from. Actor: the preset GLM-4.7-Flash (latent attention, 64 experts of which 4 answer). No
network was released for it; that of GLM-5.3-Flash is scaled to this actor's width of 2048: MLP three times as wide, as
many channels in the heads as in the residual stream (16 of 128, over 8 for keys and values), 6 layers and 5 taps 11
layers apart; with the gated reading of the summary and the convolutions that the paper describes and the release leaves
out. Blocks, ratio and budget as in every released network: 32,768 tokens make 2,048 rows. Batch, learning rate and
steps: as in configs/qwen3_8b.py.

Mesh and parts: 20 heads and 64 experts split over ``tensor`` = 4; see `python -m launch.compile_check
configs/glm4p7_flash.py --topology v6e:4x8`.
"""

from __future__ import annotations

from remory_jax.data import Buckets, PreparedData
from remory_jax.memory import MemoryConfig
from remory_jax.training.experiment import EncodingConfig, Experiment, MeshConfig, ObjectiveConfig, Stage
from remory_jax.training.pretrained import PretrainedActor


def get_config() -> Experiment:
    """The experiment."""
    passages, runs = "data/glm4p7/repeat", "data/glm4p7/runs"
    return Experiment(
        name="glm4p7_flash",
        actor=PretrainedActor(folder="models/GLM-4.7-Flash", preset="GLM-4.7-Flash"),
        memory=MemoryConfig(
            hidden_size=2048,
            intermediate_size=6144,
            num_hidden_layers=6,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            target_layer_ids=(1, 12, 23, 34, 45),
            dynamic_conv=True,
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
                    buckets=Buckets(history=(1024, 8192, 32768), prefix=2048, summary=1024, response=1024),
                    curriculum=0.5,
                    curriculum_batches=1024,
                    longer=2048 + 1024,  # summary++ has as many positions as summary and memory
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
