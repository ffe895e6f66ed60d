"""The fields of requests: what clients may ask for, and what is refused by name.

Names and defaults are those of OpenAI's API, with the extensions of vLLM. Fields that are not known
are ignored, as many clients send some that make no difference here; those that would change the
answer are in `REFUSED`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.request import MOST_LOGPROBS
from dart_jax.serve.errors import bad

# Every stop string is looked for in every piece of text.
MOST_STOPS = 64


def _one_or_several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> Any:
    """A list of prompts, each a text or token ids; raises ValueError for anything else."""
    wrong = ValueError("must be a text, token ids, or a list of texts or of lists of token ids")
    if isinstance(value, str) or _ids(value):
        return [value]
    if not isinstance(value, list) or not value:
        raise wrong
    if not all(isinstance(one, str) or _ids(one) for one in value):
        raise wrong
    return value


def _ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


Strings = Annotated[list[str], BeforeValidator(_one_or_several), Field(max_length=MOST_STOPS)]
Prompts = Annotated[list[Any], BeforeValidator(_prompts)]


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, fields: Any) -> Any:
        """Null means the same as no field."""
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class StreamOptions(_Fields):
    """What a stream reports besides the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationFields(_Fields):
    """What both endpoints that generate text have in common."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1)
    max_tokens: int | None = Field(None, ge=0)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    stop: Strings = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn; raises UserError if a value is out of range."""
        top_k = 0 if self.top_k == -1 else self.top_k
        return Sampling(self.temperature, top_k, self.top_p, self.min_p, self.repetition_penalty)

    @property
    def bias(self) -> dict[int, float]:
        """`logit_bias` by id; raises ApiError if a name is none."""
        try:
            return {int(token): bias for token, bias in self.logit_bias.items()}
        except ValueError:
            raise bad("logit_bias must map token ids to numbers", "logit_bias") from None

    @property
    def most_tokens(self) -> int | None:
        """The maximum number of new tokens; None for all that fit."""
        return self.max_tokens

    @property
    def top(self) -> int | None:
        """How many most likely tokens are reported; None for no log-probabilities."""
        raise NotImplementedError


class CompletionFields(GenerationFields):
    """The body of /v1/completions."""

    prompt: Prompts
    max_tokens: int | None = Field(16, ge=0)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_special_tokens: bool = True

    @property
    def top(self) -> int | None:
        """See `GenerationFields`."""
        return self.logprobs


class ChatFields(GenerationFields):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def most_tokens(self) -> int | None:
        """See `GenerationFields`; `max_tokens` is the older name."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    @property
    def top(self) -> int | None:
        """See `GenerationFields`."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeFields(_Fields):
    """The body of /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False


class DetokenizeFields(_Fields):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[int]


# Fields that would change the answer -> the values with which they do not.
REFUSED: Mapping[str, Sequence[Any]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}

_Kind = TypeVar("_Kind", bound=_Fields)


def read_fields(kind: type[_Kind], body: Mapping[str, Any]) -> _Kind:
    """Reads the fields of a request.

    Args:
      kind: what it may have.
      body: without fields that are null.

    Raises:
      ApiError: a field is refused, missing, or has another type or value than it may have.
    """
    for name, value in body.items():
        known = name not in REFUSED and not name.startswith("guided_")
        if not known and value not in REFUSED.get(name, ()):
            raise bad(
                f"{name} is not supported by this server; leave it out",
                name,
                "unsupported_parameter",
            )
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> Exception:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return bad(f"{name} is missing", name)
    what = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    what = f"{name} {what[:1].lower()}{what[1:]}"
    given = first["input"]
    if isinstance(given, bool | int | float | str) and len(str(given)) <= 40:
        what += f", got {given!r}"
    return bad(what, name)
