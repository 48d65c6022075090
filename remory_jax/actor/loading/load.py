"""`load_actor`: a Hugging Face folder into sharded arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from remory_jax.actor.config import ActorConfig
from remory_jax.actor.decoder import parameters
from remory_jax.actor.loading.buffers import assemble, fill, zeros
from remory_jax.actor.loading.converted import converted
from remory_jax.actor.loading.create import abstract_weights, checked_dtype
from remory_jax.actor.loading.folder import Tensor, read_folder
from remory_jax.actor.loading.plan import Source, plan
from remory_jax.actor.model import Actor
from remory_jax.actor.sharding import DEFAULT_RULES, Rules, check

__all__ = ["load_actor"]

_LEAST, _MOST = 2 * 2**20, 64 * 2**20  # bytes in flight: fewer is slower, more is no faster
_SHARE = 16  # of the largest tensor


def load_actor(
    folder: str | PathLike[str],
    dtype: Any = "float32",
    mesh: Mesh | None = None,
    *,
    rules: Rules = DEFAULT_RULES,
) -> Actor:
    """Load a frozen language model.

    Everything is checked before anything is allocated: the config, the mesh, the headers of all files, and that their
    tensors are the model's, no more and no fewer (vision towers and multi-token heads are left out). Then each process
    reads the parts that its own devices hold, some at a time: its host memory stays below its shards and 1.3 times the
    largest tensor.

    Args:
      folder: with config.json and safetensors files as transformers writes them, MXFP4 experts among them; or a GGUF
        file, which is converted once into a cache folder.
      dtype: of the weights: float32, bfloat16 or float16; None for that of the stored embedding. A few parameters (the
        decay of linear attention) are float32 in any case.
      mesh: from `remory_jax.mesh.make_mesh`, the same in every process; None for one device.
      rules: logical axes on the mesh.

    Raises:
      InputError: a folder that is no supported model, naming file and tensor.
      ValueError: a dtype that is none of these, or a mesh that does not divide the model.
    """
    path = Path(folder)
    if path.suffix == ".gguf":
        path = converted(path, exact=dtype is None or checked_dtype(dtype) != jnp.bfloat16)
    config = ActorConfig.from_hf(path)
    if mesh is not None:
        check(parameters(config), mesh, rules)
        if rules.layers is not None:
            raise ValueError(f"Rules.layers = {rules.layers!r}: a stack of layers is loaded whole; leave it None")
    kind = None if dtype is None else checked_dtype(dtype)
    tensors = read_folder(path)
    sources = plan(config, tensors, path)
    target = abstract_weights(config, kind or _stored_dtype(sources, tensors), mesh, rules)
    shapes, structure = jax.tree.flatten(target)
    check_pairs(shapes, sources)
    weights = jax.tree.unflatten(structure, _filled(shapes, sources, tensors))
    return Actor(config=config, weights=weights, mesh=mesh, rules=rules)


def _stored_dtype(sources: list[Source], tensors: Mapping[str, Tensor]) -> jnp.dtype:
    embed = next(source for source in sources if source.stored.name == "embed_tokens.weight")
    kinds = {"BF16": "bfloat16", "F16": "float16"}
    return jnp.dtype(kinds.get(tensors[embed.names[0]].dtype, "float32"))


def check_pairs(shapes: list[jax.ShapeDtypeStruct], sources: list[Source]) -> None:
    """Refuse a mesh that cuts MXFP4 bytes in two."""
    for source in sources:
        if not source.stored.mxfp4:
            continue
        shape = shapes[source.leaf]
        _, _, rows, _ = shape.sharding.shard_shape(shape.shape)  # [L, E, in, out]
        if rows % 2:
            raise ValueError(
                f"{source.names[0]}: MXFP4 packs two rows into a byte and the mesh gives a device {rows} of them; "
                "choose another mesh, or replicate them with Rules(embed=None)"
            )


def _filled(
    shapes: list[jax.ShapeDtypeStruct], sources: list[Source], tensors: Mapping[str, Tensor]
) -> list[jax.Array]:
    """The leaves; on any error none of them is left on a device."""
    largest = max(tensors[name].size for source in sources for name in source.names)
    limit = max(_LEAST, min(_MOST, largest // _SHARE))
    of_leaf: dict[int, list[Source]] = {leaf: [] for leaf in range(len(shapes))}
    for source in sources:
        of_leaf[source.leaf].append(source)
    small = {
        leaf
        for leaf, shape in enumerate(shapes)
        if shape.size * shape.dtype.itemsize <= limit and not of_leaf[leaf][0].stored.mxfp4
    }
    large = [leaf for leaf in of_leaf if leaf not in small]
    filled: dict[int, jax.Array] = {}
    try:
        filled.update(zip(large, zeros([shapes[leaf] for leaf in large]), strict=True))
        for source in _in_file_order((source for source in sources if source.leaf not in small), tensors):
            filled[source.leaf] = fill(filled[source.leaf], source, tensors, limit=limit)
        for leaf in sorted(small):
            filled[leaf] = assemble(shapes[leaf], of_leaf[leaf], tensors)
    except BaseException:
        for array in filled.values():
            if not array.is_deleted():
                array.delete()
        raise
    return [filled[leaf] for leaf in of_leaf]


def _in_file_order(sources: Iterable[Source], tensors: Mapping[str, Tensor]) -> list[Source]:
    def place(source: Source) -> tuple[str, int]:
        tensor = tensors[source.names[0]]
        return tensor.file.name, tensor.start

    return sorted(sources, key=place)
