"""Next-token loss for training the demo's language models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dart_jax.models.config import TargetConfig
from dart_jax.models.pure import Params, bind


def lm_losses(
    config: TargetConfig, params: Params, tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the sum of next-token cross-entropies, in nats, of int32 tokens [B, T + 1], and their
    count: float32 scalars."""
    target = bind(config, params)
    inputs = tokens[:, :-1]
    positions, mask = causal(*inputs.shape)
    hidden = target(inputs, positions, mask).hidden
    losses = optax.softmax_cross_entropy_with_integer_labels(target.logits(hidden), tokens[:, 1:])
    return losses.sum(), jnp.float32(losses.size)


def lm_loss(config: TargetConfig, params: Params, tokens: jax.Array) -> jax.Array:
    """Returns the mean next-token cross-entropy in nats."""
    total, count = lm_losses(config, params, tokens)
    return total / count


def causal(b: int, t: int) -> tuple[jax.Array, jax.Array]:
    """Returns positions int32 [B, T] and the causal mask [1, T, T] of unpacked sequences."""
    positions = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None], (b, t))
    return positions, jnp.tril(jnp.ones((1, t, t), bool))


def held_out_loss(config: TargetConfig, tokens: np.ndarray, length: int, batch: int = 8):
    """Returns a function from parameters to the mean loss over fixed, consecutive windows."""
    windows = len(tokens) // (length + 1)
    cut = tokens[: windows * (length + 1)].reshape(windows, length + 1).astype(np.int32)
    cut = cut[: windows // batch * batch].reshape(-1, batch, length + 1)
    loss = jax.jit(lambda params, batch: lm_loss(config, params, batch))

    def evaluate(params: Params) -> dict[str, float]:
        return {"held_out_loss": float(np.mean([loss(params, part) for part in cut]))}

    return evaluate
