"""What eight virtual devices compute; a program, since their number is fixed when JAX starts."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
from toy_training import RECIPE, ToyBatches, plain_loss, toy_fit

from dart_jax.config import MoEConfig, TargetConfig
from dart_jax.pure import abstract_params
from dart_jax.rope import Rope
from train.lm import lm_losses
from train.mesh import MeshConfig, make_mesh, place, target_shardings

TARGET = TargetConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=7,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope=Rope(1e4),
    tie_word_embeddings=False,
    max_position_embeddings=64,
    moe=MoEConfig(4, 2, 16, norm_topk_prob=True, dense_layers=(0, 2, 3, 4, 5)),
)


def target_losses() -> list[float]:
    """The target's loss on one device and on a mesh of 2 groups of 4."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: np.asarray(rng.normal(p.ndim == 1, 0.2, p.shape), np.float32),
        abstract_params(TARGET),
    )
    tokens = rng.integers(0, 64, (4, 9)).astype(np.int32)
    mesh = make_mesh(MeshConfig(data=2, model=4))
    split = target_shardings(mesh, params, shard_target=True)
    rows = jax.NamedSharding(mesh, jax.P("data"))
    loss = jax.jit(lambda params, tokens: lm_losses(TARGET, params, tokens)[0])
    alone = loss(params, tokens)
    together = loss(place(params, split), jax.device_put(tokens, rows))
    return [float(alone), float(together)]


def main(directory: Path) -> None:
    """Leaves runs of the toy in directories, and the target's losses beside them."""
    assert jax.device_count() == 8
    meshes = {"data": MeshConfig(), "both": MeshConfig(data=2, model=4, shard_target=True)}
    for name, mesh in meshes.items():
        toy_fit(directory / name, dataclasses.replace(RECIPE, mesh=mesh))
    config = dataclasses.replace(RECIPE, batch=16, accumulate=2)
    toy_fit(directory / "accumulated", config, loss=plain_loss, batches=ToyBatches(16))
    (directory / "target.json").write_text(json.dumps(target_losses()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
