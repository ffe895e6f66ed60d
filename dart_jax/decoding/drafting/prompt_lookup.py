"""Prompt lookup: what followed the last tokens where they stood before is drafted once more.

As in Saxena's prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding), which
`transformers` calls `prompt_lookup_num_tokens`; both take the first place where the tokens stood,
this the latest.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting.base import DraftingMethod, DraftInput, Proposal
from dart_jax.decoding.tree import chain
from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class PromptLookupConfig:
    """How much must agree.

    Attributes:
      longest: tokens that are looked for first; then one less, and so on.
      shortest: tokens that are looked for last.

    Raises:
      UserError: not 1 <= shortest <= longest.
    """

    longest: int = 3
    shortest: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise UserError(
                f"prompt lookup wants 1 <= shortest <= longest, got {self.shortest} and "
                f"{self.longest}"
            )


@dataclasses.dataclass(frozen=True)
class PromptLookup(DraftingMethod):
    """See `dart_jax.decoding.drafting.base.DraftingMethod`; its memory is all known tokens, int32 [B, S].

    Attributes:
      config: how much must agree.
      nodes: tokens drafted at most, N.
    """

    config: PromptLookupConfig
    nodes: int

    def __call__(self, memory: jax.Array | None, inputs: DraftInput) -> tuple[jax.Array, Proposal]:
        """Drafts; see the base class."""
        if memory is None:
            memory = jnp.pad(inputs.tokens[:, :1], ((0, 0), (0, inputs.capacity - 1)))
        write = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new, (at,)))
        text = write(memory, inputs.following, inputs.start + 1)
        length = inputs.start + inputs.last + 2
        drafted, count = jax.vmap(self._look_up)(text, length)
        root = jnp.take_along_axis(text, length[:, None] - 1, axis=1)
        return text, Proposal(chain(root, drafted, count))

    def _look_up(self, text: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What is drafted behind the first `length` of `text` [S]: int32 [N], and how many."""
        place = jnp.arange(text.shape[0], dtype=jnp.int32)
        # agree[i]: how many tokens before place i are those at the end of the text.
        agree = jnp.zeros_like(place)
        same = jnp.ones_like(place, bool)
        for back in range(1, self.config.longest + 1):
            last = jnp.take(text, jnp.maximum(length - back, 0))
            inside = (place >= back) & (length >= back)
            same = same & inside & (jnp.roll(text, back) == last)
            agree = agree + same.astype(jnp.int32)
        # Something must follow, and it must be inputs.
        agree = jnp.where(place < length, agree, 0)
        most = jnp.max(agree)
        start = jnp.max(jnp.where(agree == most, place, 0))
        at = start + jnp.arange(self.nodes, dtype=jnp.int32)
        count = jnp.where(most >= self.config.shortest, jnp.minimum(length - start, self.nodes), 0)
        return jnp.take(text, jnp.minimum(at, text.shape[0] - 1)), count
