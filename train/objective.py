"""The drafter's objective (paper, section 3.3; `docs/method.md`, section 6): annealed KL.

    sum over t = 1..d of gamma**(t - 1) * KL(target(. | x[:n + t + 1]) || draft(. | x[:n + 2], t))

for anchors n, which are rows counted from 0: row n holds the feature of x[n] and the embedding of
x[n + 1]. Every anchor has its own block of mask rows; since these differ by rotary position alone,
the drafter computes their keys once for all blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.config import DrafterConfig, TargetConfig
from dart_jax.errors import UserError
from dart_jax.pure import Params, bind
from train.data import Array
from train.lm import causal
from train.regenerate import Sequences


def anchored_logits(
    target_config: TargetConfig,
    target_params: Params,
    config: DrafterConfig,
    params: Params,
    tokens: Array,
    anchors: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The teacher's and the drafter's logits at the same predictions.

    Args:
      target_config: of the frozen target.
      target_params: its parameters; no gradient reaches them.
      config: of the drafter.
      params: its parameters.
      tokens: int32 [B, T].
      anchors: int32 [B, A]; n + d must be below T.

    Returns:
      float32 [B, A, d, V] twice, teacher first; the draft vocabulary must be the target's.
    """
    target = bind(target_config, jax.lax.stop_gradient(target_params))
    positions, mask = causal(*tokens.shape)
    out = target(tokens, positions, mask)
    following = target.embed(jnp.roll(tokens, -1, axis=1))
    draft, _ = bind(config, params)(out.features, following, positions, anchors)
    steps = jnp.arange(1, config.num_positions + 1, dtype=jnp.int32)
    taught = (anchors[:, :, None] + steps[None, None]).reshape(tokens.shape[0], -1)
    hidden = jnp.take_along_axis(out.hidden, taught[:, :, None], axis=1)
    return jax.lax.stop_gradient(target.logits(hidden)).reshape(draft.shape), draft


def annealed_kl(teacher: jax.Array, draft: jax.Array, gamma: float) -> jax.Array:
    """Mean over anchors of the annealed sum over t, in nats."""
    log_p, log_q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(draft)
    kl = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)  # [B, A, d]
    weights = gamma ** jnp.arange(kl.shape[-1], dtype=jnp.float32)
    return jnp.mean(kl @ weights)


class AnchorBatches(NamedTuple):
    """Batches of sequences whose content depends on (seed, step) alone."""

    sequences: Sequences
    batch: int
    seed: int = 0

    def __call__(self, step: int) -> Sequences:
        """int32 [B, T] tokens and [B] lengths; every sequence once an epoch."""
        per_epoch = len(self.sequences.length) // self.batch
        if per_epoch < 1:
            raise UserError(
                f"{len(self.sequences.length)} sequences are too few for batches of {self.batch}"
            )
        epoch, index = divmod(step, per_epoch)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.sequences.length))
        rows = order[index * self.batch :][: self.batch]
        return Sequences(self.sequences.tokens[rows].astype(np.int32), self.sequences.length[rows])


def draw_anchors(key: jax.Array, length: Array, count: int, horizon: int) -> jax.Array:
    """int32 [B, count], uniform over positions with `horizon` successors in the sequence."""
    uniform = jax.random.uniform(key, (length.shape[0], count))
    room = jnp.maximum(length - horizon, 1)[:, None]
    drawn = (uniform * room.astype(jnp.float32)).astype(jnp.int32)
    return jnp.minimum(drawn, room - 1)


def agreement(teacher: jax.Array, draft: jax.Array) -> jax.Array:
    """How often the most likely tokens agree, by position: float32 [d]."""
    same = jnp.argmax(teacher, -1) == jnp.argmax(draft, -1)
    return jnp.mean(same.astype(jnp.float32), axis=(0, 1))
