"""A training run of a few seconds; also a program, to be killed or started several times."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from support_process import free_address

from dart_jax.programs.command_line import program
from dart_jax.programs.processes import DistributedConfig, initialize, is_main
from train.run.config import TrainerConfig
from train.run.trainer import Trainer

WIDTH = 64
PROGRAM = [sys.executable, __file__]


@dataclasses.dataclass(frozen=True)
class ToyBatches:
    """Random inputs and their images under a fixed map; rows depend on seed, step and index."""

    batch: int
    seed: int = 0

    @property
    def fingerprint(self) -> str:
        return f"toy {self.seed}"

    def __call__(self, step: int, rows: slice) -> dict[str, np.ndarray]:
        made = [
            np.random.default_rng((self.seed, step, row)).normal(size=WIDTH)
            for row in range(self.batch)[rows]
        ]
        x = np.array(made, np.float32)
        # Some rows have no target, so that the number of losses differs from batch to batch.
        return {"x": x, "y": np.roll(x, 1, axis=1), "counts": x[:, 0] > -1}


def toy_params() -> dict:
    """Two matrices and a vector."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(0, 0.1, shape), jnp.float32)  # noqa: E731
    return {"up": draw(WIDTH, 128), "bias": draw(128), "down": draw(128, WIDTH)}


def toy_frozen() -> dict:
    """A frozen parameter."""
    return {"rotation": jnp.eye(WIDTH, dtype=jnp.float32)}


def toy_loss(params, frozen, batch, key):
    """Squared errors under dropout, so that the key matters."""
    keep = jax.random.bernoulli(key, 0.9, batch["x"].shape)
    return plain_loss(params, frozen, batch | {"x": jnp.where(keep, batch["x"], 0)}, key)


def plain_loss(params, frozen, batch, key):
    """Squared errors."""
    dtype = params["up"].dtype
    hidden = jnp.tanh(batch["x"].astype(dtype) @ params["up"] + params["bias"][None])
    out = hidden @ params["down"] @ frozen["rotation"].astype(dtype)
    errors = jnp.sum((out.astype(jnp.float32) - batch["y"]) ** 2, axis=1)
    return jnp.sum(jnp.where(batch["counts"], errors, 0)), jnp.sum(batch["counts"], dtype="float32")


def toy_evaluate(params) -> dict[str, float]:
    """A figure that depends on all parameters, which every device has whole."""
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(params))
    return {"norm": float(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)))}


def run_together(command: list, *, processes: int = 1, devices: int = 1) -> list[str]:
    """Runs a program in processes with so many devices each; returns what they told."""
    if processes > 1:
        command = [*command, "--coordinator", free_address(), "--processes", processes]
    own = [["--process-id", n] for n in range(processes)] if processes > 1 else [[]]
    count = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": count, "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    started = [
        subprocess.Popen(
            [*map(str, [*command, *each])], env=environment, stderr=subprocess.PIPE, text=True
        )
        for each in own
    ]
    told = [process.communicate(timeout=280)[1] for process in started]
    assert [process.returncode for process in started] == [0] * processes, told
    return told


RECIPE = TrainerConfig(
    steps=12,
    batch_size=8,
    lr=1e-2,
    warmup=0.2,
    clip=5.0,
    weight_decay=0.1,
    save_every=5,
    eval_every=6,
    seed=3,
)


def toy_fit(directory: Path, config: TrainerConfig = RECIPE, **changes):
    """Trains the toy; `changes` replace arguments of `Trainer`."""
    arguments = {
        "params": toy_params(),
        "frozen": toy_frozen(),
        "loss": toy_loss,
        "batches": ToyBatches(config.batch_size),
        "evaluate": toy_evaluate,
        "tokens_per_step": config.batch_size * WIDTH,
        **changes,
    }
    return Trainer("toy", config=config, directory=directory, **arguments).fit()


def records(directory: Path) -> list[dict]:
    """The metrics, without timings."""
    timed = ("seconds", "tokens_per_second")
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name not in timed}
        for line in lines
    ]


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    """The program's options."""

    directory: Path
    recipe: tyro.conf.OmitArgPrefixes[TrainerConfig]
    processes: tyro.conf.OmitArgPrefixes[DistributedConfig]


if __name__ == "__main__":
    with program():
        options = tyro.cli(ToyConfig, default=ToyConfig(Path(), RECIPE, DistributedConfig()))
        initialize(options.processes)
        trained = toy_fit(options.directory, options.recipe)
        if is_main():
            np.savez(options.directory / "trained.npz", **trained)
