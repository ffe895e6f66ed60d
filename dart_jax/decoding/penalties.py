"""What changes logits before they are divided by the temperature: penalties and bias."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.decoding.sampling import SamplingValues, per_row


def penalize(
    sampling: SamplingValues,
    logits: jax.Array,
    seen: jax.Array | None = None,
    counts: jax.Array | None = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Applies all that changes logits before they are divided by the temperature.

    Args:
      sampling: the penalties.
      logits: float32 [B, ..., V].
      seen: bool, as the logits: tokens of the sequence so far; needed for a repetition penalty.
      counts: int32, as the logits: occurrences in the new text; needed for the other penalties.
      bias: float32, broadcastable to the logits; added first.
    """
    if bias is not None:
        logits = logits + bias
    if seen is not None and sampling.repetition_penalty is not None:
        logits = penalize_repetition(sampling.repetition_penalty, logits, seen)
    if counts is not None and sampling.frequency_penalty is not None:
        number = counts.astype(jnp.float32)
        logits = logits - per_row(sampling.frequency_penalty, logits.ndim) * number
    if counts is not None and sampling.presence_penalty is not None:
        penalty = per_row(sampling.presence_penalty, logits.ndim)
        logits = logits - jnp.where(counts > 0, penalty, 0)
    return logits


def penalize_repetition(penalty: jax.Array, logits: jax.Array, seen: jax.Array) -> jax.Array:
    """Lowers the logits of the tokens set in `seen`, bool [B, ..., V] like the logits."""
    penalty = per_row(penalty, logits.ndim)
    lowered = jnp.where(logits < 0, logits * penalty, logits / penalty)
    return jnp.where(seen, lowered, logits)


def count_tokens(counts: jax.Array, tokens: jax.Array) -> jax.Array:
    """Adds `tokens`, int32 [..., n], to `counts`, int32 [..., V]; -1 is ignored."""
    if counts.ndim > 1:
        return jax.vmap(count_tokens)(counts, tokens)
    return counts.at[jnp.where(tokens < 0, counts.shape[0], tokens)].add(1, mode="drop")


def mark_seen(seen: jax.Array, tokens: jax.Array) -> jax.Array:
    """Sets `tokens`, int32 [..., n], in `seen`, bool [..., V]; -1 is ignored."""
    if seen.ndim > 1:
        return jax.vmap(mark_seen)(seen, tokens)
    # Indices beyond the end are dropped; -1 would index the last token.
    return seen.at[jnp.where(tokens < 0, seen.shape[0], tokens)].set(True, mode="drop")
