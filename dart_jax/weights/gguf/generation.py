"""The `generation_config.json` of a GGUF file: what ends a text, and how its authors sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_jax.weights.gguf.tokenizer import stop_ids

# Fields of general.sampling -> their names in `transformers`.
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_NOT_SUPPORTED = ("mirostat", "xtc_probability")  # unless 0


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `generation_config.json` of a model."""
    config: dict[str, Any] = {"eos_token_id": stop_ids(metadata) or None}
    for field, name in _SAMPLING.items():
        value = metadata.get(f"general.sampling.{field}")
        if value is not None:
            config[name] = float(f"{value:.6g}") if isinstance(value, float) else value
    if len(config) > 1:
        config["do_sample"] = config.get("temperature") != 0
    return config


def sampling_notes(metadata: Mapping[str, Any]) -> list[str]:
    """Returns what whoever reads that config should know."""
    fields = [f"general.sampling.{name}" for name in _NOT_SUPPORTED]
    return [
        f"the GGUF file recommends {field} = {metadata[field]:g}, which is not supported"
        for field in fields
        if metadata.get(field)
    ]
