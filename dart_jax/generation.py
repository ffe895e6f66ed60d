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
    """Generation options, named as in `transformers` where it has them.

    Greedy by default, as in papers, whatever sampling the target's generation config asks for;
    only its end-of-sequence ids are used.
    """

    max_new_tokens: int = 256
    """Maximum number of new tokens; fewer if the target runs out of positions."""
    temperature: float = 0.0
    """Sampling temperature; 0 decodes greedily."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Sample from the smallest set of most likely tokens whose probability reaches p."""
    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens already in the prompt or the text become less likely."""
    seed: int = 0
    """Seed of sampling; the same seed gives the same text, drafted or not."""
    stop: Annotated[
        tuple[str | int, ...] | str | int,
        tyro.conf.arg(constructor=tuple[str, ...], help="Stop strings; the text ends before them."),
    ] = ()
    """Stop strings (the text ends before them) and stop token ids, in addition to the target's
    own; or a single one."""
    nodes: int | None = None
    """Nodes of the draft tree; 0 for plain decoding; the default depends on the device (see
    `default_tree`)."""
    search: Annotated[SearchConfig | None, tyro.conf.Suppress] = None
    """Parameters of the tree search; by default those that belong to the tree's size."""
    use_ngram: bool = True
    """Use the n-gram model in the tree search, if there is one."""
    chat_template_kwargs: Annotated[Mapping[str, Any], tyro.conf.Suppress] = dataclasses.field(
        default_factory=dict
    )
    """Arguments of the target's chat template, such as enable_thinking."""

    def __post_init__(self) -> None:
        for name, kinds, expected in (
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
                raise UserError(f"{name} must be {expected}, got {value!r}")
        if self.nodes is not None and not isinstance(self.nodes, int):
            raise UserError(f"nodes must be an integer, got {self.nodes!r}")
        stop = (self.stop,) if isinstance(self.stop, str | int) else tuple(self.stop)
        if not all(isinstance(one, str | int) for one in stop):
            raise UserError(f"stop must be strings and token ids, got {self.stop!r}")
        object.__setattr__(self, "stop", stop)

    @classmethod
    def of(cls, config: GenerationConfig | None, options: Mapping[str, Any]) -> GenerationConfig:
        """Returns `config`, or the defaults, with some fields replaced.

        An option that is None leaves its field unchanged, as in `transformers`.

        Raises:
          UserError: a field does not exist, or a value has the wrong type.
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
      drafted: whether the token that completed it was drafted; otherwise it is the target's own.
    """

    drafted: bool

    def __new__(cls, text: str, drafted: bool) -> Piece:
        """Creates a piece."""
        piece = super().__new__(cls, text)
        piece.drafted = drafted
        return piece

    def __getnewargs__(self) -> tuple[str, bool]:
        return str(self), self.drafted


class Step(NamedTuple):
    """What the prefill or one verification emitted for the first prompt.

    Attributes:
      pieces: its new text; the end of a text may come in a separate step without tokens.
      tokens: int32 [n], emitted tokens, including those after a stop string.
      drafted: the first `drafted` of them were drafted.
      drafts: what was verified, if `steps` was called with `with_drafts`; None for the prefill.
    """

    pieces: list[Piece]
    tokens: np.ndarray
    drafted: int
    drafts: Drafts | None


@dataclasses.dataclass(frozen=True)
class Completion:
    """The continuation of one prompt.

    Attributes:
      text: text of the new tokens, without the stop string or token.
      tokens: int32 [n], the new tokens, including the one that ended the text.
      drafted: bool [n], which of them the drafter proposed; the others are the target's.
      prompt_tokens: length of the prompt in tokens.
      steps: verifications.
      finish: `stop`, ended by a stop string or id; `length`, by the maximum length; None while
        generation is still running.
      seconds: wall time of the whole batch: `prefill`, `device` (draft and verify), `search`.
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
        """Acceptance length: tokens emitted per verification, bonus token included; nan before the
        first verification."""
        return (len(self.tokens) - 1) / self.steps if self.steps else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """New tokens of this completion per second of the batch, prefill included; nan before the
        first token."""
        seconds = sum(self.seconds.values())
        return len(self.tokens) / seconds if seconds else float("nan")


def default_tree(drafter: AnyDrafter | None = None) -> tuple[int, SearchConfig]:
    """Returns the default number of draft tree nodes and the matching search parameters.

    On CPU, where every row costs time, these are the small deep trees that `eval.speedup` found
    fastest; elsewhere the paper's. Methods that draft a single chain, such as a draft model, get
    short chains on every device.

    Args:
      drafter: the drafter; None for DART.
    """
    if isinstance(drafter, TargetConfig):
        return 4, SearchConfig()
    if isinstance(drafter, PromptLookupConfig):
        return 8, SearchConfig()
    if jax.default_backend() == "cpu":
        return 8, SearchConfig(level_decay=2.5)
    return 59, SearchConfig()


def length_bucket(tokens: int) -> int:
    """Rounds a sequence's cache length up to one of 128, 192, 256, 384, 512, 768, ...

    Programs are compiled per length, so there are few of them; above 128 at most a third is unused.
    """
    size = 128
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
