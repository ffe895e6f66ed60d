"""The former place of `dart_jax.weights.checkpoint`, kept for code that imports it from here."""

from dart_jax.weights.checkpoint import load_drafter, load_target, save_drafter, save_target

__all__ = ["load_drafter", "load_target", "save_drafter", "save_target"]
