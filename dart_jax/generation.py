"""Options and results of `DartModel.generate` and `DartModel.stream`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
import tyro

from dart_jax.decoding.drafting import AnyDrafter, PromptLookupConfig
from dart_jax.decoding.loop import Drafts
from dart_jax.decoding.pruner import SearchConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """How to generate, in the names of `transformers` where it has them.

    Greedy by default, as in papers, whatever the target's generation config says of sampling; of
    that only the ids that end a sequence are taken.
    """

    max_new_tokens: int = 256
    """Most tokens to generate; fewer where the target's positions end."""
    temperature: float = 0.0
    """0 takes the most likely token."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this much probability."""
    min_p: float = 0.0
    """Leave out tokens less likely than this fraction of the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that the prompt or the text holds become less likely."""
    seed: int = 0
    """Of the draws; the same seed gives the same text, drafted or not."""
    stop: Annotated[
        tuple[str | int, ...] | str | int,
        tyro.conf.arg(constructor=tuple[str, ...], help="Strings before which the text ends."),
    ] = ()
    """Strings, before which the text ends, and token ids, besides the target's own; or one."""
    nodes: int | None = None
    """Nodes of the draft tree; 0 decodes plainly; by default what is best on this kind of device
    (see `default_tree`)."""
    search: Annotated[SearchConfig | None, tyro.conf.Suppress] = None
    """Parameters of the tree search; by default what goes with the tree."""
    use_ngram: bool = True
    """Search with the n-gram model, if there is one."""
    chat_template_kwargs: Annotated[Mapping[str, Any], tyro.conf.Suppress] = dataclasses.field(
        default_factory=dict
    )
    """For the target's chat template, such as enable_thinking."""

    def __post_init__(self) -> None:
        for name, kinds, want in (
            ("max_new_tokens", int, "an integer"),
            ("top_k", int, "an integer"),
            ("seed", int, "an integer"),
            ("temperature", int | float, "a number"),
            ("top_p", int | float, "a number"),
            ("min_p", int | float, "a number"),
            ("repetition_penalty", int | float, "a number"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise UserError(f"{name} must be {want}, got {value!r}")
        if self.nodes is not None and not isinstance(self.nodes, int):
            raise UserError(f"nodes must be an integer, got {self.nodes!r}")
        stop = (self.stop,) if isinstance(self.stop, str | int) else tuple(self.stop)
        if not all(isinstance(one, str | int) for one in stop):
            raise UserError(f"stop must be strings and token ids, got {self.stop!r}")
        object.__setattr__(self, "stop", stop)

    @classmethod
    def of(cls, config: GenerationConfig | None, options: Mapping[str, Any]) -> GenerationConfig:
        """`config`, or the defaults, with some fields replaced.

        Raises:
          UserError: a field does not exist, or a value is of a wrong kind. None leaves a field as
            it is, as in `transformers`.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(options.keys() - set(names))
        if unknown:
            raise UserError(
                f"unknown option {', '.join(unknown)}; the options are {', '.join(names)}"
            )
        given = {name: value for name, value in options.items() if value is not None}
        return dataclasses.replace(config or cls(), **given)

    @property
    def sampling(self) -> Sampling:
        """How the target draws; raises UserError if a value is out of range."""
        return Sampling(
            self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty
        )


class Piece(str):
    """A piece of generated text.

    Attributes:
      drafted: whether the token that completed it was drafted; else it is the target's own.
    """

    drafted: bool

    def __new__(cls, text: str, drafted: bool) -> Piece:
        """Makes a piece."""
        piece = super().__new__(cls, text)
        piece.drafted = drafted
        return piece

    def __getnewargs__(self) -> tuple[str, bool]:
        return str(self), self.drafted


class Step(NamedTuple):
    """What the prefill or one verification did for the first prompt.

    Attributes:
      pieces: its new text; the end of a text may come in a step of its own, without tokens.
      tokens: int32 [n], those emitted, also behind a stop string.
      drafted: how many of them, the first, were drafted.
      drafts: what was verified, where that is watched; None in the prefill.
    """

    pieces: list[Piece]
    tokens: np.ndarray
    drafted: int
    drafts: Drafts | None


@dataclasses.dataclass(frozen=True)
class Completion:
    """What one prompt was continued by.

    Attributes:
      text: of the new tokens, without what ended it.
      tokens: int32 [n], the new tokens, with the one that ended it.
      drafted: bool [n], which of them the drafter had proposed; the others are the target's.
      prompt_tokens: tokens of the prompt.
      steps: verifications.
      finish: `stop`, at a stop string or id; `length`, at the most tokens there may be; None while
        it goes on.
      seconds: wall time, of the whole batch: `prefill`, `device` (draft and verify), `search`.
    """

    text: str
    tokens: np.ndarray
    drafted: np.ndarray
    prompt_tokens: int
    steps: int
    finish: Literal["stop", "length"] | None
    seconds: dict[str, float]

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus included; nan before the first."""
        return (len(self.tokens) - 1) / self.steps if self.steps else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Of this completion alone, prefill included; nan before there is one."""
        seconds = sum(self.seconds.values())
        return len(self.tokens) / seconds if seconds else float("nan")


def default_tree(drafter: AnyDrafter | None = None) -> tuple[int, SearchConfig]:
    """Nodes of a draft tree and the search that goes with them.

    On a CPU, where every row costs, the small deep trees that `eval.speedup` found fastest;
    elsewhere the paper's. What drafts in one line, such as a draft model's forwards, is short
    everywhere.

    Args:
      drafter: what drafts; None for DART.
    """
    if isinstance(drafter, TargetConfig):
        return 4, SearchConfig()
    if isinstance(drafter, PromptLookupConfig):
        return 8, SearchConfig()
    if jax.default_backend() == "cpu":
        return 8, SearchConfig(level_decay=2.5)
    return 59, SearchConfig()


def length_bucket(tokens: int) -> int:
    """The cache length a sequence is given: 128, 192, 256, 384, 512, 768, ...

    Programs are compiled for a length, so there are few; above 128 at most a third is unused.
    """
    size = 128
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
