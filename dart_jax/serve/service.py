"""The state that all routes share: the engine, the limits, and the texts that are generated."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from dart_jax.engine.request import Request
from dart_jax.engine.thread import AnyEngine, EngineClosed, QueueFull
from dart_jax.errors import UserError
from dart_jax.generation.prompts import check_ids, split_stops
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.grammar.trials import Trials, off_loop
from dart_jax.serve.body.errors import ApiError, bad, busy, unavailable
from dart_jax.serve.body.fields import CompletionFields, GenerationFields
from dart_jax.serve.body.structure import structure_of
from dart_jax.serve.config import ServeConfig
from dart_jax.serve.logprobs import TokenTexts
from dart_jax.serve.metrics import Metrics
from dart_jax.serve.prompts import Echo
from dart_jax.serve.texts import Text, Texts
from dart_jax.serve.tools.request import Tools
from dart_jax.text.thoughts import Thinking


class Service:
    """Generates texts with one model.

    Attributes:
      engine: decodes the requests.
      model: what is known of its model here.
      config: the options of the server.
      names: names of the model; the first one is in the answers.
      root: origin of the model.
      defaults: what requests leave out, see `ServeConfig.defaults`.
      metrics: counts and times since the start.
      token_texts: single tokens as text.
    """

    def __init__(self, engine: AnyEngine, config: ServeConfig):
        """See the attributes. Raises UserError as `ServeConfig.defaults`."""
        self.engine, self.config, self.model = engine, config, engine.model
        self.names, self.root = config.names, config.title
        self.defaults = config.defaults(self.model.tokenizer.directory)
        # As the first page, they name no model to those without a key.
        label = self.names[0] if config.key is None else "model"
        self.metrics = Metrics(engine, label, config.metrics_names)
        self.token_texts = TokenTexts(self.model.tokenizer)
        self._trials = Trials(self.model.grammars, config.grammars)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError if a request names another model; without a name it means this one."""
        if name is not None and name not in self.names:
            message = f"there is no model {name!r}; this server has {', '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def generate(
        self,
        fields: GenerationFields,
        prompts: Sequence[np.ndarray],
        tools: Tools | None = None,
        thinking: Thinking | None = None,
        echoes: Sequence[Echo] = (),
    ) -> Texts:
        """Begins to generate `n` texts for each prompt.

        Args:
          fields: the client's.
          prompts: int32 [n], their tokens.
          tools: that the texts may call.
          thinking: how they think, if they do.
          echoes: of all prompts, if the texts begin with them.

        Raises:
          ApiError: there is no room for the requests, or the texts' structure cannot be used.
          UserError: an option is out of range.
        """
        grammar = await self._grammar(fields, tools)
        requests, stop = self._requests(fields, prompts, grammar, thinking)
        shown = set() if tools is None else set(tools.marks.values())
        if thinking is not None:
            shown |= {id for id in (thinking.begin, thinking.end) if id is not None}
        options = {
            "skip_special_tokens": fields.skip_special_tokens,
            "shown": shown,
            "include_stop": fields.include_stop_str_in_output,
            "min_tokens": fields.min_tokens,
            "continues": isinstance(fields, CompletionFields) or grammar is not None,
        }
        repeated = [echo for echo in echoes for _ in range(fields.n)]
        texts = [
            Text(self.model.tokenizer, request, stop, options, echo)
            for request, echo in zip_longest(requests, repeated)
        ]
        interval = self.config.stream_interval
        try:
            return Texts(self.engine, self.metrics, texts, fields.arrived, interval)
        except QueueFull as error:
            raise busy(str(error), error.retry_after) from None
        except EngineClosed as error:
            raise unavailable(str(error)) from None

    def close(self) -> None:
        """Ends what still runs."""
        self._trials.close()
        self.engine.close()

    async def _grammar(self, fields: GenerationFields, tools: Tools | None) -> str | None:
        """Compiles the grammar that a request's texts must follow, while others are answered;
        returns it as `Grammars.check` does, None for no grammar."""
        asked = structure_of(fields)
        if asked is None and tools is None:
            return None
        name, outputs = asked or ("tools", None)
        try:
            answer = None if outputs is None else StructuredOutputs.of(outputs)
            if tools is None:
                return None if answer is None else await self._trials.check(answer)
            if not tools.holds(answer):
                return None
            size = tools.size(answer)
            self.config.grammars.check_size("the tools", size)
            both = await off_loop(lambda: tools.outputs(answer))
            return await self._trials.check(both, size)
        except UserError as error:
            raise bad(f"{name}: {error}", name) from None

    def _requests(
        self,
        fields: GenerationFields,
        prompts: Sequence[np.ndarray],
        grammar: str | None,
        thinking: Thinking | None,
    ) -> tuple[list[Request], list[str]]:
        """Returns the engine's requests, and the strings that end a text."""
        most = self.engine.config.slots + self.engine.config.queue
        count = len(prompts) * fields.n
        if count > most:
            message = f"{count} texts were asked for at once; the most is {most}"
            raise bad(message, "n" if fields.n > 1 else "prompt")
        if fields.most_tokens == 0 and fields.prompt_top is None:
            message = "max_tokens must be at least 1, got 0; 0 needs echo or prompt_logprobs"
            raise bad(message, "max_tokens")
        if fields.stream and fields.prompt_logprobs is not None:
            raise bad("prompt_logprobs cannot be streamed; leave out stream", "prompt_logprobs")
        tokenizer, vocab_size = self.model.tokenizer, self.model.target.vocab_size
        stop, ids = split_stops(tokenizer, [*fields.stop, *fields.stop_token_ids], vocab_size)
        check_ids("logit_bias", fields.logit_bias, vocab_size, tokenizer)
        if fields.min_tokens and grammar is not None:
            raise bad("min_tokens cannot be kept with a structure; leave it out", "min_tokens")
        # A text ends where its grammar does, regardless of the client.
        eos = () if fields.ignore_eos and grammar is None else self.model.eos
        # As `DartModel.generate`: the same seed gives each text its own draws, by its number.
        seed = secrets.randbits(32) if fields.seed is None else fields.seed % 2**32
        # A named model's belong together, as in `generate --chat`.
        apart = self.config.named and "temperature" in fields.model_fields_set
        defaults = {} if apart else self.defaults
        usual = defaults.get("max_new_tokens")
        common: dict[str, Any] = {
            "sampling": fields.sampling(defaults),
            "presence_penalty": fields.presence_penalty,
            "frequency_penalty": fields.frequency_penalty,
            "logit_bias": fields.logit_bias,
            "seed": seed,
            "stop_ids": tuple(dict.fromkeys((*eos, *ids))),
            "grammar": grammar,
            "thoughts": None if thinking is None else thinking.marks,
            "min_new_tokens": fields.min_tokens,
            "logprobs": fields.top,
            "prompt_logprobs": fields.prompt_top,
            "draft_group": fields.draft_group,
        }
        keep = fields.truncate_prompt_tokens
        if keep is not None:
            if keep < 0:
                keep = self.engine.max_length - (fields.most_tokens or 1)
            prompts = [prompt[len(prompt) - min(keep, len(prompt)) :] for prompt in prompts]
        every = enumerate(prompt for prompt in prompts for _ in range(fields.n))
        return [
            Request(tokens, self._room(tokens, fields.most_tokens, usual), choice=choice, **common)
            for choice, tokens in every
        ], stop

    def _room(self, tokens: np.ndarray, most: int | None, usual: int | None) -> int:
        """Returns the maximum number of new tokens: what the client asks for, or the usual one if
        there is room; raises ApiError if there is none."""
        longest, count = self.engine.max_length, len(tokens)
        if count < 1:
            raise bad("the prompt is empty; give it at least one token", "prompt")
        if count + (1 if most is None else most) > longest:
            wish = "one must be new" if most is None else f"{most} new ones were asked for"
            # Clients that shorten a conversation know the error by its first words.
            raise bad(
                f"this model's maximum context length is {longest} tokens; the prompt has {count}, "
                f"and {wish}",
                "prompt",
                "context_length_exceeded",
            )
        return min(longest - count, usual or longest) if most is None else most
