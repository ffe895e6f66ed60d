"""Re-exports from `dart_jax.weights.checkpoint`, for code that still imports them from here."""

from dart_jax.weights.checkpoint import load_drafter, load_target, save_drafter, save_target

__all__ = ["load_drafter", "load_target", "save_drafter", "save_target"]
