"""Coupled drafting: candidates are ranked with the noise that the target's draws will have.

The target draws the argmax of log p / T + g, and the Gumbel noise g of a position depends on (key
of the row, position) alone, so it is known before anything is drafted. A drafter that predicts q
therefore proposes the largest log q / T + g: where q is near p, mostly the very token that will be
drawn. A draft is accepted if it equals the draw, so the output cannot change (docs/method.md,
section 5).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting.base import DraftInput
from dart_jax.decoding.penalties import penalize_repetition
from dart_jax.decoding.sampling import add_noise, filters, is_greedy, scale_and_filter
from dart_jax.decoding.vocabulary import WHOLE, Vocabulary


def coupled(
    inputs: DraftInput,
    logits: jax.Array,
    draft_ids: jax.Array,
    noise: jax.Array | None,
    vocabulary: Vocabulary = WHOLE,
) -> jax.Array:
    """Adds the noise to a drafter's logits, which are first treated as the target's are.

    Args:
      inputs: how the target samples.
      logits: float32 [B, T, Vd], the drafter's; without noise they are returned as they are.
      draft_ids: int32 [Vd], the target's id of every draft id.
      noise: float32 [B, T, V], or [B, 1, V] for all rows, of the draws that the logits predict;
        None if drafts must do without.
      vocabulary: the draft vocabulary, of whose logits each device may have a part.

    Returns:
      float32 [B, T, Vd]; -inf for tokens that the filters leave out.
    """
    if noise is None:
        return logits
    penalty = inputs.sampling.repetition_penalty
    if inputs.seen is not None and penalty is not None:
        seen = jnp.take(inputs.seen, vocabulary.local_shard(draft_ids), axis=-1)
        logits = penalize_repetition(penalty, logits, seen[:, None])
    if filters(inputs.sampling):
        filtered = scale_and_filter(inputs.sampling, logits, vocabulary)
        rows = jnp.take(noise, vocabulary.local_shard(draft_ids), axis=-1)
        return filtered + jnp.where(is_greedy(inputs.sampling, logits.ndim), 0, rows)
    levels = jnp.minimum(jnp.arange(logits.shape[1], dtype=jnp.int32), noise.shape[1] - 1)
    levels = jnp.broadcast_to(levels, logits.shape[:2])
    return add_noise(inputs.sampling, logits, noise, levels, draft_ids, vocabulary)
