"""The target's logits at the nodes of a tree: processors that change them, and reported scores.

`sampling.py` draws tokens from the processed logits.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.decoding.options import LogitsConfig, LogitsProcessor
from dart_jax.decoding.sampling import SamplingValues, divided, per_row, scale_and_filter
from dart_jax.decoding.tree import DraftTree
from dart_jax.decoding.vocabulary import WHOLE, Vocabulary
from dart_jax.errors import UserError


class TokenScores(NamedTuple):
    """Report about P emitted tokens; a field that was not requested is None.

    Log-probabilities are the target's own: of its logits before penalty, processors, temperature
    and filters. Scores are what tokens are drawn from, as in `transformers`.

    Attributes:
      logprobs: float32 [B, P], of the emitted tokens.
      top_ids: int32 [B, P, k], the most likely tokens, in order.
      top_logprobs: float32 [B, P, k], theirs.
      scores: float32 [B, P, V], logits after penalty and processors and, unless decoding is greedy,
        divided by the temperature and filtered (-inf).
      ranks: int32 [B, P], how many tokens are likelier than the one that is there, and 1; of tokens
        of prompts.
    """

    logprobs: jax.Array | None = None
    top_ids: jax.Array | None = None
    top_logprobs: jax.Array | None = None
    scores: jax.Array | None = None
    ranks: jax.Array | None = None


def process(
    processors: tuple[LogitsProcessor, ...],
    logits: jax.Array,
    tokens: jax.Array,
    length: jax.Array,
) -> jax.Array:
    """Applies processors to every row; raises UserError if one returns another shape.

    Args:
      processors: see `LogitsProcessor`.
      logits: float32 [..., V].
      tokens: int32 [..., S], each row's sequence, -1 beyond its length.
      length: int32 [...].
    """
    if logits.ndim > 1:
        return jax.vmap(partial(process, processors))(logits, tokens, length)
    for processor in processors:
        made = jnp.asarray(processor(tokens, logits, length), jnp.float32)
        if made.shape != logits.shape:
            raise UserError(
                f"a logits processor returns an array of shape {made.shape}; it must be "
                f"{logits.shape}, one number per token"
            )
        logits = made
    return logits


def leave_out(masks: jax.Array, logits: jax.Array, vocabulary: Vocabulary = WHOLE) -> jax.Array:
    """Sets the logits of tokens that may not follow to -inf.

    Args:
      masks: uint32 [B, n, W], the tokens that may follow each node, 32 to a word, the lowest bit
        first; nodes after the first n may be followed by any.
      logits: float32 [B, T, V] of the nodes, or a device's part of them.
      vocabulary: see `Vocabulary`.
    """
    masks = jnp.pad(
        masks,
        ((0, 0), (0, logits.shape[1] - masks.shape[1]), (0, 0)),
        constant_values=jnp.uint32(2**32 - 1),
    )
    places = jnp.arange(32, dtype=jnp.uint32)[None, None, None]
    bits = masks[..., None] >> places & 1
    size = logits.shape[-1] * vocabulary.shards
    allowed = bits.reshape(*masks.shape[:2], -1)[..., :size] > 0
    return jnp.where(vocabulary.local_shard(allowed), logits, -jnp.inf)


def sequences_at_nodes(
    tokens: jax.Array, length: jax.Array, tree: DraftTree, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the sequence that ends with each node: int32 [B, N + 1, S], and its length.

    Args:
      tokens: int32 [B, S], the sequences up to the root; what comes after does not count.
      length: int32 [B], tokens before the root.
      tree: the draft tree.
      mask: its `ancestor_mask`.
    """
    position = length[:, None] + tree.depth
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    tokens = jnp.where(place <= length[:, None], tokens, -1)

    def row(tokens: jax.Array, drafted: jax.Array, position: jax.Array, seen: jax.Array):
        at = jnp.where(seen, position, tokens.shape[0])
        return tokens.at[at].set(drafted, mode="drop")

    of_tree = jax.vmap(row, in_axes=(None, None, None, 0))
    return jax.vmap(of_tree)(tokens, tree.tokens, position, mask), position + 1


def append_tokens(
    sequences: jax.Array, tokens: jax.Array, count: jax.Array, at: jax.Array
) -> jax.Array:
    """Writes the first `count` [B] of `tokens` [B, P] into `sequences` [B, S] from `at` [B]."""
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    index = jnp.where(place < count[:, None], at[:, None] + place, sequences.shape[1])
    rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
    return sequences.at[rows, index].set(tokens, mode="drop")


def token_scores(
    config: LogitsConfig,
    sampling: SamplingValues,
    logits: jax.Array,
    processed: jax.Array,
    tokens: jax.Array,
    vocabulary: Vocabulary = WHOLE,
) -> TokenScores | None:
    """Returns what is reported about the tokens, or None if nothing is requested.

    Args:
      config: what is requested.
      sampling: how tokens are drawn.
      logits: float32 [B, P, V], the target's.
      processed: float32 [B, P, V], the same after penalty and processors.
      tokens: int32 [B, P], drawn from them.
      vocabulary: of whose logits each device may have a part, unless scores are requested.
    """
    if config.logprobs is None and not config.scores:
        return None
    found = TokenScores()
    if config.logprobs is not None:
        found = log_probabilities(logits, tokens, config.logprobs, vocabulary)
    if config.scores:
        scores = processed
        if sampling.temperature is not None:
            largest = jnp.finfo(jnp.float32).max
            scaled = jnp.clip(divided(sampling, processed), -largest, largest)
            kept = scale_and_filter(sampling, processed) > -jnp.inf
            scores = jnp.where(kept, scaled, -jnp.inf)
        found = found._replace(scores=scores)
    return found


def log_probabilities(
    logits: jax.Array, tokens: jax.Array, count: int, vocabulary: Vocabulary
) -> TokenScores:
    """Returns the log-probabilities of tokens [B, P] and of the `count` most likely ones in their
    places; for the others see `token_scores`."""
    logprobs = vocabulary.log_softmax(logits)
    chosen = vocabulary.at(logprobs, tokens)
    top, ids = vocabulary.top_k(logprobs, count)
    return TokenScores(chosen[:, :, 0], ids.astype(jnp.int32), top)


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
