"""The interface of what serves requests: an engine here, or several on other machines."""

from __future__ import annotations

from typing import Protocol

from dart_jax.engine.request import OnUpdate, Request
from dart_jax.engine.statistics import Statistics
from dart_jax.errors import UserError
from dart_jax.grammar.matching import Grammars
from dart_jax.models.config import TargetConfig
from dart_jax.serving.config import ServingConfig
from dart_jax.text.tokenizer import Tokenizer


class QueueFull(UserError):
    """No request can be accepted now.

    Attributes:
      retry_after: seconds after which those that wait now should have been served, so that there
        is room for all that try again.
    """

    def __init__(self, config: ServingConfig, seconds: float = 1.0):
        """All places in a queue are taken, and requests have their slots for so many seconds."""
        super().__init__(f"{config.queue} requests are waiting; try again in a moment")
        self.retry_after = max(config.queue / config.slots, 1) * seconds


class AnyTicket(Protocol):
    """A request that was accepted."""

    @property
    def begun(self) -> float | None:
        """The time at which it got a slot, as `Ticket` has it."""
        ...

    def cancel(self) -> None:
        """See `Ticket`."""
        ...


class ServedModel(Protocol):
    """Facts about a model that a request needs; a `DartModel` has them."""

    @property
    def target(self) -> TargetConfig:
        """The target's shapes."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's."""
        ...

    @property
    def eos(self) -> tuple[int, ...]:
        """All end-of-sequence ids."""
        ...

    @property
    def grammars(self) -> Grammars:
        """Grammars for the target's tokens."""
        ...


class AnyEngine(Protocol):
    """Server of requests: an `Engine`, or several of them on other machines."""

    @property
    def model(self) -> ServedModel:
        """The model that is served."""
        ...

    @property
    def config(self) -> ServingConfig:
        """Its options, such as the number of requests it takes."""
        ...

    @property
    def max_length(self) -> int:
        """Maximum length of a prompt and its new tokens together."""
        ...

    def submit(self, request: Request, on_update: OnUpdate) -> AnyTicket:
        """See `Engine`."""
        ...

    def statistics(self) -> Statistics:
        """See `Engine`."""
        ...

    def drain(self, seconds: float) -> bool:
        """See `Engine`."""
        ...

    def close(self) -> None:
        """See `Engine`."""
        ...
