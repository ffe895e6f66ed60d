"""Speculative sampling with a small model of the target's kind (Leviathan et al., arXiv 2211.17192;
Chen et al., arXiv 2302.01318): it writes the next N tokens one by one.

At a temperature it draws with the target's own noise, position by position, so that both draw the
same token wherever their distributions are alike. The target's draws stay what they are without
it, as with every other way of drafting; the original accepts drafts by a random number of its own.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.decoding.sampling import draw, mark, penalize_repetition
from dart_jax.decoding.tree import chain
from dart_jax.models.cache import KVCache, cache_from, extend, wait_for
from dart_jax.models.config import TargetConfig
from dart_jax.models.pure import bind


@dataclasses.dataclass(frozen=True)
class DraftModel(DraftingMethod):
    """See `dart_jax.decoding.drafting.base.DraftingMethod`; its memory is the small model's cache of all known
    tokens, the root included.

    Attributes:
      config: the small model's shapes; its vocabulary is the target's.
      nodes: tokens drafted, N.
    """

    config: TargetConfig
    nodes: int

    def __call__(self, memory: KVCache | None, inputs: DraftInput) -> tuple[KVCache, Proposal]:
        """Drafts; see the base class."""
        model = bind(self.config, inputs.params["drafter"])
        if memory is None:
            rows = inputs.tokens.shape[1]
            causal = jnp.tril(jnp.ones((1, rows, rows), bool))
            out = model(inputs.tokens, inputs.positions, causal)
            memory = cache_from(out.rows, inputs.capacity)

        # The rows of accepted tokens are in the cache since they were drafted, but for the last one
        # that was drafted and the target's own behind it: the two newest tokens run.
        last = inputs.last[:, None]
        before, root, place = (
            jnp.take_along_axis(x, last, axis=1)
            for x in (inputs.tokens, inputs.following, inputs.positions)
        )
        tokens = jnp.concatenate([before, root], axis=1)
        positions = jnp.concatenate([place, place + 1], axis=1)
        causal = jnp.tril(jnp.ones((1, 2, 2), bool))
        out = model(tokens, positions, causal, memory, place[:, 0])

        def next_token(hidden: jax.Array, at: jax.Array, seen: jax.Array | None) -> jax.Array:
            logits = model.logits(hidden)
            if seen is not None and inputs.sampling.repetition_penalty is not None:
                logits = penalize_repetition(
                    inputs.sampling.repetition_penalty, logits, seen[:, None]
                )
            return draw(inputs.sampling, logits, inputs.seed, at, jnp.zeros_like(at))

        at = place + 2
        first = next_token(out.hidden[:, 1:], at, inputs.seen)
        memory = extend(memory, out.rows, wait_for(first, place[:, 0]))

        def grow(carry: tuple[KVCache, jax.Array, jax.Array, jax.Array | None], _: None):
            cache, token, at, seen = carry
            seen = None if seen is None else mark(seen, token)
            out = model(token, at, jnp.ones((1, 1, 1), bool), cache, at[:, 0])
            drafted = next_token(out.hidden, at + 1, seen)
            # Rows of drafted tokens lie beyond the known ones; of rejected ones the next call
            # writes over them.
            cache = extend(cache, out.rows, wait_for(drafted, at[:, 0]))
            return (cache, drafted, at + 1, seen), drafted

        carry = (memory, first, at, inputs.seen)
        (memory, *_), later = jax.lax.scan(grow, carry, None, self.nodes - 1)
        drafted = jnp.concatenate([first, later[:, :, 0].swapaxes(0, 1)], axis=1)
        count = jnp.full_like(inputs.last, self.nodes)
        return memory, Proposal(chain(root, drafted, count))
