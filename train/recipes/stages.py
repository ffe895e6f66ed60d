"""Programs of several stages: their directories, recipes of drafters, and packaged weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dart_jax.files import check_writable
from dart_jax.weights.checkpoint import load_drafter, save_drafter
from train.drafter.config import DrafterTraining
from train.drafter.program import train
from train.run import config_file, work_directory

# Positions that packaged DART drafters see: with fewer they accept less, and with more they accept
# less in contexts longer than training's.
WINDOW = 256

_PLACES = ("work", "export")  # a program's directories, which may move


def begin(config: Any, result: str, **further: str) -> None:
    """Opens the directories `work` and `export` of a config and records its options and `further`
    ones; raises UserError if `work` holds a `result`, in words, of other options."""
    for directory in filter(None, (config.work, config.export)):
        check_writable(directory, directory=True)
    options = {name: value for name, value in vars(config).items() if name not in _PLACES}
    settings = {f"--{name.replace('_', '-')}": value for name, value in options.items()} | further
    work_directory.check_settings(config.work, settings, result=result)


def train_recipe(name: str, options: Iterable[object]) -> Path:
    """Trains a drafter, or goes on with it, by a recipe beside this file and further options,
    which override it; returns the drafter's directory."""
    recipe = Path(__file__).with_name(f"{name}.toml")
    args = ["--config", str(recipe), *map(str, options)]
    return train(config_file.parse(DrafterTraining, args, None))


def package(trained: Path, directory: Path, window: int | None = None) -> None:
    """Writes a trained drafter, with a window if there is one (`with_window`)."""
    drafter, params, ids = load_drafter(trained)
    drafter = drafter if window is None else drafter.with_window(window)
    save_drafter(directory, drafter, params, ids)
