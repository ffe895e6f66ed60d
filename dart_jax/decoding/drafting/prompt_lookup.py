"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens.

As in Saxena's prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding), which
`transformers` enables with `prompt_lookup_num_tokens`; both use the first earlier occurrence, this
implementation the latest.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dart_jax.decoding.drafting.base import (
    DraftingMethod,
    DraftInput,
    MethodConfig,
    PromptRows,
    Proposal,
)
from dart_jax.decoding.tree import chain
from dart_jax.errors import UserError
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.traits import Traits


@dataclasses.dataclass(frozen=True)
class PromptLookupConfig(MethodConfig):
    """Length of the suffix to look up.

    Attributes:
      longest: suffix length tried first; then one less, and so on.
      shortest: suffix length tried last.

    Raises:
      UserError: not 1 <= shortest <= longest.
    """

    title: ClassVar[str] = "prompt lookup"
    longest: int = 3
    shortest: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise UserError(
                f"prompt lookup needs 1 <= shortest <= longest, got {self.shortest} and "
                f"{self.longest}"
            )

    @property
    def traits(self) -> Traits:
        """See the base class."""
        return Traits(kind=self.title, chain=True)

    def method(self, nodes: int) -> PromptLookup:
        """Returns the method; see the base class."""
        return PromptLookup(self, nodes)


@dataclasses.dataclass(frozen=True)
class PromptLookup(DraftingMethod):
    """Drafts by prompt lookup (see the base class); `draft_state` is all tokens of each sequence,
    int32 [B, S]."""

    config: PromptLookupConfig
    nodes: int

    def empty(
        self, batch: int, capacity: int, dtype: DTypeLike, options: LayerOptions
    ) -> jax.Array:
        """Returns sequences without tokens; see the base class."""
        return jnp.zeros((batch, capacity), jnp.int32)

    def read(self, draft_state: jax.Array, rows: PromptRows) -> jax.Array:
        """Reads rows of the prompts; see the base class."""
        return _write(draft_state, rows.tokens, rows.start)

    def __call__(self, draft_state: jax.Array, inputs: DraftInput) -> tuple[jax.Array, Proposal]:
        """Drafts; see the base class."""
        text = _write(draft_state, inputs.next_tokens, inputs.start + 1)
        length = inputs.start + inputs.last + 2
        drafted, count, match = jax.vmap(self._look_up)(text, length)
        root = jnp.take_along_axis(text, length[:, None] - 1, axis=1)
        # A longer match is more often right.
        depth = jnp.arange(1, self.nodes + 1, dtype=jnp.float32)[None]
        scores = -depth / jnp.maximum(match, 1)[:, None].astype(jnp.float32)
        return text, Proposal(chain(root, drafted, count, scores))

    def _look_up(
        self, text: jax.Array, length: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Drafts after the first `length` tokens of `text` [S]: tokens int32 [N], how many, and the
        length of the match."""
        place = jnp.arange(text.shape[0], dtype=jnp.int32)
        # match[i]: how many of the tokens just before place i match the end of the text.
        match = jnp.zeros_like(place)
        same = jnp.ones_like(place, bool)
        for back in range(1, self.config.longest + 1):
            last = jnp.take(text, jnp.maximum(length - back, 0))
            inside = (place >= back) & (length >= back)
            same = same & inside & (jnp.roll(text, back) == last)
            match = match + same.astype(jnp.int32)
        # A match must be followed by a token of the text.
        match = jnp.where(place < length, match, 0)
        best = jnp.max(match)
        start = jnp.max(jnp.where(match == best, place, 0))
        at = start + jnp.arange(self.nodes, dtype=jnp.int32)
        count = jnp.where(best >= self.config.shortest, jnp.minimum(length - start, self.nodes), 0)
        return jnp.take(text, jnp.minimum(at, text.shape[0] - 1)), count, best


def _write(text: jax.Array, tokens: jax.Array, at: jax.Array) -> jax.Array:
    """Writes tokens [B, P] into `text` [B, S] from place `at` [B] on, as far as it goes."""
    place = at[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
    return text.at[rows, place].set(tokens, mode="drop")
