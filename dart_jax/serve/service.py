"""What all routes share: the engine, the limits, and how a request becomes the engine's."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from dart_jax.engine.request import Request
from dart_jax.errors import UserError
from dart_jax.generation.prompts import split_stops
from dart_jax.serve.errors import ApiError, bad, busy, unavailable
from dart_jax.serve.fields import GenerationFields
from dart_jax.serve.logprobs import TokenTexts
from dart_jax.serve.metrics import Metrics
from dart_jax.serve.prompts import check_ids
from dart_jax.serve.texts import Texts
from dart_jax.serving.engine import EngineClosed
from dart_jax.serving.interface import AnyEngine, QueueFull


@dataclasses.dataclass(frozen=True)
class Limits:
    """What clients may use.

    Attributes:
      max_body: bytes of a request's body.
      timeout: seconds that an answer may take; None for any time.
      stream_interval: seconds between pieces of a stream, at least.
      api_key: what clients must send; None if everybody may ask.
    """

    max_body: int = 8_000_000
    timeout: float | None = None
    stream_interval: float = 0.0
    api_key: str | None = None


class Service:
    """Generates texts with one model.

    Attributes:
      engine: does the work.
      names: names of the model; the first one is in the answers.
      root: where the model came from.
      limits: what clients may use.
      metrics: what is measured.
      token_texts: single tokens as text.
      running: the answers that are being made.
      draining: whether no new ones are accepted.
    """

    def __init__(
        self,
        engine: AnyEngine,
        names: Sequence[str],
        root: str,
        limits: Limits,
        metrics_prefix: str = "dart",
    ):
        """See the attributes; `metrics_prefix` as in `Metrics`."""
        self.engine, self.names, self.root, self.limits = engine, tuple(names), root, limits
        self.model, self.tokenizer = engine.model, engine.model.tokenizer
        self.metrics = Metrics(engine, self.names[0], metrics_prefix)
        self.token_texts = TokenTexts(self.tokenizer)
        self.running: set[Texts] = set()
        self.draining = False

    def check_accepting(self) -> None:
        """Raises ApiError if nothing is answered any more."""
        if self.draining:
            raise unavailable()

    def check_model(self, name: str | None) -> None:
        """Raises ApiError if a request names another model; without a name it means this one."""
        if name is not None and name not in self.names:
            known = ", ".join(self.names)
            raise ApiError(
                404,
                f"there is no model {name!r}; this server has {known}",
                param="model",
                code="model_not_found",
            )

    def requests(
        self, fields: GenerationFields, prompts: Sequence[np.ndarray]
    ) -> tuple[list[Request], list[str]]:
        """The engine's requests, `n` for each prompt, and the strings that end a text.

        Raises:
          ApiError: a prompt with its text is too long, or these are too many.
          UserError: an option is out of range.
        """
        most = self.engine.config.slots + self.engine.config.queue
        if len(prompts) * fields.n > most:
            raise bad(
                f"{len(prompts) * fields.n} texts were asked for at once; the most is {most}",
                "n" if fields.n > 1 else "prompt",
            )
        vocab_size = self.model.target.vocab_size
        stops: list[Any] = [*fields.stop, *fields.stop_token_ids]
        strings, ids = split_stops(self.tokenizer, stops, vocab_size)
        check_ids(self.tokenizer, fields.bias, vocab_size, "logit_bias")
        eos = () if fields.ignore_eos else self.model.eos
        # As `DartModel.generate`: the same seed gives each text its own draws, by its number.
        seed = secrets.randbits(32) if fields.seed is None else fields.seed % 2**32
        common: dict[str, Any] = {
            "sampling": fields.sampling,
            "presence_penalty": fields.presence_penalty,
            "frequency_penalty": fields.frequency_penalty,
            "logit_bias": fields.bias,
            "seed": seed,
            "stop_ids": tuple(dict.fromkeys((*eos, *ids))),
            "logprobs": fields.top,
        }
        made = [
            Request(tokens, self._room(tokens, fields.most_tokens), choice=choice, **common)
            for choice, tokens in enumerate(p for p in prompts for _ in range(fields.n))
        ]
        return made, strings

    def generate(self, requests: Sequence[Request], stop: Sequence[str], arrived: float) -> Texts:
        """Begins to generate; as `Texts`, which must be passed to `forget` at the end.

        Raises:
          ApiError: there is no room for the requests, or the server is shutting down.
          UserError: they do not fit the model.
        """
        try:
            texts = Texts(
                self.engine, self.metrics, requests, stop, arrived, self.limits.stream_interval
            )
        except QueueFull as error:
            raise busy(str(error), error.retry_after) from None
        except EngineClosed as error:
            raise unavailable(str(error)) from None
        self.running.add(texts)
        return texts

    def forget(self, texts: Texts) -> None:
        """The answer is over: cancels what still runs of it."""
        self.running.discard(texts)
        texts.close()

    def _room(self, tokens: np.ndarray, most: int | None) -> int:
        """The maximum number of new tokens; raises ApiError if there is no room for them."""
        longest, count = self.engine.max_length, len(tokens)
        if count < 1:
            raise bad("the prompt is empty; give it at least one token", "prompt")
        if most == 0:
            raise bad("max_tokens must be at least 1", "max_tokens")
        if count >= longest or count + (most or 0) > longest:
            asked = "" if most is None else f" and {most} new tokens were asked for"
            raise bad(
                f"the prompt has {count} tokens{asked}, but prompt and text together have at most "
                f"{longest} here, and one of them must be new",
                "prompt",
                "context_length_exceeded",
            )
        return longest - count if most is None else most


def user_error(error: UserError, fields: GenerationFields | None = None) -> ApiError:
    """An error of the library as the client sees it, with the field that it is about."""
    message = str(error)
    names = [] if fields is None else list(type(fields).model_fields)
    words = message.split()[:3]  # such as `top_p must be` or `a stop string`
    param = next((word for word in words if word in names), None)
    return bad(message, param)
