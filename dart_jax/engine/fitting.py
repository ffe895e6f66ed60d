"""Draft trees that fit the grammars of their texts: before a burst, and between its steps."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax import _core
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.engine.sequence import Sequence
from dart_jax.grammar.matching import Masked
from dart_jax.models.platform.execution import Execution

# Every token may follow.
ANYTHING = np.uint32(2**32 - 1)

# Gives the search that proposes nodes from the candidates of a host buffer, more than the number
# there is room for, since some will not fit. None where the host does not search.
Proposals = Callable[[HostBuffer, int], HostSearch | None]


class Fitter:
    """Fits the drafts of a burst. Between two steps a program on a CPU calls it, from a thread of
    XLA's; the engine's own thread waits for the burst meanwhile.

    Attributes:
      handle: a number that identifies the fitter in this process, for `fit_in_program`.
    """

    def __init__(self, texts: Mapping[int, Sequence], config: DecodeConfig, proposals: Proposals):
        """Begins a burst of sequences, by row, whose steps have a config."""
        self._matchers = {n: text.matcher for n, text in texts.items() if text.matcher is not None}
        self._config, self._proposals = config, proposals
        self._read = dict.fromkeys(self._matchers, 0)  # of the burst's tokens
        self.handle = next(_handles) % 2**31
        _fitters[self.handle] = self

    def advance(self, tokens: np.ndarray, counts: np.ndarray) -> None:
        """Tells the matchers what the burst has given so far, int32 [n, S], [n] of these."""
        for place, matcher in self._matchers.items():
            new = tokens[place, self._read[place] : counts[place]]
            matcher.advance(new[new >= 0].tolist())  # -1 where logits are NaN
            self._read[place] = counts[place]

    def fit(
        self, place: int, tree: np.ndarray, candidates: tuple[HostBuffer, np.ndarray] | None
    ) -> Masked:
        """Fits the tree of a row. Where the host searches, it fits a larger tree of candidates that
        may follow the root, after what was drafted if texts draft, too.

        Args:
          place: the row.
          tree: int32 [4, N + 1], what was drafted.
          candidates: what it was built from, and how that is laid out: int32 [1, width]. None if
            nothing was drafted.
        """
        matcher, nodes = self._matchers[place], tree.shape[1] - 1
        if nodes and candidates is not None:
            host_buffer, packed = candidates
            if search := self._proposals(host_buffer, nodes):
                packed = packed.copy()
                _, ids, logits, _ = host_buffer.unpack(packed)
                if ids.size:
                    allowed = matcher.allows(ids[0, 0])
                    logits[0, 0, ~allowed] = np.finfo(np.float32).min / 2
                found = search(packed)[0]
                if self._config.texts_draft:
                    found[1] += np.where(found[1] > 0, nodes, 0)
                    found = np.concatenate([tree, found[:, 1:]], axis=1)
                tree = found
        return matcher.fit(tree, nodes, self._config.max_depth)

    def __call__(self, inputs: SequenceOf[np.ndarray], outputs: SequenceOf[np.ndarray]) -> None:
        """Fits all trees after a step; see `fit_in_program`."""
        packed, drafted, tokens, counts = inputs
        trees, masks = outputs
        trees[:], masks[:] = drafted, ANYTHING
        self.advance(tokens, counts)
        for place, matcher in self._matchers.items():
            if packed[place, CONTEXT - 1] >= 0 and matcher.error is None:  # has not ended
                candidates = self._config.host_buffer, packed[place : place + 1]
                trees[place], masks[place] = self.fit(place, drafted[place], candidates)


def fits_in_programs(execution: Execution) -> bool:
    """True if programs can call a `Fitter`. XLA cannot call Python from other devices than a
    CPU unless JAX's callbacks do, and then it keeps no compiled program in files."""
    return execution.attention == "native"


def fit_in_program(
    handle: jax.Array,
    packed: jax.Array,
    trees: jax.Array,
    tokens: jax.Array,
    counts: jax.Array,
    words: int,
) -> tuple[jax.Array, jax.Array]:
    """Fits trees in a program for one CPU.

    Args:
      handle: int32 scalar, of the `Fitter`; it must live until the program has ended.
      packed: int32 [n, width], the candidates of the last step.
      trees: int32 [n, 4, N + 1], drafted by it.
      tokens: int32 [n, S], what the burst has given so far.
      counts: int32 [n], of these.
      words: of 32 tokens in a mask, W.

    Returns:
      Trees that fit, and masks of the tokens that may follow each node, uint32 [n, N + 1, W].
    """
    n, _, slots = trees.shape
    masks = jax.ShapeDtypeStruct((n, slots, words), jnp.uint32)
    types = jax.ShapeDtypeStruct(trees.shape, trees.dtype), masks
    fitted, masks = jax.ffi.ffi_call("dart_python", types)(handle, packed, trees, tokens, counts)
    return fitted, masks


def _call(handle: int, inputs: SequenceOf[np.ndarray], outputs: SequenceOf[np.ndarray]) -> None:
    _fitters[handle](inputs, outputs)


_handles = itertools.count()
_fitters: weakref.WeakValueDictionary[int, Fitter] = weakref.WeakValueDictionary()
if _core.cpu_ffi_handlers:
    _core.call_in_programs(_call)
