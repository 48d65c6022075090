"""An experiment as data: frozen dataclasses, every field of which the command line can override."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from jax.sharding import Mesh

from costmodel_jax.pytree import pytree
from remory_jax.actor import Actor
from remory_jax.data.batch import Batch
from remory_jax.data.template import Template
from remory_jax.memory import MemoryConfig

__all__ = [
    "ActorSource",
    "BatchSource",
    "EncodingConfig",
    "Experiment",
    "HeldOut",
    "MeshConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Request",
    "Stage",
]


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the mesh axes; one may be -1 and takes the devices that the others leave."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with a warm-up and a cosine. Defaults are ours; the paper names none."""

    peak_lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1  # not on norms, gates, queries and depth rows
    clip: float = 1.0  # global norm of the gradients
    warmup: float = 0.03  # share of a stage's steps
    final: float = 0.1  # learning rate at the end, as a share of the peak


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """Which divergence between teacher p and student q, and how much each position counts."""

    divergence: Literal["reverse", "forward", "jsd", "forward_to_reverse"] = "reverse"
    turn: float = 0.5  # forward_to_reverse: share of the stage over which forward KL gives way to reverse
    floor: float = 0.5  # weights w_j = floor + (1 - floor) exp(-j / tau)
    tau: float = 256.0  # tokens
    chunk: int = 256  # positions whose logits exist at one time


@dataclass(frozen=True, kw_only=True)
class EncodingConfig:
    """How a history becomes memory rows."""

    short_blocks: Literal["full", "natural"] = "full"  # a short last block fills its slots (as released), or has fewer
    through_memory: bool = False  # back-propagate through one earlier boundary's rows
    remat: bool = False  # recompute the actor's layers in the student's backward pass
    at_once: int = 1  # blocks of an example that are encoded together; weights that lie in parts are gathered as often


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a run asks of its data.

    Attributes:
      batch: global number of examples.
      objective: decides the weights of response positions.
    """

    batch: int
    seed: int
    template: Template
    objective: ObjectiveConfig
    process_index: int = 0
    process_count: int = 1


@pytree()
@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A held-out batch, and its summary++: the last summary with as many more tokens as memory has positions.

    Attributes:
      longer: ids and lengths; None where the data have none.
      records: the record each example is of, for intervals; None where each is one of its own.
    """

    batch: Batch
    longer: tuple[Any, Any] | None = None
    records: Any = None


class BatchSource(Protocol):
    """Where a stage's batches come from: a frozen dataclass, so that it is part of the experiment."""

    def batches(self, request: Request) -> Any:
        """A Grain iterable dataset, or one that iterates likewise, of this process's part of each global batch."""

    def manifest(self) -> dict[str, Any]:
        """What the data are: files, sizes, hashes; stored with checkpoints and compared on resuming."""

    def held_out(self, request: Request, count: int) -> Iterator[HeldOut]:
        """Batches that no training ever sees; at most ``count``."""


class ActorSource(Protocol):
    """Where the frozen actor comes from: a frozen dataclass."""

    def load(self, mesh: Mesh | None) -> Actor:
        """Load it, or make it where it is trained by the command itself."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the training: Stage I is reconstruction, Stage II continuation (REMORY, section 4)."""

    name: str
    data: Any  # a BatchSource
    steps: int
    batch: int  # global, examples
    lr: float = 1.0  # times the optimizer's peak
    microbatches: int = 1  # parts of a batch whose gradients are added up, to fit memory


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides what a run does."""

    name: str
    actor: Any  # an ActorSource
    memory: MemoryConfig
    stages: tuple[Stage, ...]
    template: Template = field(default_factory=Template)
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    seed: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the memory network's activations; its parameters are float32
    log_every: int = 50  # steps
    save_every: int = 500  # steps
    probe_every: int = 0  # steps between looks at a held-out batch: is the memory used? 0 for never
    keep: int = 3  # checkpoints
    watchdog: float | None = None  # seconds without a step after which all threads' stacks are printed
    folder: str = "out/train"  # the run goes to folder/name
    display: Literal["auto", "bar", "lines", "off"] = "auto"  # of progress, on standard error
