"""Numbers by which a step knows its requests, packed into few arrays.

A program call costs some microseconds for every array, so there are few.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dart_jax.decoding.host_buffer import CONTEXT
from dart_jax.decoding.sampling import SamplingValues, row_keys
from dart_jax.engine.request import MOST_STOP_IDS, Request, SamplingMode
from dart_jax.engine.sequence import Sequence


class Rows(NamedTuple):
    """The n requests of a burst.

    Attributes:
      numbers: int32 [n, 11]: the slot, beyond the last one for a row without a request; length,
        remaining and shared tokens (see `DecodeState`, as for those that follow); most nodes of a
        draft tree; the bits of the key, uint32 [2]; the context, [4].
      values: float32 [n, 7], see `values_of`.
      stop: int32 [n, s], ids that end a text; -1 is padding.
      pages: int32 [n, m], of the requests, in order; -1 where there is none.
      tokens: int32 [n, S], see `DecodeState`, or None.
    """

    numbers: ArrayLike
    values: ArrayLike
    stop: ArrayLike
    pages: ArrayLike
    tokens: ArrayLike | None = None


# Where the parts of `Rows.numbers` begin, and the number of columns.
SLOT, LENGTH, REMAINING, SHARED, NODES, KEYS, AT_CONTEXT = 0, 1, 2, 3, 4, 5, 7
NUMBERS = AT_CONTEXT + CONTEXT

VALUES = 7  # columns of `Rows.values`


def state_of(rows: Rows, mode: SamplingMode) -> dict[str, Any]:
    """Fields of `DecodeState` before the first step, which samples in a mode."""
    numbers = jnp.asarray(rows.numbers)
    return {
        "length": numbers[:, LENGTH],
        "remaining": numbers[:, REMAINING],
        "keys": jax.lax.bitcast_convert_type(numbers[:, KEYS:AT_CONTEXT], jnp.uint32),
        "context": numbers[:, AT_CONTEXT:],
        "stop": jnp.asarray(rows.stop),
        "sampling": _sampling_of(mode, rows.values),
        "tokens": None if rows.tokens is None else jnp.asarray(rows.tokens),
        "shared": numbers[:, SHARED],
    }


def _sampling_of(mode: SamplingMode, packed: ArrayLike) -> SamplingValues:
    """Returns the sampling options of rows, in the order of `SamplingValues`, that a mode has."""
    values = jnp.asarray(packed)
    temperature, top_k, top_p, min_p, *penalties = (values[:, i] for i in range(VALUES))
    sampling = SamplingValues()
    if mode == "greedy":
        return sampling
    sampling = SamplingValues(temperature)
    if mode == "sampled":
        return sampling
    sampling = SamplingValues(temperature, top_k.astype(jnp.int32), top_p, min_p)
    return sampling if mode == "filtered" else SamplingValues(*sampling[:4], *penalties)


def values_of(request: Request, vocab_size: int) -> np.ndarray:
    """Returns a request's row of `Rows.values`."""
    sampling = request.sampling
    return np.array(
        [
            # As `Sampling.values`: smaller ones would be flushed to 0.
            sampling.temperature and max(sampling.temperature, float(np.finfo(np.float32).tiny)),
            min(sampling.top_k, vocab_size),
            sampling.top_p if sampling.top_p < 1 else np.inf,
            sampling.min_p,
            sampling.repetition_penalty,
            request.presence_penalty,
            request.frequency_penalty,
        ],
        np.float32,
    )


def keys_of(request: Request) -> np.ndarray:
    """Returns the key of a request's noise, int32 [2]."""
    keys = jax.jit(row_keys)(np.uint32(request.seed), np.array([request.choice], np.int32))
    return np.asarray(keys)[0].view(np.int32)


class RowTable:
    """Rows of all slots, and one after them without a request.

    Attributes:
      numbers, values, stop, pages, tokens: see `Rows`; for slots + 1 rows.
    """

    def __init__(self, slots: int, pages: int, group: int, length: int | None = None):
        """Creates free slots for requests of at most `pages` pages, with their tokens if the most
        tokens of a text are given; each group of devices counts the slots of its own."""
        self._group = group
        self.numbers = np.zeros((slots + 1, NUMBERS), np.int32)
        self.values = np.zeros((slots + 1, VALUES), np.float32)
        self.stop = np.full((slots + 1, MOST_STOP_IDS), -1, np.int32)
        self.pages = np.full((slots + 1, pages), -1, np.int32)
        self.tokens = None if length is None else np.full((slots + 1, length), -1, np.int32)
        self._written = [0] * (slots + 1)  # tokens
        self.clear(slots)

    def begin(
        self, slot: int, request: Request, vocab_size: int, shared: np.ndarray | None = None
    ) -> None:
        """Writes what stays the same while a request runs; `shared` are tokens of other texts, of
        which it may draft from the last ones for which there is room. A text that grows takes the
        room of the first of these."""
        self.clear(slot)
        row = self.numbers[slot]
        row[SLOT] = slot % self._group
        if request.sampling.temperature:
            row[KEYS:AT_CONTEXT] = keys_of(request)
        if (missing := len(request.stop_ids) - self.stop.shape[1]) > 0:
            self.stop = np.pad(self.stop, ((0, 0), (0, missing)), constant_values=-1)
        self.stop[slot, : len(request.stop_ids)] = request.stop_ids
        self.values[slot] = values_of(request, vocab_size)
        if self.tokens is not None and shared is not None:
            length = self.tokens.shape[1]
            row[SHARED] = count = min(len(shared), length - len(request.tokens))
            self.tokens[slot, length - count :] = shared[len(shared) - count :]

    def text(self, sequence: Sequence) -> np.ndarray:
        """Returns what a sequence drafts from, int32 [n]: tokens of others, and its own."""
        assert self.tokens is not None
        first = self.tokens.shape[1] - self.numbers[sequence.slot, SHARED]
        shared = self.tokens[sequence.slot, first:]
        return np.concatenate([shared, np.full(1, -1, np.int32), sequence.tokens])

    def update(self, sequence: Sequence, nodes: int) -> None:
        """Writes what has changed since a sequence's last burst; `nodes`: of its trees, at most."""
        slot, newest = sequence.slot, sequence.tokens[-CONTEXT:]
        assert slot is not None
        row = self.numbers[slot]
        row[LENGTH], row[REMAINING] = sequence.num_computed_tokens, sequence.remaining
        row[NODES] = nodes
        row[AT_CONTEXT:] = -1
        row[AT_CONTEXT + CONTEXT - len(newest) :] = newest
        self.pages[slot, : len(sequence.pages)] = sequence.pages
        if self.tokens is not None:
            first, self._written[slot] = self._written[slot], sequence.num_tokens
            self.tokens[slot, first : sequence.num_tokens] = sequence.tokens[first:]
            row[SHARED] = min(row[SHARED], self.tokens.shape[1] - sequence.num_tokens)

    def clear(self, slot: int) -> None:
        """Leaves a slot without a request."""
        self.numbers[slot] = 0
        self.numbers[slot, SLOT] = self._group
        self.values[slot] = (0, 0, np.inf, 0, 1, 0, 0)
        self.stop[slot] = self.pages[slot] = -1
        if self.tokens is not None:
            self.tokens[slot] = -1
        self._written[slot] = 0

    def rows(self, slots: SequenceOf[int | None], pages: int, *, tokens: bool = False) -> Rows:
        """Returns the rows of some slots, with the first `pages` columns of their tables, and with
        their tokens if asked for. A slot None is no request."""
        at = [len(self.numbers) - 1 if slot is None else slot for slot in slots]
        own = self.tokens[at] if tokens and self.tokens is not None else None
        return Rows(self.numbers[at], self.values[at], self.stop[at], self.pages[at, :pages], own)


class History(NamedTuple):
    """State of penalties and bias, per slot.

    Attributes:
      seen: bool [slots, V], tokens of prompt and text.
      counts: int32 [slots, V], occurrences in the text.
      bias: float32 [slots, V].
    """

    seen: jax.Array
    counts: jax.Array
    bias: jax.Array


def empty_history(slots: int, vocab_size: int) -> History:
    """Returns the history of free slots."""
    shape = (slots, vocab_size)
    zeros = jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)
    return History(*zeros)


def with_history(
    history: History, slot: int, request: Request, tokens: np.ndarray, prompt: int
) -> History:
    """Returns the history, which is donated, with that of a request in a slot, whose prompt and
    text are `tokens`, int32 [n], the first `prompt` of them the prompt's."""
    vocab_size = history.seen.shape[1]
    seen, bias = np.zeros(vocab_size, bool), np.zeros(vocab_size, np.float32)
    seen[tokens] = True
    for token, value in request.logit_bias.items():
        bias[token] = value
    counts = np.bincount(tokens[prompt:], minlength=vocab_size).astype(np.int32)
    return _replaced(history, np.int32(slot), (seen, counts, bias))


@partial(jax.jit, donate_argnames=("history",))
def _replaced(history: History, slot: jax.Array, new: tuple[Any, ...]) -> History:
    return jax.tree.map(lambda old, x: old.at[slot].set(x), history, History(*new))
