"""The static configuration of a decode step, and the state that it updates."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from dart_jax.decoding.drafting import AnyDrafter, DraftingMethod, drafting_method
from dart_jax.decoding.drafting.eagle3 import Eagle3Tree
from dart_jax.decoding.drafting.text import LONGEST
from dart_jax.decoding.host_buffer import HostBuffer
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.options import LogitsConfig
from dart_jax.decoding.sampling import Noise, SamplingValues
from dart_jax.models.cache import Cache
from dart_jax.models.config import TargetConfig
from dart_jax.models.platform.execution import Execution

# "target": the target's parameters; "drafter": the drafter's, if it has any; "draft_ids":
# int32 [Vd], the target ids of a drafter's vocabulary.
DecodeParams = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Static configuration, for which a step is compiled.

    Attributes:
      target: the target's shapes.
      drafter: config of the drafting method, or None if nothing but the text drafts.
      nodes: tree nodes without the root, N; 0 for plain decoding.
      candidates: top-k tokens per drafted position that are passed to the search, k.
      eagle: depth and width of an EAGLE-3 drafter's trees.
      logits: processors of the target's logits, and what is reported about them.
      coupled: whether drafts are ranked with the noise of the target's draws (see
        `drafting.base.coupled`); changes how many are accepted, never the output.
      text: whether what followed in the text is drafted, too; see `drafting.text`.
      acceptance: takes the place of `step.accept`, to measure speed alone: hashable, of a tree, the
        draws at its nodes int32 [B, N + 1], the depth of trees, and int32 [B] the tokens still to
        be emitted and where the text ends. The text is then not the target's. None for `accept`.
      execution: how the models are computed; the platform's own by default.
    """

    target: TargetConfig
    drafter: AnyDrafter | None = None
    nodes: int = 0
    candidates: int = 25
    eagle: Eagle3Tree = Eagle3Tree()
    logits: LogitsConfig = LogitsConfig()
    coupled: bool = True
    text: bool = False
    acceptance: Callable[..., Any] | None = None
    execution: Execution = dataclasses.field(default_factory=Execution.here)

    @functools.cached_property
    def drafting(self) -> DraftingMethod | None:
        """The drafting method, or None where nothing but the text drafts, or nothing at all."""
        if self.drafter is None or self.nodes == 0:
            return None
        return drafting_method(self.drafter, self.nodes, self.candidates, self.eagle)

    @property
    def texts_draft(self) -> bool:
        """True if trees have what followed in the text."""
        return self.text and self.nodes > 0

    @property
    def reads_texts(self) -> bool:
        """True if steps read the texts so far: to draft from them, or for processors."""
        return self.texts_draft or bool(self.logits.processors)

    @property
    def text_depth(self) -> int:
        """Maximum depth of the text's own drafts."""
        return min(LONGEST, self.nodes) if self.text else 0

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's layers whose input is captured for the drafter."""
        return (self.drafter or self.target).layers_read(self.target)

    @property
    def searches(self) -> bool:
        """True if trees come from a search over candidates."""
        return self.drafting is not None and self.drafting.traits.search is not None

    @property
    def max_depth(self) -> int:
        """Maximum depth of a tree."""
        return max(self.text_depth, 0 if self.drafting is None else self.drafting.depth)

    @functools.cached_property
    def host_buffer(self) -> HostBuffer:
        """The layout of the host buffer."""
        drafting = self.drafting
        if drafting is None:
            return HostBuffer(positions=0, candidates=0)
        draws = self.couples and drafting.traits.search == "ngram"
        return HostBuffer(drafting.positions, drafting.candidates, draws, drafting.pairs)

    @property
    def plain(self) -> DecodeConfig:
        """The config of plain decoding with the same target."""
        return dataclasses.replace(self, drafter=None, text=False, nodes=0)

    @property
    def reading(self) -> DecodeConfig:
        """The config to compile the reading of prompts for; equal for all trees of a drafter and
        all that is done with the logits."""
        return DecodeConfig(self.target, self.drafter, nodes=1, execution=self.execution)

    def scoring(self, logprobs: int) -> DecodeConfig:
        """Returns the config to compile the reading of prompts for whose tokens are scored: see
        `LogitsConfig.logprobs`."""
        return dataclasses.replace(self.reading, logits=LogitsConfig(logprobs=logprobs))

    @property
    def reads_only_used(self) -> bool:
        """True if reading a prompt, or verifying the tree of one sequence, takes time only for the
        rows that are used (see `cpu.only_rows`). Experts are computed for all rows."""
        models = (self.target, self.drafter)
        dense = all(getattr(model, "moe", None) is None for model in models)
        return self.execution.attention == "native" and dense

    @property
    def decides_in_steps(self) -> bool:
        """True if a step of one sequence takes time only for the nodes that it verifies, so that
        each decides how many these are. Larger trees must not take more passes of the drafter."""
        drafting = self.drafting
        if not self.reads_only_used or self.nodes == 0:
            return False
        return drafting is None or not drafting.traits.sequential

    @property
    def couples(self) -> bool:
        """True if drafts are ranked with the noise of the target's draws."""
        method = self.drafting is not None and self.drafting.traits.couples
        return self.coupled and (method or self.texts_draft)

    def capacity(self, max_length: int) -> int:
        """Cache rows needed for sequences of up to `max_length` tokens.

        A step writes a whole path after the accepted rows. Rounded up to a multiple of 64 to limit
        the number of compiled shapes.
        """
        return -(-(max_length + self.max_depth + 1) // 64) * 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """Everything that changes from step to step, and the options of a call.

    Attributes:
      target_cache: keys and values of all tokens of a sequence except the last, the root.
      draft_state: state of the drafting method, such as the drafter's KV cache, if it has any.
      length: int32 [B], rows in the target's cache; also the root's position.
      context: int32 [B, 4], the last tokens of each sequence, ending with the root; -1 where there
        are fewer.
      remaining: int32 [B], tokens still to be emitted; 0 for a finished row.
      stop: int32 [n], ids that end a sequence, or [B, n]; -1 is padding.
      keys: uint32 [B, 2], of the rows' noise (see `sampling.row_keys`).
      sampling: how the target samples.
      seen: bool [B, V], tokens in the sequence so far, or None without a repetition penalty.
      counts: int32 [B, V], how often each token occurs in the new text, or None without penalties
        for that.
      bias: float32 [B, V], added to the logits, if any.
      tokens: int32 [B, S], the sequences up to the root, then -1, and at the end what they may
        draft from besides; see `drafting.text.Texts`. None where nothing reads them.
      shared: int32 [B], how many tokens are there besides.
      scores: what is reported about the tokens that the last step emitted, if anything.
      trees: int32 [B, 4, N + 1], the next trees if they are built on the device; otherwise None.
      confidence: in the next trees, see `Proposal`.
      noise: of the draws after the root and after nodes of each depth, with which the next trees
        were drafted, if any.
      masks: uint32 [B, N + 1, W], of the tokens that may follow each node of the tree that is
        verified (see `leave_out`), or None for all.
    """

    target_cache: Cache
    draft_state: Any
    length: jax.Array
    context: jax.Array
    remaining: jax.Array
    stop: jax.Array
    keys: jax.Array
    sampling: SamplingValues
    seen: jax.Array | None = None
    counts: jax.Array | None = None
    bias: jax.Array | None = None
    tokens: jax.Array | None = None
    shared: jax.Array | None = None
    scores: TokenScores | None = None
    trees: jax.Array | None = None
    confidence: jax.Array | None = None
    noise: Noise | None = None
    masks: jax.Array | None = None

    @property
    def active(self) -> jax.Array:
        """Bool [B]: unfinished rows."""
        return self.remaining > 0
