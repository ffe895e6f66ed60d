"""Fields of requests that clients may use, and fields that make no difference.

Names and defaults are as in OpenAI's API, with the extensions of vLLM. Every other field is refused
by name: it might change the answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from starlette.requests import Request

from dart_jax.decoding.options import Sampling
from dart_jax.engine.request import MOST_LOGPROBS
from dart_jax.serve.body.content import only_texts
from dart_jax.serve.body.errors import CLOSE, ApiError, bad
from dart_jax.serve.body.neutral import may_matter

# Every stop string is looked for in every piece of text.
MOST_STOPS = 64

# Seconds in which a whole body must come.
MOST_SECONDS = 120.0


def _one_or_several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> Any:
    """Returns a list of prompts, each a text or token ids; raises ValueError for anything else."""
    prompts = [value] if _is_prompt(value) else value
    if isinstance(prompts, list) and prompts and all(map(_is_prompt, prompts)):
        return prompts
    raise ValueError("must be a text, token ids, or a list of texts or of lists of token ids")


def _is_prompt(value: Any) -> bool:
    ids = isinstance(value, list) and bool(value) and all(type(one) is int for one in value)
    return ids or isinstance(value, str)


Strings = Annotated[list[str], BeforeValidator(_one_or_several), Field(max_length=MOST_STOPS)]
Prompts = Annotated[list[Any], BeforeValidator(_prompts)]
Messages = Annotated[list[dict[str, Any]], AfterValidator(only_texts)]

# What llama.cpp, Ollama and LM Studio write for no limit, and llama.cpp for no biases.
_Unlimited = BeforeValidator(lambda value: None if value == -1 else value)
_Unbiased = BeforeValidator(lambda value: {} if value == [] else value)
# JSON writes all names of an object as strings.
Id = Annotated[int, Field(strict=False)]


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, fields: Any) -> Any:
        """Leaves out what is null, which means the same as no field; 1.0 is 1, as in JSON."""
        if not isinstance(fields, dict):
            return fields
        return {
            name: int(value) if type(value) is float and value.is_integer() else value
            for name, value in fields.items()
            if value is not None
        }


class RequestFields(_Fields):
    """The body of a request."""

    model: str | None = None
    _arrived: float = PrivateAttr(default_factory=time.monotonic)

    @property
    def arrived(self) -> float:
        """When the client had asked, in seconds of `time.monotonic`."""
        return self._arrived

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, fields: Any) -> Any:
        """Raises ApiError for a field that may change the answer."""
        for name in fields if isinstance(fields, dict) else ():
            if name not in cls.model_fields and may_matter(name, fields):
                message = f"{name} is not supported by this server; leave it out"
                raise bad(message, name, "unsupported_parameter")
        return fields


class StreamOptions(_Fields):
    """Options of a stream: reports besides the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


# How much a model is to think before it answers.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(_Fields):
    """Options of thoughts, in responses and with OpenRouter. They are never summarised."""

    model_config = ConfigDict(extra="forbid")

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool = False
    summary: Literal["auto", "concise", "detailed"] | None = None


class GenerationFields(RequestFields):
    """Fields that both endpoints that generate text have."""

    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1)
    max_tokens: Annotated[int | None, Field(ge=0), _Unlimited] = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Annotated[dict[Id, float], _Unbiased] = {}
    seed: int | None = None
    stop: Strings = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    prompt_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    return_tokens_as_token_ids: bool = False
    draft_group: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    # The text's structure; see `structure.py`.
    response_format: dict[str, Any] = {"type": "text"}
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_json_object: bool = False
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None

    def sampling(self, defaults: Mapping[str, Any]) -> Sampling:
        """Returns the distribution of tokens, with defaults for options that the client leaves out;
        raises UserError if a value is out of range."""
        names = [field.name for field in dataclasses.fields(Sampling)]
        values = {name: getattr(self, name) for name in names}
        left_out = values.keys() - self.model_fields_set
        values |= {name: value for name, value in defaults.items() if name in left_out}
        values["top_k"] = 0 if values["top_k"] == -1 else values["top_k"]
        return Sampling(**values)

    @property
    def most_tokens(self) -> int | None:
        """The maximum number of new tokens, or None for the usual one, or all that fit."""
        return self.max_tokens

    @property
    def top(self) -> int | None:
        """Number of most likely tokens to report, or None for no log-probabilities."""
        raise NotImplementedError

    @property
    def prompt_top(self) -> int | None:
        """The same in the place of a prompt's tokens."""
        return self.prompt_logprobs


class CompletionFields(GenerationFields):
    """The body of /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int | None, Field(ge=0), _Unlimited] = 16
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    echo: bool = False
    add_special_tokens: bool = True

    @property
    def top(self) -> int | None:
        """See `GenerationFields`."""
        return self.logprobs

    @property
    def prompt_top(self) -> int | None:
        """See `GenerationFields`; of an echo, as many as of the text. Without a text there are
        always some, since the engine does nothing else then."""
        wanted = [self.prompt_logprobs]
        if self.echo:
            wanted += [self.logprobs, 0 if self.max_tokens == 0 else None]
        return max((count for count in wanted if count is not None), default=None)


class Function(_Fields):
    """A function that a model may ask the client to call."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(_Fields):
    """A tool: a function."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


@dataclasses.dataclass(frozen=True)
class ToolChoice:
    """Which tools a model may call.

    Attributes:
      mode: "none", "auto", "required", or "function", which is a call of the only one.
      names: of functions, by default all.
    """

    mode: str = "auto"
    names: tuple[str, ...] | None = None


def _tool_choice(value: Any) -> ToolChoice:
    """Reads a tool choice; raises ValueError if it is none."""
    if value in ("none", "auto", "required"):
        return ToolChoice(value)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function" and (name := _named(value)):
        return ToolChoice("function", (name,))
    if kind == "allowed_tools":
        allowed = value.get("allowed_tools")
        mode, tools = map((allowed if isinstance(allowed, dict) else {}).get, ("mode", "tools"))
        names = [*map(_named, tools)] if isinstance(tools, list) else []
        if mode not in ("auto", "required") or not names or not all(names):
            raise ValueError(
                "of the type allowed_tools must have a mode, auto or required, and tools, a list "
                "of one or more functions by their names"
            )
        return ToolChoice(mode, tuple(map(str, names)))
    raise ValueError("must be none, auto, required, or of the type function or allowed_tools")


def _named(tool: Any) -> str | None:
    """Returns the name of a function that is not described."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if tool.get("type") == "function" and isinstance(name, str) else None


class ThoughtFields(GenerationFields):
    """Fields of those whose texts answer a chat: arguments of its template, and whether and how
    much the model thinks before it answers."""

    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: Effort | None = None
    reasoning: Reasoning = Reasoning()
    enable_thinking: bool | None = None
    include_reasoning: bool = True
    separate_reasoning: bool = True
    reasoning_format: Literal["auto", "deepseek", "none"] = "auto"


class ChatFields(ThoughtFields):
    """The body of /v1/chat/completions."""

    messages: Messages
    tools: list[Tool] = []
    tool_choice: Annotated[Any, BeforeValidator(_tool_choice)] = ToolChoice()
    parallel_tool_calls: bool = True
    max_completion_tokens: Annotated[int | None, Field(ge=1), _Unlimited] = None
    n_predict: Literal[-1] | None = None  # the default of chats
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="before")
    @classmethod
    def _one_end(cls, fields: Any) -> Any:
        """Raises ApiError if the last message is to be continued, and an answer begun after it."""
        if isinstance(fields, dict) and fields.get("continue_final_message") is True:
            if fields.get("add_generation_prompt"):
                message = "continue_final_message needs add_generation_prompt to be false"
                raise bad(message, "continue_final_message")
            return {**fields, "add_generation_prompt": False}
        return fields

    @property
    def template_options(self) -> dict[str, Any]:
        """Arguments of the chat template. Templates leave those aside that they do not know, and
        call the same by several names."""
        effort = self.reasoning_effort or self.reasoning.effort
        thinks = self.reasoning.enabled if self.enable_thinking is None else self.enable_thinking
        if thinks is None and effort is not None:
            thinks = effort != "none"
        options: dict[str, Any] = {}
        if effort is not None:
            options["reasoning_effort"] = effort
        if thinks is not None:
            options |= {"enable_thinking": thinks, "thinking": thinks}
        return options | self.chat_template_kwargs

    @property
    def continued(self) -> str | None:
        """The beginning of the answer, if the messages have it."""
        return (self.messages[-1].get("content") or "") if self.continue_final_message else None

    @property
    def separates_thoughts(self) -> bool:
        """True if thoughts are not to be in the content."""
        return self.separate_reasoning and self.reasoning_format != "none"

    @property
    def shows_thoughts(self) -> bool:
        """True if thoughts that are apart are part of the answer."""
        return self.include_reasoning and not self.reasoning.exclude

    @property
    def most_tokens(self) -> int | None:
        """See `GenerationFields`; `max_tokens` is the older name."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    @property
    def top(self) -> int | None:
        """See `GenerationFields`."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeFields(RequestFields):
    """The body of /tokenize: a prompt or messages."""

    prompt: str | None = None
    add_special_tokens: bool = True
    messages: Messages | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False

    @property
    def template_options(self) -> dict[str, Any]:
        """See `ChatFields`."""
        return self.chat_template_kwargs


class DetokenizeFields(RequestFields):
    """The body of /detokenize."""

    tokens: list[int]


class ResponseFields(ThoughtFields):
    """The body of /v1/responses; see `responses.py`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Annotated[int | None, Field(ge=1), _Unlimited] = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    include: list[str] = []
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = {}
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: dict[str, Any] = {}


_Kind = TypeVar("_Kind", bound=RequestFields)


async def receive(kind: type[_Kind], request: Request, most: int) -> _Kind:
    """Reads the fields of a request, of whose body at most `most` bytes are read.

    Raises:
      ApiError: the body is too large, or no JSON; or a field is refused, missing, or
        has another type or value than it may have.
      ClientDisconnect: the client has gone.
    """
    return checked(kind.model_validate_json, await _body(request, most))


def checked(make: Callable[[Any], _Kind], content: Any) -> _Kind:
    """Makes fields by a method of their class; raises ApiError as `receive`."""
    try:
        return make(content)
    except ValidationError as error:
        raise _refusal(error) from None


async def _body(request: Request, most: int) -> bytes:
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        message = f"bodies in {coding!r:.40} are not read; send JSON as it is"
        raise ApiError(415, message, code="unsupported_encoding", headers=CLOSE)
    message = f"the body is larger than {most:,} bytes, the most that is read"
    too_large = ApiError(413, message, code="request_too_large", headers=CLOSE)
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(MOST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        message = f"the body did not come within {MOST_SECONDS:g} seconds"
        raise ApiError(408, message, headers=CLOSE) from None
    return bytes(body)


def _refusal(error: ValidationError) -> ApiError:
    """Describes the first mistake in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "json_invalid":
        return bad(f"the body is not JSON: {message.removeprefix('Invalid JSON: ')}")
    if not name:
        return bad("the body must be a JSON object")
    if first["type"] == "missing":
        return bad(f"{name} is missing", name)
    message = f"{name} {message[:1].lower()}{message[1:]}"
    value = first["input"]
    if isinstance(value, bool | int | float | str) and len(str(value)) <= 40:
        message += f", got {value!r}"
    return bad(message, name)
