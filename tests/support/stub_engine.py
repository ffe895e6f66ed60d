"""An engine that gives what a test says, for what a real one does not do on demand."""

from types import SimpleNamespace

import numpy as np
from tokenizers_made import byte_level

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Output
from dart_jax.engine.statistics import Statistics
from dart_jax.grammar.matching import Grammars
from dart_jax.text.tokenizer import Tokenizer


class Ticket:
    begun = None

    def __init__(self):
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class StubEngine:
    """Keeps the requests in `accepted`, with who listens, and their tickets; the test gives the
    outputs. `submit` raises `refuse`, if it is not None."""

    def __init__(self):
        tokenizer = Tokenizer(byte_level())
        target = SimpleNamespace(vocab_size=tokenizer.vocab_size)
        grammars = Grammars(tokenizer, target.vocab_size, (0,))
        self.model = SimpleNamespace(
            tokenizer=tokenizer, target=target, eos=(0,), grammars=grammars
        )
        self.config, self.max_length = EngineConfig(slots=2, queue=2), 100
        self.accepted, self.refuse, self.counts = [], None, Statistics()

    def submit(self, request, on_output):
        if self.refuse is not None:
            raise self.refuse
        self.accepted.append((request, on_output, Ticket()))
        return self.accepted[-1][2]

    def statistics(self):
        return self.counts

    def give(self, text, finish=None, index=-1):
        """Passes the tokens of a text to a request."""
        tokens = np.array(self.model.tokenizer.encode(text), np.int32)
        self.accepted[index][1](Output(tokens, np.zeros_like(tokens), finish))
