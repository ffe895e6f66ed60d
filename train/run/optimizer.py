"""AdamW with linear warm-up, cosine decay and clipping, as in the paper (section 4.1); or Muon."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.typing import ArrayLike

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least

# Muon's own momentum, and the root mean square of AdamW's updates at a learning rate of 1, both as
# in arXiv 2502.16982.
_MUON_MOMENTUM = 0.95
_ADAMW_RMS = 0.2

# Parameters with a row or column for every token of a vocabulary.
_TABLES = frozenset({"embed_tokens", "lm_head", "prev", "next"})


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser; the defaults are the paper's where it states them."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon orthogonalises the updates of matrices (Jordan 2024), scaled to the size of AdamW's
    (arXiv 2502.16982); embeddings, heads and vectors are AdamW's, with Nesterov's momentum."""
    lr: float = 2e-5
    """Learning rate at the end of the warm-up."""
    warmup: float = 0.05
    """Fraction of the steps over which the learning rate rises, from 0 to below 1."""
    final_lr: float = 0.0
    """Final learning rate, at the end of the cosine, as a fraction of --lr."""
    clip: float = 0.5
    """Gradients are clipped to this global norm; inf does not clip."""
    b1: float = 0.9
    """Decay of the running mean of gradients."""
    b2: float = 0.999
    """Decay of the running mean of squared gradients."""
    weight_decay: float = 0.0
    """Weight decay of matrices; vectors are not decayed."""

    def __post_init__(self) -> None:
        for name in ("warmup", "b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 0 and below 1")
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be a finite number above 0, got {self.lr:g}")
        if not self.clip > 0:
            raise UserError(f"--clip must be above 0, got {self.clip:g}")
        if not 0 <= self.final_lr <= 1:
            raise UserError(f"--final-lr must be a fraction of --lr, 0 to 1, got {self.final_lr:g}")
        check_least(self, weight_decay=0)


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
