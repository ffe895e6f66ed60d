"""Drafters with a smaller draft vocabulary than they were trained with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from dart_jax.weights.checkpoint import load_drafter, save_drafter
from train.objective.draft_ids import with_draft_ids


def cut(directory: Path, tokens: np.ndarray, new: Path) -> Path:
    """Writes a drafter that has only some of another one's draft vocabulary.

    Args:
      directory: of a drafter as wide as its target.
      tokens: target ids to keep, int [n], of which the drafter may lack some.
      new: the directory to write, which is returned.
    """
    config, params, ids = load_drafter(directory)
    kept = np.flatnonzero(np.isin(ids, tokens))
    smaller = dataclasses.replace(config, draft_vocab_size=len(kept))
    save_drafter(new, smaller, with_draft_ids(params, kept), ids[kept])
    return new
