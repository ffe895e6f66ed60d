"""The interface of a drafting method."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dart_jax.decoding.logits import penalize
from dart_jax.decoding.sampling import (
    Noise,
    SamplingValues,
    is_greedy,
    most_noisy,
    scale_and_filter,
)
from dart_jax.decoding.vocabulary import WHOLE, Vocabulary
from dart_jax.models.cache import init_cache
from dart_jax.models.drafter_config import ParallelConfig
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.target import Target
from dart_jax.models.traits import DraftingConfig, Traits


class PromptRows(NamedTuple):
    """P rows of the prompts, which the drafter reads without drafting; other fields as in
    `DraftInput`. Rows after the end of a prompt are padding.

    Attributes:
      next_tokens: int32 [B, P], the token *after* each row; after a prompt's last row it is the
        first new token, or padding if that row will be read again.
      filled: rows of a cache in which those before these are found; static.
    """

    target: Target
    params: Any
    tokens: jax.Array
    next_tokens: jax.Array
    features: jax.Array
    positions: jax.Array
    start: jax.Array
    filled: int
    options: LayerOptions = LayerOptions()


class DraftInput(NamedTuple):
    """Input of a drafting method: P rows that the drafter has not seen yet, and their context.

    After the prefill this is the prompt's last row, which the drafter has read before.

    Attributes:
      target: bound to its parameters.
      params: see `dart_jax.decoding.state.DecodeParams`.
      tokens: int32 [B, P], the rows' own tokens.
      next_tokens: int32 [B, P], the token *after* each row; after the last real row it is the
        newest token of the sequence, the next tree's root.
      features: [B, P, 3D], the target's; [B, P, 0] if the target has no feature layers.
      positions: int32 [B, P].
      last: int32 [B], index of the last real row, the anchor; rows after it are padding.
      start: int32 [B], number of rows before these.
      sampling: how the target samples.
      seen: bool [B, V], tokens in the sequence so far, or None without a repetition penalty.
      noise: of the target's draws after the root and after nodes of each depth, or None if the
        method must do without.
      options: of the drafter's layers.
    """

    target: Target
    params: Any
    tokens: jax.Array
    next_tokens: jax.Array
    features: jax.Array
    positions: jax.Array
    last: jax.Array
    start: jax.Array
    sampling: SamplingValues
    seen: jax.Array | None
    noise: Noise | None
    options: LayerOptions = LayerOptions()


class Candidates(NamedTuple):
    """Candidates for the search.

    Attributes:
      ids: int32 [B, d, k], the target's.
      logits: float32 [B, d, k].
      pairs: float32 [B, d - 1, k, k], [l - 1, a, b] is the score of the pair of candidates a of
        position l - 1 and b of position l. None if the method has no pair scores.
    """

    ids: jax.Array
    logits: jax.Array
    pairs: jax.Array | None = None


class Proposal(NamedTuple):
    """The result of drafting: trees, or candidates for the search.

    Attributes:
      trees: int32 [B, 4, N + 1], packed (see `dart_jax.decoding.tree`), or without scores
        [B, 3, N + 1]. None if a search builds them.
      candidates: for the search, if any.
      confidence: float32 [B, d], the probability that the target accepts any token of a position if
        it did at all earlier ones. None if the method cannot tell.
    """

    trees: jax.Array | None = None
    candidates: Candidates | None = None
    confidence: jax.Array | None = None


class DraftingMethod(abc.ABC):
    """Base class of methods that draft trees of N nodes.

    Subclasses are frozen dataclasses, since a step is compiled for its method.

    Attributes:
      config: selects the method.
      nodes: of a tree without the root, N.
    """

    config: DraftingConfig
    nodes: int

    @property
    def traits(self) -> Traits:
        """The method's traits."""
        return self.config.traits

    @property
    def depth(self) -> int:
        """Maximum depth of a tree; by default a tree may be a single chain."""
        return self.nodes

    @property
    def positions(self) -> int:
        """Drafted positions that a search uses, d; none beyond the maximum depth."""
        return 0 if self.traits.search is None else self.depth

    @property
    def candidates(self) -> int:
        """Candidates per drafted position, k."""
        return 0

    @property
    def pairs(self) -> bool:
        """True if the candidates come with pair scores, and trees have pairs."""
        return self.traits.pairs and self.depth > 1

    def empty(self, batch: int, capacity: int, dtype: DTypeLike, options: LayerOptions) -> Any:
        """Returns the state before the first row, a pytree of arrays or None; by default the cache
        of a network.

        Args:
          batch: B.
          capacity: rows of each sequence, at most.
          dtype: of activations.
          options: of the drafter's layers.
        """
        config: Any = self.config
        layers, heads = config.num_hidden_layers, config.num_key_value_heads // options.shards
        return init_cache(layers, batch, heads, capacity, config.head_dim, dtype)

    @abc.abstractmethod
    def read(self, draft_state: Any, rows: PromptRows) -> Any:
        """Reads rows of the prompts, all of them or a chunk; returns the new state. A row may be
        read again, at the same place with other neighbours."""

    @abc.abstractmethod
    def __call__(self, draft_state: Any, inputs: DraftInput) -> tuple[Any, Proposal]:
        """Drafts after the last real row: the new state, whose shapes never change, and the
        proposal."""


@dataclasses.dataclass(frozen=True)
class Parallel(DraftingMethod):
    """Base class of DART and block drafters: one forward pass predicts all positions, and a search
    builds the tree from their candidates. `draft_state` is the drafter's cache.

    Attributes:
      max_candidates: per drafted position; the whole draft vocabulary if that is smaller.
    """

    config: ParallelConfig
    nodes: int
    max_candidates: int

    @property
    def depth(self) -> int:
        """Maximum depth of a tree."""
        return min(self.config.num_positions, self.nodes)

    @property
    def candidates(self) -> int:
        """Candidates per drafted position, k."""
        return min(self.max_candidates, self.config.draft_vocab_size)


class MethodConfig(DraftingConfig, abc.ABC):
    """Selects a drafting method that needs no parameters of its own; `DartModel.with_drafter` takes
    it. Subclasses are frozen dataclasses.

    Attributes:
      title: the method's name, for people.
    """

    title: ClassVar[str]

    @property
    def traits(self) -> Traits:
        """Traits of a method that drafts its own trees; see the base class."""
        return Traits(kind=self.title)

    @abc.abstractmethod
    def method(self, nodes: int) -> DraftingMethod:
        """Returns the method, for trees of N nodes."""


def coupled(
    inputs: DraftInput,
    logits: jax.Array,
    draft_ids: jax.Array,
    noise: jax.Array,
    vocabulary: Vocabulary = WHOLE,
) -> jax.Array:
    """Adds the noise to a drafter's logits, which are first treated as the target's are.

    The target draws the argmax of log p / T + g, and the Gumbel noise g of a position depends on
    (key of the row, position) alone, so it is known before anything is drafted. A drafter that
    predicts q therefore proposes the largest log q / T + g: where q is near p, mostly the very
    token that will be drawn. A draft is accepted if it equals the draw, so the output cannot
    change (docs/method.md, section 5).

    Args:
      inputs: how the target samples.
      logits: float32 [B, T, Vd], the drafter's.
      draft_ids: int32 [Vd], the target's id of every draft id.
      noise: float32 [B, T, V], or [B, 1, V] for all rows, of the draws that the logits predict.
      vocabulary: the draft vocabulary, of whose logits each device may have a part.

    Returns:
      float32 [B, T, Vd]; -inf for tokens that the filters leave out.
    """
    logits = _penalized(inputs, logits, draft_ids, vocabulary)
    scaled = scale_and_filter(inputs.sampling, logits, vocabulary)
    rows = jnp.take(noise, vocabulary.local_shard(draft_ids), axis=-1)
    return scaled + jnp.where(is_greedy(inputs.sampling, logits.ndim), 0, rows)


def most_coupled(
    inputs: DraftInput,
    logits: jax.Array,
    draft_ids: jax.Array,
    count: int,
    vocabulary: Vocabulary = WHOLE,
) -> tuple[jax.Array, jax.Array]:
    """Finds the largest of the logits that predict the draws after the root and after nodes of each
    depth; of `coupled` ones, if there is noise.

    Args:
      inputs: has the noise.
      logits: float32 [B, T, Vd], the drafter's, T at most depth + 1.
      draft_ids: see `coupled`.
      count: how many.
      vocabulary: see `coupled`.

    Returns:
      Float32 and their draft ids, int32, [B, T, count], in the order of `Vocabulary.top_k`.
    """
    noise, levels = inputs.noise, jnp.arange(logits.shape[1], dtype=jnp.int32)
    if noise is None:
        return vocabulary.top_k(logits, count)
    if noise.table is None:
        logits = _penalized(inputs, logits, draft_ids, vocabulary)
        levels = jnp.broadcast_to(levels, logits.shape[:2])
        return most_noisy(inputs.sampling, logits, noise, levels, count, draft_ids)
    table = noise.table[:, : len(levels)]
    return vocabulary.top_k(coupled(inputs, logits, draft_ids, table, vocabulary), count)


def _penalized(
    inputs: DraftInput, logits: jax.Array, draft_ids: jax.Array, vocabulary: Vocabulary
) -> jax.Array:
    """Applies the repetition penalty to a drafter's logits [B, T, Vd]."""
    seen = inputs.seen
    if seen is not None:
        seen = jnp.take(seen, vocabulary.local_shard(draft_ids), axis=-1)[:, None]
    return penalize(inputs.sampling, logits, seen)
