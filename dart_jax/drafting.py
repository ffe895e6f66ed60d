"""The former place of `dart_jax.decoding.drafting`, kept for code that imports it from here."""

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig

__all__ = ["NgramConfig", "PromptLookupConfig"]
