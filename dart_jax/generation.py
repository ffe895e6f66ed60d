"""Text in, text out: what `DartModel.generate` and `DartModel.stream` do."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import jax
import numpy as np
import tyro

from dart_jax.config import TargetConfig
from dart_jax.drafting import AnyDrafter, PromptLookupConfig
from dart_jax.errors import UserError
from dart_jax.loop import Drafts, generate_fused, stream
from dart_jax.pruner import SearchConfig
from dart_jax.sampling import Sampling
from dart_jax.text_stream import TextStream
from dart_jax.tokenizer import Tokenizer

if TYPE_CHECKING:
    from dart_jax.model import DartModel, Decoder

# A text, token ids, or a chat.
Prompt = str | Sequence[int] | np.ndarray | Sequence[Mapping[str, Any]]


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


def is_batch(prompts: Any) -> bool:
    """Whether these are several prompts, or one."""
    if isinstance(prompts, str):
        return False
    if isinstance(prompts, np.ndarray):
        return prompts.ndim > 1
    if isinstance(prompts, Mapping) or not isinstance(prompts, Sequence):
        raise UserError(
            "a prompt is a text, token ids or a list of messages with role and content, not "
            f"a {type(prompts).__name__}"
        )
    return len(prompts) == 0 or not isinstance(prompts[0], int | np.integer | Mapping)


class TextGeneration:
    """A batch of prompts being continued.

    Iterating runs it step by step and gives the pieces of the first prompt's text; `steps` gives
    them together, step by step; `run` does all at once.
    """

    def __init__(self, model: DartModel, prompts: Sequence[Prompt], config: GenerationConfig):
        """Prepares; nothing runs yet.

        Raises:
          UserError: as `DartModel.generate`.
        """
        strings, ids = _stops(model, config)
        tokens = [_encode(model.tokenizer, prompt, config) for prompt in prompts]
        longest = max(map(len, tokens), default=0)
        nodes, search = _tree(model, config)
        self._decoder: Decoder = model.decoder(
            nodes=nodes,
            max_length=min(
                length_bucket(longest + max(config.max_new_tokens, 1)), model.target.max_length
            ),
            sampling=config.sampling,
            stop=ids,
            use_ngram=config.use_ngram,
            search=search,
        )
        self._prompts = self._decoder.pad(tokens, config.max_new_tokens)
        self._options = self._decoder.options(config.seed)
        self._rows = [_Row(model.tokenizer, strings, ids) for _ in tokens]
        self._whole = not strings
        self._steps = np.zeros(len(tokens), int)
        self._seconds: dict[str, float] = {}
        self._pieces = self._generate()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Ends it before its time; what there is stays."""
        self._pieces.close()

    @property
    def programs(self) -> Hashable:
        """The same for generations that run the same compiled programs."""
        sampling = jax.tree.structure(self._options.sampling.values())
        stop = len(self._options.stop)
        prompts = self._prompts
        return self._decoder.config, prompts.tokens.shape, prompts.max_length, sampling, stop

    @property
    def completion(self) -> Completion:
        """What the first prompt's continuation is so far."""
        return self._completion(0)

    @property
    def completions(self) -> list[Completion]:
        """The same of all prompts."""
        return [self._completion(row) for row in range(len(self._rows))]

    def run(self) -> None:
        """Generates to the end: as one program on the device, unless there are stop strings, which
        only the host can see."""
        if not self._whole:
            for _ in self._pieces:
                pass
            return
        decoder = self._decoder
        made = generate_fused(
            decoder.config, decoder.params, decoder.pruner, self._prompts, self._options
        )
        for row, tokens, drafted in zip(self._rows, made.tokens, made.drafted, strict=True):
            row.take(tokens, drafted)
            row.end()
        self._steps, self._seconds = made.steps, made.seconds

    def _generate(self) -> Generator[Piece, None, None]:
        for step in self.steps():
            yield from step.pieces

    def steps(self, watch: bool = False) -> Generator[Step, None, None]:
        """Runs it step by step, where it is not iterated over.

        Args:
          watch: say too what every step verified.
        """
        decoder, ended = self._decoder, None
        steps = stream(
            decoder.config,
            decoder.params,
            decoder.pruner,
            self._prompts,
            self._options,
            seconds=self._seconds,
            watch=watch,
        )
        first = True
        while True:
            try:
                won = steps.send(ended)
            except StopIteration:
                break
            pieces: list[list[Piece]] = []
            for n, (row, tokens) in enumerate(zip(self._rows, won.tokens, strict=True)):
                self._steps[n] += len(tokens) > 0 and not first
                pieces.append(row.take(tokens, np.arange(len(tokens)) < won.drafted[n]))
            yield Step(pieces[0], won.tokens[0], int(won.drafted[0]), won.drafts)
            ended, first = np.array([row.finish is not None for row in self._rows]), False
        rest = [row.end() for row in self._rows]
        if rest[0]:
            yield Step(rest[0], np.zeros(0, np.int32), 0, None)

    def _completion(self, n: int) -> Completion:
        row = self._rows[n]
        return Completion(
            text="".join(row.pieces),
            tokens=np.array(row.tokens, np.int32),
            drafted=np.array(row.drafted, bool),
            prompt_tokens=int(self._prompts.length[n]),
            steps=int(self._steps[n]),
            finish=row.finish,
            seconds=dict(self._seconds),
        )


class _Row:
    """One sequence: its tokens, its text, and whether a stop ended it."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], stop_ids: Sequence[int]):
        self.tokens: list[int] = []
        self.drafted: list[bool] = []
        self.pieces: list[Piece] = []
        self.finish: Literal["stop", "length"] | None = None
        self._text = TextStream(tokenizer, stop)
        self._stop_ids = frozenset(stop_ids)

    def take(self, tokens: np.ndarray, drafted: np.ndarray) -> list[Piece]:
        """Takes the next tokens, up to one that ends the text; returns the new pieces."""
        before = len(self.pieces)
        for token, origin in zip(tokens.tolist(), drafted.tolist(), strict=True):
            if self.finish is not None:
                break
            self.tokens.append(token)
            self.drafted.append(origin)
            if token in self._stop_ids:
                self._add(self._text.finish())
                self.finish = "stop"
                break
            self._add(self._text.push(token))
            if self._text.stopped:
                self.finish = "stop"
        return self.pieces[before:]

    def end(self) -> list[Piece]:
        """No more tokens come; returns the last pieces."""
        before = len(self.pieces)
        if self.finish is None:
            self._add(self._text.finish())
            self.finish = "stop" if self._text.stopped else "length"
        return self.pieces[before:]

    def _add(self, text: str) -> None:
        if text:
            self.pieces.append(Piece(text, self.drafted[-1]))


def _encode(tokenizer: Tokenizer, prompt: Prompt, config: GenerationConfig) -> np.ndarray:
    """The tokens of a prompt, int64 [n]."""
    if isinstance(prompt, str):
        return np.array(tokenizer.encode(prompt), np.int64)
    if isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
        chat: Any = prompt
        return np.array(tokenizer.encode_chat(chat, **config.chat_template_kwargs), np.int64)
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise UserError(
            "a prompt is a text, a list of token ids or a list of messages with role and content"
        )
    return tokens.astype(np.int64)


def _stops(model: DartModel, config: GenerationConfig) -> tuple[list[str], tuple[int, ...]]:
    """Stop strings and stop ids; a special token's name, which no text shows, is an id."""
    tokenizer, stops = model.tokenizer, cast(tuple[str | int, ...], config.stop)
    special = {tokenizer.backend.id_to_token(id): id for id in tokenizer.special_ids}
    strings = [stop for stop in stops if isinstance(stop, str) and stop not in special]
    rest = (stop for stop in stops if stop not in strings)
    ids = [special[stop] if isinstance(stop, str) else stop for stop in rest]
    return strings, (*model.eos, *ids)


def _tree(model: DartModel, config: GenerationConfig) -> tuple[int, SearchConfig]:
    nodes, search = default_tree(model.drafter)
    if model.drafter is None:
        nodes = 0
    if config.nodes is not None:
        # The default search is tuned for the default size.
        nodes, search = config.nodes, search if config.nodes == nodes else SearchConfig()
    return nodes, config.search or search
