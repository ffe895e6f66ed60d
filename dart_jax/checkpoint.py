"""The former place of `dart_jax.weights.checkpoint`, kept for code that imports it from here."""

from dart_jax.weights.checkpoint import (
    load_drafter,
    load_eos,
    load_target,
    read_any_drafter_config,
    read_drafter_config,
    read_target_config,
    save_drafter,
    save_target,
)
from dart_jax.weights.checkpoint import resolve_dtype as weights_dtype  # its former name
from dart_jax.weights.drafter_files import check_features, check_fit

__all__ = [
    "check_features",
    "check_fit",
    "load_drafter",
    "load_eos",
    "load_target",
    "read_any_drafter_config",
    "read_drafter_config",
    "read_target_config",
    "save_drafter",
    "save_target",
    "weights_dtype",
]
