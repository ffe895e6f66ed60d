"""Re-exports from `dart_jax.decoding.drafting`, for code that still imports them from here."""

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig

__all__ = ["NgramConfig", "PromptLookupConfig"]
