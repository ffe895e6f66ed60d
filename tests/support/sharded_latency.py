"""`eval.latency` on eight virtual devices; a program, since JAX fixes their number at startup.

Takes a shape and a mesh, and prints JSON: what the program reported, what the first device holds
and what is counted for one, and the parts of the weights.
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

from dart_jax.decoding.sampling import Sampling
from dart_jax.models.config import MoEConfig
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MeshShape
from eval.latency import hardware, program, shapes
from eval.latency.abstract_arrays import held_bytes, placed_weights
from eval.latency.case import prepared_state
from eval.latency.cost import cached_row
from eval.latency.model import Model, config_of
from eval.latency.program import LatencyConfig

CONTEXT, NODES, BATCH = 20, 8, 2
MIXTURE = dataclasses.replace(
    shapes.target_of("tiny"),
    num_attention_heads=8,
    tie_word_embeddings=False,
    model_type="qwen3_moe",
    moe=MoEConfig(8, 2, 32, norm_topk_prob=True),
)


def numbers(matrix: jax.Array) -> list[int]:
    """How many devices have a part of a matrix, how many different parts there are, and how many of
    these have different numbers."""
    shards = matrix.addressable_shards
    parts = {str(shard.index) for shard in shards}
    return [len(shards), len(parts), len({np.asarray(shard.data).tobytes() for shard in shards})]


def main(shape: str, mesh: str) -> None:
    shapes._SHAPES = {**shapes._SHAPES, "mixture": MIXTURE}
    execution = Execution.here().on(MeshShape.parse(mesh).make())
    model, config = Model.random(shape, jnp.float32, execution), config_of(shape, execution, NODES)
    state, _ = prepared_state(config, model.params, BATCH, CONTEXT, Sampling())
    caches = held_bytes((state.target_cache, state.draft_state))
    rows = BATCH // execution.groups * config.capacity(CONTEXT)
    target, drafter = model.params["target"], model.params["drafter"]
    path = Path(tempfile.mkdtemp()) / "latency.json"
    hardware.measure = lambda dtype: hardware.Hardware(1e9, 1e11, 2**40)
    options: dict[str, Any] = {"tree_nodes": (NODES,), "batch_size": (BATCH,), "json": path}
    options |= {"context": (CONTEXT,), "repeats": 1, "mesh": mesh}
    program.run(LatencyConfig((shape,), **options), Console(file=io.StringIO()))
    content = {
        "parts": {
            "o_proj": numbers(target["layers"][0]["self_attn"]["o_proj"]["kernel"]),
            "drafter": numbers(drafter["lm_head"]["kernel"]),
        },
        "weights": [held_bytes(model.params), held_bytes(placed_weights(config, jnp.float32))],
        "caches": [caches, rows * cached_row(config, jnp.float32)],
        "json": json.loads(path.read_text()),
    }
    print(json.dumps(content))


if __name__ == "__main__":
    assert len(jax.devices()) == 8
    main(*sys.argv[1:])
