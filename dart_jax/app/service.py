"""Serves visitors: turns a prompt and settings into a running answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dart_jax.app.answer import Answer
from dart_jax.app.methods import Method
from dart_jax.data.messages import alternating
from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.request import Request
from dart_jax.errors import UserError
from dart_jax.generation.prompts import encode_prompt
from dart_jax.model import DartModel
from dart_jax.serving.config import ServingConfig, Warmup
from dart_jax.serving.engine import Engine, EngineFailed, Ticket
from dart_jax.serving.interface import QueueFull

COMPILING = "Compiling; takes some seconds, only the first time."
LEAST = 8  # new tokens

_REFRESH = 0.08  # seconds between updates of a page
_CHARACTERS_PER_TOKEN = 32  # seldom more: longer texts are refused without encoding


class Settings(NamedTuple):
    """The page's controls, in their order.

    Attributes:
      method: its key in `Service.methods`.
      temperature: 0 always picks the most likely token.
      top_p: as in `GenerationConfig`.
      top_k: as in `GenerationConfig`.
      tree_nodes: nodes of the draft trees; 0 for trees whose size changes.
      max_new_tokens: maximum tokens of an answer.
      seed: seed for sampling, in 0..2**32 - 1.
    """

    method: str
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    tree_nodes: int = 0
    max_new_tokens: int = 128
    seed: int = 0


class Entry(NamedTuple):
    """A prompt and its answer, as texts and as HTML."""

    prompt: str
    text: str
    html: str = ""


@dataclasses.dataclass
class Visitor:
    """One tab of a browser: its conversation, and at most one running answer or race.

    Attributes:
      entries: the conversation.
      last: the last answer, for its trees.
      tickets: of the answers that are running.
      stopped: whether these are to end.
    """

    entries: list[Entry] = dataclasses.field(default_factory=list)
    last: Answer | None = None
    tickets: list[Ticket] = dataclasses.field(default_factory=list)
    stopped: bool = False

    def stop(self) -> None:
        """Stops the running answers, whose text stays. Callable from any thread."""
        self.stopped = True
        for ticket in self.tickets:
            ticket.cancel()


class Service:
    """One engine for all visitors.

    Attributes:
      methods: the methods to choose from.
      engine: decodes their answers.
      most: maximum new tokens of an answer.
      longest: maximum tokens of a prompt and its answer.
      chat: whether the target has a chat template; otherwise it continues texts.
      default: the initial settings of the page.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        most: int,
        longest: int,
        together: int = 8,
        waiting: int = 48,
        warmup: Warmup = "greedy",
    ):
        """Starts the engine.

        Args:
          methods: the methods to choose from; the first one is the default.
          most: maximum new tokens of an answer.
          longest: maximum tokens of a prompt and its answer.
          together: maximum number of answers that each method writes at once.
          waiting: maximum number of answers that wait for one of these places.
          warmup: programs that are compiled while nobody is served; the others are when they are
            needed, since programs take memory.

        Raises:
          UserError: the numbers do not fit the model, or each other.
        """
        default, base = next((key, method.model) for key, method in methods.items())
        self.methods, self.most = methods, most
        self.longest = min(longest, base.target.max_length)
        if not LEAST <= most < self.longest:
            raise UserError(
                f"--max-new-tokens must be from {LEAST} to {self.longest - 1}, so that a prompt "
                f"fits beside the answer, got {most}"
            )
        self.chat = bool(base.tokenizer.chat_template)
        self.default = Settings(default, max_new_tokens=min(128, most))
        self.engine = Engine(
            {name: method.model for name, method in methods.items()},
            ServingConfig(slots=together, queue=waiting, max_length=self.longest, warmup=warmup),
            warm_up_idle=True,
        )

    def close(self) -> None:
        """Stops all work and waits until it has ended."""
        self.engine.close()

    def model_of(self, answer: Answer) -> DartModel:
        """Returns the model that writes an answer."""
        return self.methods[answer.request.method or self.default.method].model

    def prepare(self, before: Sequence[Entry], text: str, settings: Settings) -> Answer:
        """Returns an answer that `serve` can start.

        Args:
          before: the conversation so far, which a target without chat template does not read.
          text: the visitor's message, or the text to continue.
          settings: how to answer.

        Raises:
          UserError: the prompt is empty, too long, or holds characters that cannot be encoded.
        """
        if not text.strip():
            raise UserError("the prompt is empty; write some text or choose an example")
        title, model = self.methods[settings.method]
        room = self.longest - settings.max_new_tokens
        prompt, size = text, len(text)
        if self.chat:
            turns = [turn for entry in before for turn in (entry.prompt, entry.text)]
            prompt = alternating([*turns, text])
            size += sum(map(len, turns))
        tokens = np.zeros(room + 1)
        if size <= room * _CHARACTERS_PER_TOKEN:
            tokens = encode_prompt(model.tokenizer, prompt, {}, model.target.vocab_size)
        if len(tokens) > room:
            raise UserError(
                f"the prompt is too long: {room:,} tokens fit beside the answer; shorten it, clear "
                "the chat, or lower Maximum new tokens"
            )
        request = Request(
            tokens.astype(np.int32),
            settings.max_new_tokens,
            Sampling(settings.temperature, settings.top_k, settings.top_p),
            seed=settings.seed,
            stop_ids=model.eos,
            method=settings.method,
            tree_nodes=settings.tree_nodes or None,
            drafts=True,
        )
        return Answer(title, request, model.tokenizer, self.engine.search(settings.method))

    async def serve(self, visitor: Visitor, answers: Sequence[Answer]) -> AsyncGenerator[str, None]:
        """Generates prepared answers; yields at intervals the reason why the visitor waits, if
        there is one. They are stopped when the iterator is closed.

        Raises:
          UserError: too many visitors, another answer is running, or an answer failed.
        """
        if visitor.tickets:
            raise UserError("an answer is being written; stop it first")
        visitor.stopped = False
        try:
            for answer in answers:
                visitor.tickets.append(self.engine.submit(answer.request, answer.receive))
            while True:
                stopped = visitor.stopped  # read first: what has come until then is shown
                for answer in answers:
                    answer.take_in()
                over = stopped or all(answer.ended for answer in answers)
                for answer in answers if over else ():
                    answer.ended = True
                yield "" if over else _waiting(visitor.tickets)
                if over:
                    return
                await asyncio.sleep(_REFRESH)
        except QueueFull:
            config = self.engine.config
            raise UserError(
                f"all places are taken ({config.slots} at once, {config.queue} waiting); try again "
                "in a moment"
            ) from None
        except EngineFailed as error:
            raise UserError(f"{error}; the app must be started again") from error
        finally:
            visitor.stop()
            visitor.tickets = []
            for answer in answers:
                answer.ended = True


def _waiting(tickets: Sequence[Ticket]) -> str:
    """Returns what the answers wait for, if anything."""
    if any(ticket.compiling for ticket in tickets):
        return COMPILING
    places = [ahead for ticket in tickets if (ahead := ticket.ahead) is not None]
    return f"{max(places)} waiting ahead of you." if places else ""
