"""Serves visitors: turns a prompt and settings into a running answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple

from dart_jax.app.answer import Answer, Prompt, encode
from dart_jax.app.methods import Method
from dart_jax.app.settings import LEAST, Settings
from dart_jax.engine.request import Request
from dart_jax.errors import UserError
from dart_jax.serving.config import ServingConfig, Warmup
from dart_jax.serving.engine import Engine, EngineFailed, Ticket
from dart_jax.serving.interface import QueueFull

# Seconds between updates of a page with new text.
_REFRESH = 0.08

COMPILING = "Compiling; takes some seconds, only the first time."


class Prepared(NamedTuple):
    """An answer that is ready to start, and the request that asks the engine for it."""

    answer: Answer
    request: Request


class Entry(NamedTuple):
    """A prompt and its answer.

    Attributes:
      prompt: the visitor's text.
      text: runs of the answer's text, and whether each was drafted.
      line: the answer's statistics.
    """

    prompt: str
    text: Sequence[tuple[str, bool]] = ()
    line: str = ""


@dataclasses.dataclass
class Visitor:
    """One tab of a browser: its conversation, and at most one request at a time.

    Attributes:
      entries: the conversation.
      last: the last answer, for its trees, and the key of its method.
      tickets: of the answers that are running.
      stopped: whether these are to end.
    """

    entries: list[Entry] = dataclasses.field(default_factory=list)
    last: tuple[Answer, str] | None = None
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
        if most < LEAST:
            raise UserError(f"--max-new-tokens must be at least {LEAST}, got {most}")
        if most >= self.longest:
            raise UserError(
                f"answers of {most} tokens do not fit into {self.longest}, prompt included; lower "
                "--max-new-tokens"
            )
        if together < 1 or waiting < 0:
            raise UserError(f"{together} visitors at once with {waiting} waiting serves nobody")
        self.chat = bool(base.tokenizer.chat_template)
        self.default = Settings(default, max_new_tokens=min(Settings.max_new_tokens, most))
        self.engine = Engine(
            {name: method.model for name, method in methods.items()},
            ServingConfig(slots=together, queue=waiting, max_length=self.longest, warmup=warmup),
            warm_up_idle=True,
        )

    def close(self) -> None:
        """Stops all work and waits until it has ended."""
        self.engine.close()

    def settings(self, values: object) -> Settings:
        """See `Settings.of`."""
        return Settings.of(values, self.methods, self.most)

    def prompt(self, before: Sequence[Entry], text: str) -> Prompt:
        """Returns the model's input: the whole chat with its newest message, or only the text."""
        if not self.chat:
            return text
        messages: list[dict[str, str]] = []
        for entry in before:
            answer = "".join(run for run, _ in entry.text)
            messages.append({"role": "user", "content": entry.prompt})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": text}]

    def prepare(self, prompt: Prompt, settings: Settings) -> Prepared:
        """Encodes a prompt; raises UserError if it is empty or too long."""
        title, model = self.methods[settings.method]
        limit, search = settings.max_new_tokens, self.engine.search(settings.method)
        tokens = encode(model, prompt, self.longest - limit)
        answer = Answer(title, limit, model.tokenizer, tokens, model.eos, search)
        return Prepared(answer, settings.request(tokens, model.eos))

    async def serve(
        self, visitor: Visitor, prepared: Sequence[Prepared]
    ) -> AsyncGenerator[str, None]:
        """Generates the prepared answers; yields at every update the reason why the visitor waits,
        if there is one. They are stopped when the iterator is closed.

        Raises:
          UserError: too many visitors, another answer is running, or an answer failed.
        """
        if visitor.tickets:
            raise UserError("an answer is being written; stop it first")
        visitor.stopped, answers = False, [each.answer for each in prepared]
        try:
            for answer, request in prepared:
                visitor.tickets.append(self.engine.submit(request, answer.receive))
            before, over = None, False
            while not over:
                stopped = visitor.stopped  # read first: what has come until then is shown
                for answer in answers:
                    answer.take_in()
                over = stopped or all(answer.ended for answer in answers)
                for answer in answers if over else ():
                    answer.ended = True
                line = "" if over else _waiting(visitor.tickets)
                now = [line, *(answer.tokens for answer in answers)]
                if now != before or over:
                    before = now
                    yield line
                if not over:
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
