"""Options of `DartModel.generate` and `DartModel.stream`."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

import numpy as np
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from dart_jax.decoding.options import LogitsConfig, LogitsProcessor, Sampling
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.errors import UserError, meant, warn
from dart_jax.generation import transformers_options
from dart_jax.grammar.outputs import StructuredOutputs

if TYPE_CHECKING:
    import transformers

_INTEGERS = ("max_new_tokens", "max_length", "top_k", "seed", "logprobs", "tree_nodes")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_FLAGS = ("do_sample", "output_scores", "use_ngram")
_OPTIONAL = ("max_length", "do_sample", "temperature", "logprobs", "tree_nodes")

# How a command line says stop strings.
_STRINGS = PrimitiveConstructorSpec(
    nargs="*",
    metavar="[STR [STR ...]]",
    instance_from_str=tuple,
    is_instance=lambda given: isinstance(given, tuple),
    str_from_instance=list,
)

# The largest number that fits the programs' int32.
_LARGEST = 2**31 - 1


class GenerationOptions(TypedDict, total=False):
    """Fields of `GenerationConfig` as keyword arguments; None leaves a field unchanged."""

    max_new_tokens: int | np.integer | None
    max_length: int | np.integer | None
    do_sample: bool | None
    temperature: float | np.floating | None
    top_k: int | np.integer | None
    top_p: float | np.floating | None
    min_p: float | np.floating | None
    repetition_penalty: float | np.floating | None
    seed: int | np.integer | None
    stop: Sequence[str | int | np.integer] | str | int | np.integer | None
    eos_token_id: Sequence[int] | int | np.integer | None
    logprobs: int | np.integer | None
    output_scores: bool | None
    logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None
    tree_nodes: int | np.integer | None
    search: SearchConfig | None
    use_ngram: bool | None
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None
    chat_template_kwargs: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """Generation options, named as in `transformers` where it has them.

    Greedy by default, as in papers, even if the target's generation config asks for sampling;
    `DartModel.generation_config` has the target's own.
    """

    max_new_tokens: int = 256
    """Maximum number of new tokens; fewer if the target runs out of positions."""
    max_length: Annotated[int | None, tyro.conf.Suppress] = None
    """Maximum length of prompt and new tokens together, besides `max_new_tokens`; by default the
    target's positions."""
    do_sample: Annotated[bool | None, tyro.conf.Suppress] = None
    """False decodes greedily at any temperature; True samples, by default at temperature 1; None
    samples if the temperature is above 0."""
    temperature: float | None = None
    """Sampling temperature; 0, the default, decodes greedily."""
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
        Sequence[str | int] | str | int,
        tyro.conf.arg(help="Stop strings; the text ends before them."),
        _STRINGS,
    ] = ()
    """Stop strings (the text ends before them) and stop token ids, in addition to the target's
    own; or a single one."""
    eos_token_id: Annotated[Sequence[int] | int | None, tyro.conf.Suppress] = None
    """Ids that end a text, instead of the target's own; an empty tuple for none."""
    logprobs: Annotated[int | None, tyro.conf.Suppress] = None
    """Report the log-probability of every new token, and of this number of most likely tokens; 0
    for only the token's own. They are the target's, before any penalty, temperature or filter."""
    output_scores: Annotated[bool, tyro.conf.Suppress] = False
    """Report the scores that every new token was drawn from, of the whole vocabulary."""
    logits_processor: Annotated[
        Sequence[LogitsProcessor] | LogitsProcessor, tyro.conf.Suppress
    ] = ()
    """Pure JAX functions (tokens int32 [S], logits float32 [V], length) -> logits, applied to every
    row after the repetition penalty. The first `length` tokens are the sequence so far, the rest
    are -1. Programs are compiled for them, so pass the same function objects to every call."""
    tree_nodes: int | None = None
    """Nodes of the draft tree, besides the root; 0 for plain decoding. By default the number that
    pays best, as decoding finds out, down to plain decoding where none does."""
    search: Annotated[SearchConfig | None, tyro.conf.Suppress] = None
    """Parameters of the tree search; by default those that belong to the tree's size."""
    use_ngram: Annotated[bool, tyro.conf.Suppress] = True
    """Use the n-gram model in the tree search, if there is one."""
    structured_outputs: Annotated[
        StructuredOutputs | Mapping[str, Any] | None, tyro.conf.Suppress
    ] = None
    """A JSON schema, regular expression, choice or grammar that the text must follow, such as
    {"json": SCHEMA}."""
    chat_template_kwargs: Annotated[Mapping[str, Any], tyro.conf.Suppress] = dataclasses.field(
        default_factory=dict
    )
    """Arguments of the target's chat template, such as enable_thinking."""

    def __post_init__(self) -> None:
        for name in (*_INTEGERS, *_NUMBERS, *_FLAGS):
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, _checked(name, value))
        object.__setattr__(self, "stop", tuple(_stops(self.stop)))
        if self.eos_token_id is not None:
            object.__setattr__(self, "eos_token_id", _ids("eos_token_id", self.eos_token_id))
        if self.structured_outputs is not None:
            outputs = StructuredOutputs.of(self.structured_outputs)
            object.__setattr__(self, "structured_outputs", outputs)
        given = self.logits_processor
        processors = tuple(given) if isinstance(given, Iterable) else (given,)
        if not all(map(callable, processors)):
            raise UserError("logits_processor must be functions (tokens, logits, length) -> logits")
        object.__setattr__(self, "logits_processor", processors)
        if self.logprobs is not None and self.logprobs < 0:
            raise UserError(f"logprobs must be at least 0, got {self.logprobs}")
        if self.max_length is not None and self.max_length < 1:
            raise UserError(f"max_length must be at least 1, got {self.max_length}")

    @classmethod
    def of(
        cls,
        config: GenerationConfig | transformers.GenerationConfig | None,
        options: Mapping[str, Any] | GenerationOptions,
    ) -> GenerationConfig:
        """Returns `config`, or the defaults, with some fields replaced.

        An option that is None leaves its field unchanged, as in `transformers`.

        Raises:
          UserError: a field does not exist, or a value has the wrong type or cannot be honoured.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(options.keys() - set(names))
        if unknown:
            raise UserError(_unknown(unknown, names))
        if not isinstance(config, GenerationConfig | None):
            config = cls(**transformers_options.convert(config))
        given: Any = {name: value for name, value in options.items() if value is not None}
        result = dataclasses.replace(config or cls(), **given)
        filters = given.keys() & {"top_k", "top_p", "min_p"}
        chosen = result.temperature is not None or result.do_sample is not None
        if filters and not chosen and not result.sampling.temperature:
            warn(f"without a temperature decoding is greedy, and {min(filters)} changes nothing")
        return result

    @classmethod
    def from_transformers(
        cls, config: transformers.GenerationConfig | Mapping[str, Any]
    ) -> GenerationConfig:
        """Converts a config of `transformers`, or the contents of a `generation_config.json`.

        What is not set there takes the defaults of `transformers`, such as `top_k=50`, except for
        the length.

        Raises:
          UserError: a field asks for something that is not supported, such as beam search.
        """
        if transformers_options.return_sequences(config) != 1:
            raise UserError("pass num_return_sequences to generate; it is not part of a config")
        return cls(**transformers_options.convert(config))

    @property
    def sampling(self) -> Sampling:
        """The sampling options; raises UserError if a value is out of range."""
        temperature = self.temperature
        if self.do_sample is False:
            temperature = 0.0
        elif temperature is None:
            temperature = 1.0 if self.do_sample else 0.0
        elif temperature == 0 and self.do_sample:
            raise UserError(
                "do_sample=True needs a temperature above 0; leave out one of the two options"
            )
        return Sampling(temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty)

    @property
    def logits(self) -> LogitsConfig:
        """Processors of the target's logits, and what is reported about them."""
        processors = cast(tuple[LogitsProcessor, ...], self.logits_processor)
        return LogitsConfig(processors, self.logprobs, self.output_scores)


def _checked(name: str, value: Any) -> Any:
    """Returns an option's value as a Python number; raises UserError if it is something else."""
    flag = isinstance(value, bool | np.bool_)
    if name in _FLAGS:
        if not flag:
            raise UserError(f"{name} must be True or False, got {value!r}")
        return bool(value)
    if name in _INTEGERS:
        if flag or not isinstance(value, numbers.Integral):
            raise UserError(f"{name} must be an integer, got {value!r}")
        number = int(value)
        if name != "seed" and number > _LARGEST:
            raise UserError(f"{name} must be at most {_LARGEST}, got {number}")
        return number
    if flag or not isinstance(value, numbers.Real):
        raise UserError(f"{name} must be a number, got {value!r}")
    return float(value)


def _stops(stop: Any) -> Iterable[str | int]:
    """Stop strings and ids as a sequence of Python values."""
    given = (stop,) if isinstance(stop, str | numbers.Integral) else stop
    if not isinstance(given, Iterable):
        raise UserError(f"stop must be strings and token ids, got {stop!r}")
    for one in given:
        if isinstance(one, bool | np.bool_) or not isinstance(one, str | numbers.Integral):
            raise UserError(f"stop must be strings and token ids, got {stop!r}")
        yield one if isinstance(one, str) else int(one)


def _ids(name: str, ids: Any) -> tuple[int, ...]:
    """Token ids as Python integers."""
    given = tuple(ids) if isinstance(ids, Iterable) else (ids,)
    for one in given:
        if isinstance(one, bool) or not isinstance(one, numbers.Integral):
            raise UserError(f"{name} must be a token id or several, got {ids!r}")
    return tuple(map(int, given))


def _unknown(unknown: Sequence[str], names: Sequence[str]) -> str:
    """Returns the message for options that do not exist."""
    name = unknown[0]
    if name in transformers_options.NAMES:
        return f"{name} is not supported; the options are {', '.join(names)}"
    return f"unknown option {name}; {meant(name, names, 'the options are ' + ', '.join(names))}"
