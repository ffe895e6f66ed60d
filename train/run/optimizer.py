"""AdamW with linear warm-up, cosine decay and clipping, as in the paper (section 4.1); or Muon."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.typing import ArrayLike

from train.run.config import OptimizerConfig

# Muon's own momentum, and the root mean square of AdamW's updates at a learning rate of 1, both as
# in arXiv 2502.16982.
_MUON_MOMENTUM = 0.95
_ADAMW_RMS = 0.2

# Parameters with a row or column for every token of a vocabulary.
_TABLES = frozenset({"embed_tokens", "lm_head", "prev", "next"})


def learning_rate(config: OptimizerConfig, step: jax.Array, steps: int) -> jax.Array:
    """Returns the learning rate, a float32 scalar, of int32 `step`, from 0, out of `steps`."""
    warmup = round(config.warmup * steps)
    at = step.astype(jnp.float32)
    progress = jnp.clip((at - warmup) / max(steps - warmup, 1), 0, 1)
    cosine = config.final_lr + (1 - config.final_lr) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return config.lr * jnp.where(at < warmup, (at + 1) / max(warmup, 1), cosine)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Returns the optimiser at a learning rate of 1: its updates are to be multiplied by it."""

    # A number would do; but with a function the state counts steps, as in earlier checkpoints.
    def rate(_: ArrayLike) -> jax.Array:
        return jnp.ones((), jnp.float32)

    def is_matrix(params: Any) -> Any:
        return jax.tree.map(lambda p: p.ndim > 1, params)

    if config.optimizer == "adamw":
        update = optax.adamw(
            rate, b1=config.b1, b2=config.b2, weight_decay=config.weight_decay, mask=is_matrix
        )
    else:
        update = optax.contrib.muon(
            rate,
            beta=_MUON_MOMENTUM,
            weight_decay=config.weight_decay,
            weight_decay_mask=is_matrix,
            adam_b1=config.b1,
            adam_b2=config.b2,
            adam_weight_decay=config.weight_decay,
            muon_weight_dimension_numbers=_orthogonalised,
            consistent_rms=_ADAMW_RMS,
        )
    return optax.chain(optax.clip_by_global_norm(config.clip), update)


def _orthogonalised(params: Any) -> Any:
    """Marks the matrices that Muon updates: those from hidden states to hidden states."""

    def dimensions(path: tuple[Any, ...], leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        names = {str(getattr(key, "key", key)) for key in path}
        inner = leaf.ndim == 2 and not names & _TABLES
        return optax.contrib.MuonDimensionNumbers() if inner else None

    return jax.tree_util.tree_map_with_path(dimensions, params)
