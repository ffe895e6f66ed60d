"""Speculative sampling with a small model of the target's kind (Leviathan et al., arXiv 2211.17192;
Chen et al., arXiv 2302.01318): it drafts the next N tokens autoregressively.

With a temperature it samples with the target's own noise at each position, so that
both draw the same token wherever their distributions are alike; or, without the noise, it drafts
the most likely tokens. As with every drafting method, the target's draws are unchanged; the
original method instead accepts drafts by a separate random number.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, PromptRows, Proposal
from dart_jax.decoding.logits import mark_seen, penalize
from dart_jax.decoding.sampling import SamplingValues, draw
from dart_jax.decoding.tree import chain
from dart_jax.models.attention.compaction import extend, keep_rows
from dart_jax.models.cache import Cache, first_rows, order_after
from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import bind


@dataclasses.dataclass(frozen=True)
class DraftModel(DraftingMethod):
    """Drafts with a small model (see the base class); `draft_state` is its KV cache of all tokens
    of the sequence, including the root. Its vocabulary is the target's, though it may be padded to
    another size."""

    config: TargetConfig
    nodes: int

    def read(self, draft_state: Cache, rows: PromptRows) -> Cache:
        """Reads rows of the prompts; see the base class."""
        model = bind(self.config, rows.params["drafter"], rows.options)
        count = rows.tokens.shape[1]
        causal = jnp.tril(jnp.ones((1, count, count), bool))
        before = first_rows(draft_state, rows.filled)
        out = model(self._known(rows.tokens), rows.positions, causal, before, rows.start)
        return keep_rows(draft_state, out.rows, rows.start, rows.options.attention)

    def __call__(self, draft_state: Cache, inputs: DraftInput) -> tuple[Cache, Proposal]:
        """Drafts; see the base class."""
        model = bind(self.config, inputs.params["drafter"], inputs.options)
        # The rows of accepted tokens are in the cache since they were drafted, except for the last
        # drafted token and the bonus token after it. So run the two newest tokens.
        last = inputs.last[:, None]
        before, root, place = (
            jnp.take_along_axis(x, last, axis=1)
            for x in (inputs.tokens, inputs.next_tokens, inputs.positions)
        )
        tokens = self._known(jnp.concatenate([before, root], axis=1))
        positions = jnp.concatenate([place, place + 1], axis=1)
        causal = jnp.tril(jnp.ones((1, 2, 2), bool))
        out = model(tokens, positions, causal, draft_state, place[:, 0])

        noise, sampling = inputs.noise, inputs.sampling
        if noise is None:  # the likeliest tokens
            sampling = SamplingValues(repetition_penalty=sampling.repetition_penalty)

        def next_token(
            hidden: jax.Array, level: jax.Array, seen: jax.Array | None
        ) -> tuple[jax.Array, jax.Array]:
            """Returns tokens and their log-probabilities, [B, 1] each."""
            logits = _resized(model.logits(hidden), inputs.target.config.vocab_size)
            logits = penalize(sampling, logits, None if seen is None else seen[:, None])
            own = None if noise is None else noise.at(level)
            drawn = draw(sampling, logits, own, jnp.zeros_like(place))
            log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), drawn[..., None], axis=2)
            return drawn, log_p[..., 0]

        at = place + 2
        first, first_log_p = next_token(out.hidden[:, 1:], jnp.int32(0), inputs.seen)
        kernel = inputs.options.attention
        draft_state = extend(draft_state, out.rows, order_after(first, place[:, 0]), kernel)

        def grow(carry: tuple[Cache, jax.Array, jax.Array, jax.Array | None], level: jax.Array):
            cache, token, at, seen = carry
            seen = None if seen is None else mark_seen(seen, token)
            out = model(token, at, jnp.ones((1, 1, 1), bool), cache, at[:, 0])
            drafted, log_p = next_token(out.hidden, level, seen)
            # Rows of drafted tokens are written after the sequence; the next call overwrites those
            # of rejected tokens.
            cache = extend(cache, out.rows, order_after(drafted, at[:, 0]), kernel)
            return (cache, drafted, at + 1, seen), (drafted, log_p)

        carry = (draft_state, first, at, inputs.seen)
        levels = jnp.arange(1, self.nodes, dtype=jnp.int32)
        (draft_state, *_), later = jax.lax.scan(grow, carry, levels)
        drafted, log_p = (
            jnp.concatenate([one, others[:, :, 0].swapaxes(0, 1)], axis=1)
            for one, others in zip((first, first_log_p), later, strict=True)
        )
        count = jnp.full_like(inputs.last, self.nodes)
        return draft_state, Proposal(chain(root, drafted, count, jnp.cumsum(log_p, axis=1)))

    def _known(self, tokens: jax.Array) -> jax.Array:
        """Returns the tokens, or the model's last one for those that only the target has."""
        return jnp.minimum(tokens, self.config.vocab_size - 1)


def _resized(logits: jax.Array, size: int) -> jax.Array:
    """Float32 [B, T, Vd] -> [B, T, V]: without tokens that only the drafter has, and none of those
    that only the target has."""
    logits = logits[..., :size]
    missing = size - logits.shape[-1]
    return jnp.pad(logits, ((0, 0), (0, 0), (0, missing)), constant_values=-jnp.inf)
