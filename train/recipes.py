"""Recipes of drafters that are trained one after the other, and how their weights are packaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp

from dart_jax.models.pure import Params
from dart_jax.weights.checkpoint import load_drafter, save_drafter
from train.drafter import DrafterTraining, train
from train.run import config_file


def train_recipe(recipe: Path, options: Mapping[str, object]) -> Path:
    """Trains a drafter, or goes on with it.

    Args:
      recipe: a file of options for `train.drafter`.
      options: further ones, which override it, by name.

    Returns:
      The directory of the drafter.

    Raises:
      UserError: as `train.drafter.train`.
    """
    args = [str(word) for option in options.items() for word in option]
    return train(config_file.parse(DrafterTraining, ["--config", str(recipe), *args], None))


def half(params: Params) -> Params:
    """Returns the parameters in bfloat16, in which models are packaged."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)


def package(trained: Path, directory: Path) -> None:
    """Writes a trained drafter in bfloat16."""
    drafter, params, ids = load_drafter(trained)
    save_drafter(directory, drafter, half(params), ids)
