"""AdamW with linear warm-up, cosine decay and clipping, as the paper trains (section 4.1)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimiser; the defaults are the paper's where it names them.

    Raises:
      UserError: a number is out of range.
    """

    lr: float = 2e-5
    """Learning rate at the end of the warm-up."""
    warmup: float = 0.05
    """Segment of the steps in which the learning rate rises, from 0 to below 1."""
    final_lr: float = 0.0
    """Segment of the learning rate that is left at the end of its cosine."""
    clip: float = 0.5
    """Largest global norm of a gradient."""
    b1: float = 0.9
    """Decay of the mean of gradients."""
    b2: float = 0.999
    """Decay of the mean of squared gradients."""
    weight_decay: float = 0.0
    """Of matrices; vectors never decay."""

    def __post_init__(self) -> None:
        for name in ("warmup", "b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 0 and below 1")
        if self.lr <= 0 or self.clip <= 0:
            raise UserError(f"--lr {self.lr:g} and --clip {self.clip:g} must be above 0")


def learning_rate(config: OptimizerConfig, step: jax.Array, steps: int) -> jax.Array:
    """float32 scalar: the rate of one step, int32, counted from 0, of `steps`."""
    warmup = round(config.warmup * steps)
    at = step.astype(jnp.float32)
    progress = jnp.clip((at - warmup) / max(steps - warmup, 1), 0, 1)
    cosine = config.final_lr + (1 - config.final_lr) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return config.lr * jnp.where(at < warmup, (at + 1) / max(warmup, 1), cosine)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The optimiser of a run of `steps` updates."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            lambda step: learning_rate(config, jnp.asarray(step), steps),
            b1=config.b1,
            b2=config.b2,
            weight_decay=config.weight_decay,
            mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
        ),
    )
