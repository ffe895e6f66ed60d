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

from dart_jax.cache import KVCache, extend
from dart_jax.config import TargetConfig
from dart_jax.drafting.base import Known, Proposal
from dart_jax.pure import bind
from dart_jax.sampling import draw, mark, penalize
from dart_jax.tree import chain


@dataclasses.dataclass(frozen=True)
class DraftModel:
    """See `dart_jax.drafting.base.Drafting`; its memory is the small model's cache of all known
    tokens, the root included.

    Attributes:
      config: the small model's shapes; its vocabulary is the target's.
      nodes: tokens drafted, N.
    """

    config: TargetConfig
    nodes: int
    positions = candidates = 0
    searches = False

    @property
    def depth(self) -> int:
        """Deepest level of a tree: all its nodes stand in one line."""
        return self.nodes

    def __call__(self, memory: KVCache, known: Known) -> tuple[KVCache, Proposal]:
        """Drafts; see the protocol."""
        model = bind(self.config, known.params["drafter"])
        tokens, positions, last, start = known.following, known.positions + 1, known.last, None
        if known.start is None:
            # The first token of all follows none.
            tokens = jnp.concatenate([known.tokens[:, :1], tokens], axis=1)
            positions = jnp.concatenate([known.positions, positions[:, -1:]], axis=1)
            last = last + 1
        else:
            start = known.start + 1
        rows = tokens.shape[1]
        causal = jnp.tril(jnp.ones((1, rows, rows), bool))
        cache = memory if start is not None else None
        out = model(tokens, positions, causal, cache, start)
        memory = extend(memory, out.rows, start, known.capacity)
        length = last + 1 if start is None else start + last + 1
        hidden = jnp.take_along_axis(out.hidden, last[:, None, None], axis=1)

        def next_token(hidden: jax.Array, length: jax.Array, seen: jax.Array | None) -> jax.Array:
            at, level = length[:, None], jnp.zeros_like(length)[:, None]
            logits = model.logits(hidden)
            if seen is not None and known.sampling.repetition_penalty is not None:
                logits = penalize(known.sampling.repetition_penalty, logits, seen[:, None])
            return draw(known.sampling, logits, known.seed, at, level)

        def grow(carry: tuple[KVCache, jax.Array, jax.Array, jax.Array | None], _: None):
            cache, token, length, seen = carry
            seen = None if seen is None else mark(seen, token)
            out = model(token, length[:, None], jnp.ones((1, 1, 1), bool), cache, length)
            cache = extend(cache, out.rows, length, known.capacity)
            drafted = next_token(out.hidden, length + 1, seen)
            return (cache, drafted, length + 1, seen), drafted

        first = next_token(hidden, length, known.seen)
        # Rows of drafted tokens lie beyond the known ones, where the next call writes.
        carry = (memory, first, length, known.seen)
        (memory, *_), later = jax.lax.scan(grow, carry, None, self.nodes - 1)
        drafted = jnp.concatenate([first, later[:, :, 0].swapaxes(0, 1)], axis=1)
        root = jnp.take_along_axis(known.following, known.last[:, None], axis=1)
        return memory, Proposal(chain(root, drafted, jnp.full_like(length, self.nodes)))
