"""Tokens that may follow a text under a grammar, and draft trees that fit it."""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs, one_line
from dart_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

# Grammars that stay compiled.
_KEPT = 64

# Work of the lexer in one step, at most: texts under a grammar share its lexer, which stays broken
# for all once a step of one of them exceeds it. llguidance's default is 200,000, which ordinary
# expressions exceed; it does some 14,000 a millisecond, in which no other text goes on.
_FUEL = 2_000_000

# States of a lexer, at most, of 1 to 2 kB each. llguidance's default is 250,000, and as many
# characters that must follow are looked at in every step.
_STATES = 50_000

# Seconds of a core for a tree of one text, in which no other goes on, and how often it may be more.
_SLOW, _MOST_SLOW = 0.1, 1

# Seconds of a core after which a tree gets no more nodes: the masks of some grammars take long.
_GROWING = 0.02

# Seconds of a compilation that may be repeated while other texts wait.
_AGAIN = 0.1

# Bytes of the stack of threads that compile: llguidance calls itself for every level of a grammar.
STACK = 2**28

_Result = TypeVar("_Result")


class GrammarError(UserError):
    """A text cannot go on under its grammar.

    Attributes:
      why: the reason, without what it is the reason of.
    """

    def __init__(self, why: str):
        super().__init__(f"the text cannot go on under its grammar: {why}")
        self.why = why


_TOO_SLOW = GrammarError(f"it takes longer than {_SLOW:g} s to find what may follow")


class Masked(NamedTuple):
    """A draft tree that fits a grammar.

    Attributes:
      tree: int32 [4, N + 1], see `dart_jax.decoding.tree`.
      masks: uint32 [N + 1, W], of the tokens that may follow each node, 32 to a word, the lowest
        bit first; all of them where it does not matter.
    """

    tree: np.ndarray
    masks: np.ndarray


def all_but(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """Returns the mask of all tokens but some, uint32 [W]; see `Masked`."""
    mask = np.full(-(-vocab_size // 32), 2**32 - 1, np.uint32)
    for id in ids:
        mask[id // 32] &= ~np.uint32(1 << id % 32)
    return mask


class Grammars:
    """Compiles grammars for the tokens of a target. For any thread.

    Attributes:
      vocab_size: V, the target's.
      eos: ids that end a text, which may follow wherever the grammar's text may end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos: tuple[int, ...]):
        """Compiles nothing yet; `tokenizer`: the target's."""
        self._tokenizer, self.vocab_size, self.eos = tokenizer, vocab_size, eos
        self._lock = threading.Lock()
        # By source, each with the seconds that it took; the one used last comes last.
        self._compiled: OrderedDict[str, tuple[llguidance.LLMatcher, float]] = OrderedDict()

    @property
    def origin(self) -> tuple[str, int, tuple[int, ...]]:
        """What it was made of, for another process, with the tokenizer as JSON."""
        return self._tokenizer.backend.to_str(), self.vocab_size, self.eos

    @functools.cached_property
    def _tokens(self) -> llguidance.LLTokenizer:
        """The tokenizer as llguidance reads it, which takes seconds."""
        import llguidance

        if not self.eos:
            raise UserError("structured outputs need a target with an end-of-sequence token")
        for token in self.eos:
            if token not in self._tokenizer.special_ids:
                raise UserError(
                    f"structured outputs need a special token as end of sequence; {token} is "
                    f"{self._tokenizer.backend.id_to_token(token)!r}, a text"
                )
        # Some tokenizers have more tokens than their target.
        size = max(self.vocab_size, self._tokenizer.vocab_size)
        try:
            return llguidance.LLTokenizer(
                self._tokenizer.backend.to_str(), n_vocab=size, eos_token=[*self.eos]
            )
        except ValueError as error:
            raise UserError(
                f"structured outputs cannot be had with this tokenizer: {one_line(error)}"
            ) from None

    def check(self, outputs: StructuredOutputs) -> str:
        """Compiles a grammar, which may take a while, and returns its source, for `start`.

        Raises:
          UserError: the grammar is wrong, or asks for what llguidance does not have.
        """
        source = outputs.source
        if error := self.load(source):
            raise UserError(f"{outputs.kind} cannot be used: {one_line(error)}")
        for _ in range(2):  # the first one also makes ready what all share
            matcher = self.start(source)
            matcher.fit(np.zeros((4, 1), np.int32), 0, 0)
            error = matcher.error or (matcher.slow and _TOO_SLOW)
        if error:
            raise UserError(f"{outputs.kind} cannot be used: {error.why}")
        return source

    def load(self, source: str) -> str:
        """Compiles a grammar, so that `start` need not; returns what is wrong with it, if anything
        is."""
        return self._get(source)[0].get_error()

    def has(self, source: str) -> bool:
        """Returns True if a grammar is compiled."""
        return source in self._compiled

    def start(self, source: str) -> Matcher:
        """Begins a text under a grammar that was checked."""
        compiled, seconds = self._get(source)

        def again() -> llguidance.LLMatcher | None:
            if seconds > _AGAIN:
                return None
            with self._lock:
                self._compiled.pop(source, None)
            return self._get(source)[0].deep_copy()

        return Matcher(compiled.deep_copy(), self._tokens, self.vocab_size, self.eos, again)

    def _get(self, source: str) -> tuple[llguidance.LLMatcher, float]:
        """Returns a grammar, compiled if it is not, and the seconds that this took."""
        with self._lock:
            found = self._compiled.get(source)
        # Without the lock, so that nobody waits for the compilation of another grammar.
        found = self._compile(source) if found is None else found
        with self._lock:
            self._compiled[source] = found
            self._compiled.move_to_end(source)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, source: str) -> tuple[llguidance.LLMatcher, float]:
        import llguidance

        with self._lock:
            tokens = self._tokens
        limits = llguidance.LLParserLimits(
            step_lexer_fuel=_FUEL, max_lexer_states=_STATES, verbose_errors=False
        )

        def compile() -> tuple[llguidance.LLMatcher, float]:
            began = time.thread_time()
            compiled = llguidance.LLMatcher(tokens, source, log_level=0, limits=limits)
            return compiled, time.thread_time() - began

        return on_large_stack(compile).result()


def on_large_stack(function: Callable[[], _Result]) -> Future[_Result]:
    """Calls a function on a thread of its own with a stack of `STACK` bytes, for which the end of
    the process does not wait."""
    future: Future[_Result] = Future()

    def call() -> None:
        if future.set_running_or_notify_cancel():  # from now on it cannot be cancelled
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    with _stack_size:
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=call, name="grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
    return future


_stack_size = threading.Lock()


@functools.lru_cache(maxsize=4)
def grammars_of(tokenizer: Tokenizer, vocab_size: int, eos: tuple[int, ...]) -> Grammars:
    """Returns the `Grammars` of a target, the same for all users of a tokenizer."""
    return Grammars(tokenizer, vocab_size, eos)


class Matcher:
    """One text under a grammar.

    Attributes:
      error: why the text cannot go on, or None while it can.
      slow: trees that took too long.
      done: False, since the grammar applies to the end.
    """

    done = False

    def __init__(
        self,
        state: llguidance.LLMatcher,
        tokens: llguidance.LLTokenizer,
        vocab_size: int,
        eos: tuple[int, ...],
        again: Callable[[], llguidance.LLMatcher | None],
    ):
        """See `Grammars.start`; `again`: restarts with another lexer, unless that takes long."""
        self._again, self._text = again, list[int]()
        self.slow = 0
        self._state, self._tokens, self._eos = state, tokens, frozenset(eos)
        self._words = -(-tokens.vocab_size // 32)
        self._kept = -(-vocab_size // 32)
        self._exists = np.full(self._words, -1, np.int32)  # bits of tokens that the target has
        self._exists[self._kept :] = 0
        if vocab_size % 32:
            self._exists[self._kept - 1] = (1 << vocab_size % 32) - 1
        self.error: GrammarError | None = None

    def advance(self, tokens: Iterable[int]) -> None:
        """Adds tokens to the text, up to one that ends it."""
        for token in tokens:
            if token in self._eos or self.error is not None:
                return
            if not self._consume(token):
                self._fail(f"it does not allow token {token}")

    def _consume(self, token: int) -> bool:
        consumed = self._state.consume_token(token) or (
            self._recover() and self._state.consume_token(token)
        )
        self._text.append(token)
        return consumed

    def _recover(self) -> bool:
        """Reads the text with another lexer, if another text may have broken this one; returns
        whether that was so and it can go on."""
        if not self._state.is_error():
            return False
        state = self._again()
        if state is None or not state.consume_tokens(self._text) or state.is_error():
            return False
        self._state = state
        return True

    def _fail(self, why: str) -> None:
        reported = one_line(self._state.get_error())
        no_more = not reported or reported.startswith("NoExtension")
        self.error = GrammarError(why if no_more else reported)

    def allows(self, ids: np.ndarray) -> np.ndarray:
        """Returns which tokens may follow the text: bool, as `ids`."""
        mask = np.zeros(self._words, np.int32)
        self.fill(mask, self._state)
        return (mask[ids // 32] >> ids % 32 & 1) > 0

    def fit(self, tree: np.ndarray, nodes: int, max_depth: int) -> Masked:
        """Leaves out nodes that the grammar does not allow, and fills free slots with tokens that
        it makes certain. Sets `error` if no token may follow the text, or the grammar became too
        complex or slow; then nothing may be drafted, and anything may follow.

        Args:
          tree: int32 [4, n], after the text so far, from the best node on.
          nodes: N, of the tree that fits.
          max_depth: of its nodes.
        """
        if self.error is not None:
            return self._anything(tree, nodes)
        began = time.thread_time()
        fitted = self._fit(tree, nodes, max_depth)
        self.slow += time.thread_time() - began > _SLOW
        if self.slow > _MOST_SLOW and self.error is None:
            self.error = _TOO_SLOW
        return fitted

    def _fit(self, tree: np.ndarray, nodes: int, max_depth: int) -> Masked:
        growing = _Tree(self, tree[0, 0], nodes + 1, max_depth)
        if self._recover():
            growing = _Tree(self, tree[0, 0], nodes + 1, max_depth)
        masks = growing.masks[:, : self._kept].view(np.uint32)
        if not masks[0].any() or self._state.is_error():
            self._fail("it allows no text" if not self._text else "no token may follow")
            return self._anything(tree, nodes)
        places, scores = {0: 0}, tree[3].view(np.float32)
        growing.follow(0)
        for node in range(1, tree.shape[1]):
            token, parent, depth, _ = tree[:, node].tolist()
            if depth and parent in places:
                gain = scores[node] - scores[parent]
                place = growing.add(places[parent], token, gain)
                if place is not None:
                    places[node] = place
                    growing.follow(place)
        return Masked(growing.tree, masks)

    def _anything(self, tree: np.ndarray, nodes: int) -> Masked:
        """Returns the root of a tree, after which anything may follow."""
        root = np.zeros((4, nodes + 1), np.int32)
        root[0, 0] = tree[0, 0]
        return Masked(root, np.full((nodes + 1, self._kept), 2**32 - 1, np.uint32))

    def fill(self, mask: np.ndarray, state: llguidance.LLMatcher) -> None:
        """Writes which tokens may follow a state, int32 [words]."""
        state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        mask &= self._exists
        # Where the characters of a special token must follow, llguidance allows that token alone.
        name = self._only_name(mask)
        if name and state.compute_ff_bytes().startswith(name):
            first = self._tokens.greedy_tokenize(name.decode())[0]
            mask[:] = 0
            mask.view(np.uint32)[first // 32] = 1 << first % 32

    def certain(self, state: llguidance.LLMatcher) -> list[int]:
        """Returns tokens that a tokenizer makes of the characters that must follow, if any must."""
        tokens, forced = state.compute_ff_tokens(), state.compute_ff_bytes()
        tokens = tokens or self._tokens.tokenize_bytes(forced)
        if b"\xff" not in forced and any(map(self._tokens.is_special_token, tokens)):
            return self._tokens.greedy_tokenize(forced.decode(errors="ignore"))
        return tokens

    def _only_name(self, mask: np.ndarray) -> bytes:
        """Returns the name of the only special token a mask allows; empty if it allows others."""
        [words] = np.nonzero(mask)
        if len(words) != 1:
            return b""
        bits = int(mask.view(np.uint32)[words[0]])
        token = 32 * int(words[0]) + bits.bit_length() - 1
        if bits & (bits - 1) or not self._tokens.is_special_token(token):
            return b""
        return self._tokens.decode_bytes([token])


class _Tree:
    """A tree that fits, while it grows from its root.

    Attributes:
      tree: int32 [4, N + 1].
      masks: int32 [N + 1, W].
    """

    def __init__(self, matcher: Matcher, root: int, slots: int, max_depth: int):
        self._matcher, self._max_depth = matcher, max_depth
        self.tree = np.zeros((4, slots), np.int32)
        self._scores = self.tree[3].view(np.float32)
        self.tree[0, 0] = root
        self.masks = np.full((slots, matcher._words), -1, np.int32)
        self._states: list[llguidance.LLMatcher | None] = [matcher._state]
        self._children: dict[tuple[int, int], int] = {}
        self._fill(0, matcher._state)
        self._end = time.thread_time() + _GROWING

    def _fill(self, place: int, state: llguidance.LLMatcher) -> bool:
        """Fills the mask of a place; returns False if the grammar became too complex."""
        self._matcher.fill(self.masks[place], state)
        return not state.is_error()

    def add(self, parent: int, token: int, gain: float = 0.0) -> int | None:
        """Adds a child whose score is the parent's plus a gain, unless it is there already; returns
        its place, None if the grammar does not allow it or there is no room or time."""
        if (parent, token) in self._children:
            return self._children[parent, token]
        state, place, depth = self._states[parent], len(self._states), int(self.tree[2, parent])
        if state is None or place == self.tree.shape[1] or depth == self._max_depth:
            return None
        if time.thread_time() > self._end:
            return None
        if not self.masks[parent, token // 32] >> (token % 32) & 1:
            return None
        after = None if token in self._matcher._eos else state.deep_copy()
        if after is not None and not (after.consume_token(token) and self._fill(place, after)):
            self.masks[place] = -1
            return None
        self.tree[:3, place] = token, parent, depth + 1
        self._scores[place] = self._scores[parent] + gain
        self._children[parent, token] = place
        self._states.append(after)
        return place

    def follow(self, node: int) -> None:
        """Adds what is certain to come after a node, as far as there is room."""
        state, place = self._states[node], node
        for token in [] if state is None else self._matcher.certain(state):
            following = self.add(place, token)
            if following is None:
                return
            place = following
