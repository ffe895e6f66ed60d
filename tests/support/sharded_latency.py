"""`eval.latency` on eight virtual devices; a program, since JAX fixes their number at startup.

Takes a shape and a mesh, and prints JSON: what the program reported, what the first device holds
and what is counted for one, how the weights were made, and whether the stages together are
decoding's own step.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.step import step
from dart_jax.models.config import MoEConfig
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MeshShape
from eval.compile.cases import Case
from eval.latency import hardware, program, shapes
from eval.latency.abstract_arrays import weight_bytes
from eval.latency.case import Model, pack_host_buffer, prefilled_state, random_state
from eval.latency.program import LatencyConfig
from eval.latency.stages import all_stages

CONTEXT, NODES, BATCH = 20, 8, 2
LIMITS = hardware.Hardware(1e9, 1e11, "float32", 2**20, 512, 2**40)
MIXTURE = dataclasses.replace(
    shapes.target_of("tiny"),
    num_attention_heads=8,
    tie_word_embeddings=False,
    model_type="qwen3_moe",
    moe=MoEConfig(8, 2, 32, norm_topk_prob=True),
)
ADDED = {"mixture": MIXTURE}


def of_first(arrays: Any) -> int:
    """Bytes of the first device's parts."""
    leaves = jax.tree.leaves(arrays)
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)


def numbers(matrix: jax.Array) -> list[int]:
    """How many devices have a part of a matrix, how many different parts there are, and how many of
    these have different numbers."""
    shards = matrix.addressable_shards
    parts = {str(shard.index) for shard in shards}
    return [len(shards), len(parts), len({np.asarray(shard.data).tobytes() for shard in shards})]


def counted(shape: str, mesh: str) -> dict[str, Any]:
    """What is counted for a device, and what it has."""
    execution = Execution.here().on(MeshShape.parse(mesh).make())
    model = Model.random(shape, jnp.float32, execution)
    config = model.config(NODES)
    state, candidates = prefilled_state(config, model.params, BATCH, CONTEXT)
    other, _ = random_state(config, model.params, BATCH, CONTEXT)
    case = Case(shape, "dart", NODES, BATCH, CONTEXT, CONTEXT, "float32", execution=execution)
    plain = dataclasses.replace(case, method="plain", nodes=0)
    held, caches = of_first(model.params), (state.target_cache, state.draft_state)
    trees = jnp.asarray(pruned(config, pack_host_buffer(config.host_buffer, *candidates)))
    stages, packed = all_stages(config, model.params, jax.tree.map(jnp.copy, state), trees)
    cached = [of_first(caches), of_first((other.target_cache, other.draft_state)), case.cache_bytes]
    whole, expected = step(config, model.params, state, trees)
    return {
        "made": {
            "o_proj": numbers(model.params["target"]["layers"][0]["self_attn"]["o_proj"]["kernel"]),
            "drafter": numbers(model.params["drafter"]["lm_head"]["kernel"]),
        },
        "weights": [held, weight_bytes(config, jnp.float32), case.weight_bytes],
        "caches": cached,
        "least": {"step": case.least("step"), "plain": plain.least("step")},
        "same trees": bool((pruned(config, packed) == pruned(config, expected)).all()),
        "apart": max(
            float(jnp.abs(one - two).max())
            for one, two in zip(
                jax.tree.leaves((stages.target_cache, stages.draft_state)),
                jax.tree.leaves((whole.target_cache, whole.draft_state)),
                strict=True,
            )
        ),
    }


def pruned(config: Any, packed: Any) -> np.ndarray:
    """The trees that the C++ search finds."""
    return HostSearch(config.host_buffer, NODES)(np.asarray(packed))


def reported(shape: str, mesh: str) -> dict[str, Any]:
    """What the program prints and writes."""
    path, console = Path(tempfile.mkdtemp()) / "latency.json", Console(file=io.StringIO())
    hardware.measure = lambda dtype: LIMITS
    program.contradiction = lambda case: None  # other programs may run meanwhile
    options: dict[str, Any] = {"tree_nodes": (NODES,), "batch_size": BATCH, "context": (CONTEXT,)}
    options |= {"repeats": 1, "seconds": 1e-3, "mesh": mesh, "json": path}
    program.run(LatencyConfig((shape,), **options), console)
    return {"text": console.file.getvalue(), "json": json.loads(path.read_text())}  # pyright: ignore


def main(shape: str, mesh: str) -> None:
    shapes._SHAPES = {**shapes._SHAPES, **ADDED}
    print(json.dumps(counted(shape, mesh) | reported(shape, mesh)))


if __name__ == "__main__":
    assert len(jax.devices()) == 8
    main(*sys.argv[1:])
