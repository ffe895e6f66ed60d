"""An EAGLE-3 drafter for the demo's target."""

import dataclasses
from pathlib import Path

from dart_jax.model import DEMO
from dart_jax.models.drafter_config import DraftLayerConfig, Eagle3Config
from dart_jax.weights.checkpoint import load_drafter, save_drafter


def write_eagle3(directory: Path) -> Path:
    """Writes the demo's DART drafter as one of EAGLE-3, whose layers are the same: many of its
    drafts are right."""
    dart, params, ids = load_drafter(DEMO / "drafter")
    fields = {
        field.name: getattr(dart, field.name) for field in dataclasses.fields(DraftLayerConfig)
    }
    del params["pairs"]
    save_drafter(directory, Eagle3Config(**fields), params, ids)
    return directory
