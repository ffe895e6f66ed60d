"""Computations on eight virtual devices; a program, since JAX fixes their number at startup."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from toy_training import RECIPE, ToyBatches, plain_loss, toy_fit

from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.models.pure import Params, abstract_params
from dart_jax.models.rope import Rope
from dart_jax.weights.checkpoint import save_target
from train.data.batch import Batch
from train.objective.loss import DrafterLoss, Objective
from train.objective.predictions import Frozen, PackedForward
from train.run.mesh import fsdp_shardings, make_mesh, place
from train.teacher.teacher import Teacher

TARGET = TargetConfig(
    model_type="qwen3_moe",
    vocab_size=128,
    hidden_size=64,
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


DRAFTER = DrafterConfig(
    vocab_size=128,
    draft_vocab_size=48,
    hidden_size=64,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    target_hidden_size=64,
    draft_length=3,
    num_hidden_layers=2,
)


def random_params(config: TargetConfig | DrafterConfig, seed: int) -> Params:
    """Random parameters, large enough for logits of order 1."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: np.asarray(rng.normal(p.ndim == 1, 0.2, p.shape), np.float32),
        abstract_params(config),
    )


def drafter_losses(directory: Path) -> dict[str, list[float]]:
    """Returns the drafter's loss and gradient norm, on one device and on a mesh of 2 groups of 4
    with target and drafter sharded."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 128, (4, 16)).astype(np.int32)
    document = np.repeat(np.array([[1] * 9 + [2] * 7], np.int32), 4, axis=0)
    batch = Batch(tokens, document, rng.random((4, 16)) < 0.9)
    params = random_params(DRAFTER, 1)
    save_target(directory, TARGET, random_params(TARGET, 0))
    ids = np.sort(rng.permutation(128)[:48]).astype(np.int32)

    def measured(mesh: Mesh, params: Params, batch: Batch) -> tuple[Teacher, list[float]]:
        teacher = Teacher.load(directory, np.dtype("float32"), mesh)
        forward = PackedForward(teacher.config, DRAFTER, 4, max_chunk=8, mesh=teacher.mesh)
        loss = DrafterLoss(forward, Objective(anchors=8))

        @jax.jit
        def measure(params: Params, frozen: Frozen, batch: Batch) -> tuple[jax.Array, jax.Array]:
            total = lambda params: loss(params, frozen, batch, jax.random.key(0))[0]  # noqa: E731
            value, gradient = jax.value_and_grad(total)(params)
            return value, optax.tree.norm(gradient)

        return teacher, [*map(float, measure(params, Frozen(teacher.params, ids), batch))]

    mesh = make_mesh("data=2,model=4")
    rows = jax.NamedSharding(mesh, jax.P("data"))
    one, single = measured(make_mesh("data=1"), params, batch)
    many, sharded = measured(
        mesh,
        place(params, fsdp_shardings(mesh, params)),
        jax.tree.map(lambda x: jax.device_put(x, rows), batch),
    )
    assert one.digest == many.digest
    return {"one": single, "many": sharded}


def main(directory: Path) -> None:
    """Writes runs of the toy, and the drafter's losses, to the directory."""
    assert jax.device_count() == 8
    meshes = {"data": None, "both": "data=2,model=4"}
    for name, mesh in meshes.items():
        toy_fit(directory / name, dataclasses.replace(RECIPE, mesh=mesh))
    config = dataclasses.replace(RECIPE, batch_size=16, accumulate=2)
    toy_fit(directory / "accumulated", config, loss=plain_loss, batches=ToyBatches(16))
    (directory / "drafter.json").write_text(json.dumps(drafter_losses(directory / "target")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
