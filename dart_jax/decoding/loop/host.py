"""The loop on the host: step and search are called in turn, and tokens are yielded as they are
emitted."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.policy import MOST_STEPS
from dart_jax.decoding.adaptive.switch import Switch, TreeSize
from dart_jax.decoding.compilation import measure_compilation
from dart_jax.decoding.loop.results import (
    Drafts,
    Generation,
    StepOutput,
    check_numbers,
    collect,
    rows_of,
)
from dart_jax.decoding.loop.start import start
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import step

# What a stream yields, is sent and returns.
Steps = Generator[StepOutput, np.ndarray | None, None]


def stream(
    config: DecodeConfig,
    params: DecodeParams,
    search: TreeSearch | None,
    prompts: Prompts,
    options: Options = Options(),
    *,
    seconds: dict[str, float] | None = None,
    with_drafts: bool = False,
) -> Steps:
    """Yields the tokens that each row emits, after the prefill and after every step.

    Send a bool [B] to the generator to end the rows where it is true.

    Args:
      config: static.
      params: see `DecodeParams`.
      search: the tree search; None if the drafting method needs none.
      prompts: the batch.
      options: how to decode.
      seconds: collects wall time under `prefill`, `device`, `search` and `compile`.
      with_drafts: also yield what each step verified.

    Raises:
      UserError: the target's logits are NaN.
    """
    return _stream(TreeSize(config, search), None, params, prompts, options, seconds, with_drafts)


def stream_in_bursts(
    switch: Switch,
    params: DecodeParams,
    prompts: Prompts,
    options: Options = Options(),
    *,
    seconds: dict[str, float] | None = None,
    with_drafts: bool = False,
) -> Steps:
    """As `stream`, with trees whose sizes change."""
    return _stream(switch.current, switch, params, prompts, options, seconds, with_drafts)


def _stream(
    size: TreeSize,
    switch: Switch | None,
    params: DecodeParams,
    prompts: Prompts,
    options: Options,
    seconds: dict[str, float] | None,
    with_drafts: bool,
) -> Steps:
    seconds = {} if seconds is None else seconds
    seconds |= {"prefill": 0.0, "device": 0.0, "search": 0.0, "compile": 0.0}
    clock = _Clock(seconds)
    with clock("prefill"):
        state, packed = start(size.config, params, prompts, options)
        buffer = np.asarray(packed)
    drafts, before, burst = None, np.zeros(len(prompts.tokens), int), _Burst()
    while True:
        config, search = size
        host_buffer = config.host_buffer
        tokens = host_buffer.emitted(buffer)
        ranks = [r[: len(t)] for r, t in zip(host_buffer.ranks(buffer), tokens, strict=True)]
        check_numbers(tokens, before)
        before += buffer[:, 0]
        scores = rows_of(state.scores, [len(row) for row in tokens])
        ended = yield StepOutput(tokens, ranks, drafts, scores)
        if ended is not None and ended.any():
            buffer = buffer.copy()
            buffer[ended, host_buffer.root] = -1
            remaining = jnp.where(jnp.asarray(ended), 0, state.remaining)
            state = dataclasses.replace(state, remaining=remaining)
        active = host_buffer.active(buffer)
        if switch is not None and (not active or burst.steps == switch.left):
            burst.end(switch)
            if active:
                with clock("device"):
                    state, packed = switch.next(state, packed)
                    size, burst = switch.current, _Burst()
                    config, search = size
                    if search is not None:
                        buffer = np.asarray(packed)
        if not active:
            return
        if burst.steps == 0:
            burst.root = state.context[:, -1]
        with clock("search") as searching:
            trees = None if search is None else search(buffer)
        drafts = _drafts(config, state, buffer, trees) if with_drafts else None
        with clock("device") as device:
            state, packed = step(config, params, state, trees)
            buffer = np.asarray(packed)
        if switch is not None:
            burst.add(config, state, buffer, searching, device)


class _Burst:
    """What the steps since the last change of sizes have emitted, and the time they took."""

    def __init__(self) -> None:
        self.steps = 0
        self.root: jax.Array | None = None
        self._ranks: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []  # whether each took part
        self._tokens: list[np.ndarray] = []
        self._features: list[jax.Array] = []
        self._seconds = 0.0
        self._compiled = False

    def add(
        self,
        config: DecodeConfig,
        state: DecodeState,
        buffer: np.ndarray,
        *clocked: _Clocked,
    ) -> None:
        """Adds a step."""
        self.steps += 1
        self._ranks.append(config.host_buffer.ranks(buffer).ravel())
        self._rows.append(buffer[:, 0] > 0)
        self._seconds += sum(each.seconds for each in clocked)
        self._compiled |= any(each.compiled for each in clocked)
        if config.drafting is None and state.features is not None:
            self._tokens.append(config.host_buffer.tokens(buffer))
            self._features.append(jnp.copy(state.features))  # a copy: the state is donated

    def end(self, switch: Switch) -> None:
        """Tells the switch."""
        if not self.steps:
            return
        rows = np.sum(self._rows, axis=0)
        seconds = None if self._compiled else self._seconds
        switch.learn(np.concatenate(self._ranks), rows, seconds)
        if self._features:
            assert self.root is not None
            more = ((0, 0), (0, MOST_STEPS - self.steps), (0, 0))
            features = jnp.pad(jnp.concatenate(self._features, axis=1), more)
            tokens = np.pad(np.concatenate(self._tokens, axis=1), more[:2])
            switch.paused(self.root, tokens, features, rows)


@dataclasses.dataclass
class _Clocked:
    """Seconds that something took, without compilation; and whether there was any."""

    seconds: float = 0.0
    compiled: bool = False


class _Clock:
    """Adds wall time to a dict, by stage."""

    def __init__(self, seconds: dict[str, float]):
        self._seconds = seconds

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[_Clocked]:
        clocked, began = _Clocked(), time.perf_counter()
        with measure_compilation() as compilation:
            yield clocked
        clocked.seconds = time.perf_counter() - began - compilation.seconds
        clocked.compiled = compilation.seconds > 0
        self._seconds[stage] += clocked.seconds
        self._seconds["compile"] += compilation.seconds


def _drafts(
    config: DecodeConfig,
    state: DecodeState,
    buffer: np.ndarray,
    trees: np.ndarray | jax.Array | None,
) -> Drafts:
    """What the next step verifies: the search's trees, the state's, or only the roots."""
    drafted = config.host_buffer.candidates_of(buffer)
    if trees is None and state.trees is not None:
        trees = np.array(state.trees)  # a copy: the state is donated
    if trees is None:
        trees = _roots(config, buffer)
    return Drafts(np.asarray(trees), *drafted, config.host_buffer.pairs_of(buffer))


def _roots(config: DecodeConfig, buffer: np.ndarray) -> np.ndarray:
    """Trees of only the roots, int32 [B, 3, 1]."""
    root = config.host_buffer.root
    return np.pad(buffer[:, None, root : root + 1], ((0, 0), (0, 2), (0, 0)))


def generate_streaming(
    config: DecodeConfig,
    params: DecodeParams,
    search: TreeSearch | None,
    prompts: Prompts,
    options: Options = Options(),
) -> Generation:
    """Runs the host loop to the end and collects its output."""
    seconds: dict[str, float] = {}
    return run_to_end(stream(config, params, search, prompts, options, seconds=seconds), seconds)


def run_to_end(steps: Steps, seconds: dict[str, float]) -> Generation:
    """Collects what a stream yields; `seconds` are those that it fills."""
    began = time.perf_counter()
    outputs = list(steps)
    seconds["host"] = time.perf_counter() - began - sum(seconds.values())
    return collect(outputs, seconds)
