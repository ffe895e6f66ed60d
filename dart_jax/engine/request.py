"""Requests to the engine, and its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.options import Sampling
from dart_jax.errors import UserError
from dart_jax.text.thoughts import ThoughtMarks

# Why a text ended: a stop id, or its budget or the target's last position.
Finish = Literal["stop", "length"]

# Ids that end a text, at most, and most likely tokens that can be reported for each token.
MOST_STOP_IDS = 16
MOST_LOGPROBS = 20

# How a step samples; each of them serves the requests of those before it. `filtered` has top-k,
# top-p and min-p, `full` penalties, logit bias and log-probabilities as well.
SamplingMode = Literal["greedy", "sampled", "filtered", "full"]
SAMPLING_MODES: tuple[SamplingMode, ...] = ("greedy", "sampled", "filtered", "full")


def highest(modes: Iterable[SamplingMode]) -> SamplingMode:
    """Returns the lowest mode that serves the requests of all of these."""
    return SAMPLING_MODES[max(map(SAMPLING_MODES.index, modes))]


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """A prompt and its options.

    The text that follows depends on these alone: the same request gives the same tokens alone or
    with any others, drafted or not, and from `DartModel.generate` with the same options.

    Attributes:
      tokens: int32 [n], the prompt.
      max_new_tokens: maximum number of new tokens; 0, only with `prompt_logprobs`, for no text.
      sampling: how tokens are drawn.
      presence_penalty: subtracted from the logits of all tokens of the text so far, prompt
        excluded.
      frequency_penalty: the same, times the number of their occurrences.
      logit_bias: added to the logits of tokens, by id.
      seed: seed of sampling, in 0..2**32 - 1.
      choice: which of several texts with the same seed; the row that `num_return_sequences` gives
        it.
      max_length: maximum length of the prompt and the text together, by default the engine's.
      stop_ids: ids that end the text, besides those with which a grammar ends.
      min_new_tokens: none of them follows before this number of tokens; not with a grammar.
      grammar: what the text must follow, as `Grammars.check` returns it, if anything.
      thoughts: what the text may have before that, if anything.
      logprobs: report every token's log-probability, and this many of the most likely tokens. They
        are the target's, before penalties, temperature and filters.
      prompt_logprobs: report the same of every token of the prompt after the first, with its rank,
        given those before it; the first output has them.
      drafts: report what each step verified.
      draft_group: the texts of requests with the same name draft for each other, which makes them
        faster; None for no others. How fast a text is then tells of others' contents.

    Raises:
      UserError: an option is out of range.
    """

    tokens: np.ndarray
    max_new_tokens: int
    sampling: Sampling = Sampling()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int = 0
    choice: int = 0
    max_length: int | None = None
    stop_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    grammar: str | None = None
    thoughts: ThoughtMarks | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    drafts: bool = False
    draft_group: str | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) < 1:
            raise UserError("a prompt is empty; give it at least one token")
        least = 1 if self.prompt_logprobs is None else 0
        if not least <= self.max_new_tokens < 2**31:
            raise UserError(
                f"max_new_tokens must be in {least}..{2**31 - 1}, got {self.max_new_tokens}"
            )
        if self.min_new_tokens and self.grammar is not None:
            raise UserError("a text under a grammar has no min_new_tokens; leave it out")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"the seed must be in 0..{2**32 - 1}, got {self.seed}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -2 <= value <= 2:
                raise UserError(f"{name} must be between -2 and 2, got {value}")
        for token, bias in self.logit_bias.items():
            if not -100 <= bias <= 100:
                raise UserError(f"logit_bias of {token} must be between -100 and 100, got {bias}")

    @classmethod
    def several(cls, prompts: Iterable[np.ndarray], *args: Any, **options: Any) -> list[Request]:
        """Returns the requests of token prompts with the same options and draws of their own."""
        numbered = enumerate(prompts)
        return [cls(x.astype(np.int32), *args, choice=n, **options) for n, x in numbered]

    def check(
        self,
        max_length: int,
        vocab_size: int,
        *,
        logprobs: int | None = None,
        many_stops: bool = False,
    ) -> None:
        """Raises UserError if the request does not fit a model, or programs.

        Args:
          max_length: maximum length of a prompt and its new tokens together.
          vocab_size: the target's.
          logprobs: the most likely tokens that programs report, if that is set.
          many_stops: whether the stop ids may be more than a server takes.
        """
        if len(self.stop_ids) > MOST_STOP_IDS and not many_stops:
            raise UserError(f"there can be at most {MOST_STOP_IDS} stop ids")
        most = MOST_LOGPROBS if logprobs is None else logprobs
        for name, limit in (("logprobs", most), ("prompt_logprobs", MOST_LOGPROBS)):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= limit:
                raise UserError(f"{name} must be in 0..{limit}, got {count}")
        if len(self.tokens) + min(self.max_new_tokens, 1) > max_length:
            raise UserError(
                f"a prompt of {len(self.tokens)} tokens leaves no room in {max_length} positions; "
                "shorten it"
            )
        ids = np.concatenate([self.tokens, np.fromiter(self.logit_bias, np.int64)])
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise UserError(f"token ids must be in 0..{vocab_size - 1}")

    @property
    def penalizes(self) -> bool:
        """True if logits are changed before they are divided by the temperature."""
        penalties = self.presence_penalty, self.frequency_penalty
        return self.sampling.repetition_penalty != 1 or any(penalties) or bool(self.logit_bias)

    @property
    def mode(self) -> SamplingMode:
        """The lowest mode that serves the request."""
        sampling = self.sampling
        if self.penalizes or self.logprobs is not None:
            return "full"
        if sampling.temperature == 0:
            return "greedy"
        filters = sampling.top_k or sampling.top_p < 1 or sampling.min_p
        return "filtered" if filters else "sampled"


class Logprobs(NamedTuple):
    """Log-probabilities of n tokens; see `Request.logprobs`.

    Attributes:
      own: float32 [n], of the tokens themselves.
      top_ids: int32 [n, k], the most likely tokens, in order.
      top: float32 [n, k], theirs.
      ranks: int32 [n], how many tokens are likelier than these, and 1; only of tokens of a prompt.
    """

    own: np.ndarray
    top_ids: np.ndarray
    top: np.ndarray
    ranks: np.ndarray | None = None

    @classmethod
    def of(cls, scores: TokenScores, most: int) -> Logprobs:
        """Returns the scores of n tokens, without the axis of rows, with the `most` likeliest."""
        own, ids, top = map(np.asarray, (scores.logprobs, scores.top_ids, scores.top_logprobs))
        ranks = None if scores.ranks is None else np.asarray(scores.ranks)
        return cls(own, ids[:, :most], top[:, :most], ranks)


class Draft(NamedTuple):
    """A draft of a text that a step verified.

    Attributes:
      tree: int32 [3, N + 1], the draft tree (see `dart_jax.decoding.tree`).
      context: int32 [4], the last tokens, up to the tree's root (see `HostBuffer`).
      ids: int32 [d, k], the candidates that the search built the tree from; d is 0 if there
        was no search.
      logits: float32 [d, k], the candidates' logits.
      pairs: float32 [d - 1, k, k], their pair scores; [0, k, k] if the drafter has none.
    """

    tree: np.ndarray
    context: np.ndarray
    ids: np.ndarray
    logits: np.ndarray
    pairs: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Output:
    """What a step of the engine gave a request, or, `joined`, all of its steps.

    Attributes:
      tokens: int32 [n], the new ids; the last one may be a stop id.
      ranks: int32 [n], the places in their trees of the nodes that drafted them, from the best one,
        1, on; 0 for tokens that the target drew in its own step.
      finish: why the text ended, or None if more follows.
      verified: draft trees that were verified.
      nodes: of these trees, roots not counted.
      scores: what is reported about the tokens, without the batch axis, if anything.
      prompt_logprobs: of the prompt's tokens after the first, if they were asked for; only in the
        first output.
      cached: tokens of the prompt that were not read, since their keys and values were there; only
        in the first output.
      draft: what was verified, if that was asked for and anything was drafted.
      error: why the request failed; nothing follows.
    """

    tokens: np.ndarray
    ranks: np.ndarray
    finish: Finish | None = None
    verified: int = 0
    nodes: int = 0
    scores: TokenScores | None = None
    prompt_logprobs: Logprobs | None = None
    cached: int = 0
    draft: Draft | None = None
    error: Exception | None = None

    @classmethod
    def without_tokens(cls, **fields: Any) -> Output:
        """Returns an output of no tokens."""
        none = np.zeros(0, np.int32)
        return cls(none, none, **fields)

    @classmethod
    def joined(cls, outputs: Sequence[Output]) -> Output:
        """Returns the outputs of a request, one after another, as one; without their drafts."""
        if not outputs:
            return cls.without_tokens()
        scores = [each.scores for each in outputs if each.scores is not None]
        return cls(
            np.concatenate([each.tokens for each in outputs]),
            np.concatenate([each.ranks for each in outputs]),
            outputs[-1].finish,
            sum(each.verified for each in outputs),
            sum(each.nodes for each in outputs),
            jax.tree.map(lambda *parts: np.concatenate(parts), *scores) if scores else None,
            outputs[0].prompt_logprobs,
            outputs[0].cached,
            error=outputs[-1].error,
        )

    @property
    def last(self) -> bool:
        """True if nothing follows."""
        return self.finish is not None or self.error is not None

    @property
    def drafted(self) -> np.ndarray:
        """Bool [n], which tokens the drafter proposed; the others are the target's."""
        return self.ranks > 0

    @property
    def steps(self) -> int:
        """Verifications that gave the tokens of a whole text. Each ends with a token of the
        target's own; the first one, which follows the prompt, does not count."""
        return int(np.count_nonzero(self.ranks[:-1] == 0))

    @property
    def tau(self) -> float:
        """Acceptance length of a whole text: tokens emitted per verification, bonus token included;
        nan without a verification."""
        return (len(self.tokens) - 1) / self.steps if self.steps else float("nan")

    def logprobs(self, most: int | None) -> Logprobs | None:
        """Returns the log-probabilities of the tokens and of the `most` likely ones, or None if
        they were not asked for."""
        if most is None or self.scores is None:
            return None
        return Logprobs.of(self.scores, most)
