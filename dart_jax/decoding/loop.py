"""Loops over the decode step.

The host loop, `stream`, calls step and search in turn and yields tokens as they are emitted. The
fused loop, `generate_fused`, runs the whole generation in one jitted `lax.while_loop` with the
search as a callback. Both produce the same tokens.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.compilation import measure_compilation
from dart_jax.decoding.logits import TokenScores
from dart_jax.decoding.prefill import divide, empty_caches, prefill, read_chunk
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.pruner import Pruner, search_in_jit
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import step
from dart_jax.errors import UserError

# Stop ids are padded to a multiple of this.
_STOP_IDS = 8


@dataclasses.dataclass(eq=False)
class Generation:
    """The new tokens of a batch, and the steps and time they took.

    Attributes:
      tokens: the new tokens of each row, including the stop id if one was drawn.
      drafted: per row, bool, which of them the drafter proposed; the others are the target's.
      steps: int [B], verifications each row took part in (the prefill does not count).
      seconds: wall time: `prefill`, `device` (draft and verify), `search`, `compile` (JAX's, 0 for
        programs that were used before) and, in the host loop, `host` (the rest); in the fused loop
        the rest is part of `device`.
      scores: what is reported about the new tokens of each row, without the batch axis; None if
        nothing is.
    """

    tokens: list[np.ndarray]
    drafted: list[np.ndarray]
    steps: np.ndarray
    seconds: dict[str, float]
    scores: list[TokenScores] | None = None

    @property
    def tau(self) -> np.ndarray:
        """Acceptance length: tokens emitted per verification, bonus token included. Float [B]; nan
        without a verification."""
        emitted = np.array([len(tokens) - 1 for tokens in self.tokens])
        with np.errstate(invalid="ignore"):
            return emitted / self.steps


class Drafts(NamedTuple):
    """What a step verified, for inspection.

    Attributes:
      trees: int32 [B, 3, N + 1], packed (see `dart_jax.decoding.tree`); only roots for plain
        decoding.
      context: int32 [B, 4], the last tokens of each sequence, ending with the root (see
        `HostBuffer`).
      ids: int32 [B, d, k], candidates that the host's search built the trees from; d is 0 if there
        was no search.
      logits: float32 [B, d, k], the candidates' logits.
    """

    trees: np.ndarray
    context: np.ndarray
    ids: np.ndarray
    logits: np.ndarray


class StepOutput(NamedTuple):
    """What a batch emitted in one step.

    Attributes:
      tokens: the emitted tokens of each row.
      drafted: int [B], the first `drafted` tokens of a row were proposed by the drafter.
      drafts: what was verified; None for the prefill, and if it was not requested.
      scores: what is reported about the tokens of each row, without the batch axis; None if
        nothing is.
    """

    tokens: list[np.ndarray]
    drafted: np.ndarray
    drafts: Drafts | None = None
    scores: list[TokenScores] | None = None


def padded_stop(stop: tuple[int, ...]) -> tuple[int, ...]:
    """Pads stop ids with -1 to one of few lengths, each of which is compiled for."""
    return stop + (-1,) * (-len(stop) % _STOP_IDS)


def start(
    config: DecodeConfig, params: DecodeParams, prompts: Prompts, options: Options
) -> tuple[DecodeState, jax.Array]:
    """Runs the prefill of a batch, a long one in chunks."""
    tokens, capacity = jnp.asarray(prompts.tokens), config.capacity(prompts.max_length)
    caches, last = None, None
    if chunks := divide(config, prompts):
        *before, last = chunks
        reading = config.reading
        caches = empty_caches(reading, params, batch=tokens.shape[0], capacity=capacity)
        for chunk in before:
            caches = read_chunk(
                reading, params, caches, tokens, jnp.int32(chunk.start), shape=chunk.shape
            )
    return prefill(
        config.prefill,
        params,
        tokens,
        jnp.asarray(prompts.length),
        jnp.asarray(prompts.max_new_tokens),
        jnp.asarray(padded_stop(options.stop), jnp.int32),
        jnp.uint32(options.seed),
        options.sampling.values(),
        caches,
        capacity=capacity,
        shape=None if last is None else last.shape,
    )


def stream(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options = Options(),
    *,
    seconds: dict[str, float] | None = None,
    with_drafts: bool = False,
) -> Generator[StepOutput, np.ndarray | None, None]:
    """Yields the tokens that each row emits, after the prefill and after every step.

    Send a bool [B] to the generator to end the rows where it is true.

    Args:
      config: static.
      params: see `DecodeParams`.
      pruner: the search, if trees are built on the host; otherwise None.
      prompts: the batch.
      options: how to decode.
      seconds: collects wall time under `prefill`, `device`, `search` and `compile`.
      with_drafts: also yield what each step verified.

    Raises:
      UserError: the target's logits are NaN.
    """
    seconds = {} if seconds is None else seconds
    seconds |= {"prefill": 0.0, "device": 0.0, "search": 0.0, "compile": 0.0}
    stage, began = "prefill", time.perf_counter()
    with measure_compilation() as compilation:
        state, packed = start(config, params, prompts, options)
    drafts, before = None, np.zeros(len(prompts.tokens), int)
    while True:
        buffer = np.asarray(packed)
        seconds[stage] += time.perf_counter() - began - compilation.seconds
        seconds["compile"] += compilation.seconds
        tokens = config.host_buffer.emitted(buffer)
        _check_numbers(tokens, before)
        before += buffer[:, 0]
        scores = _rows(state.scores, [len(row) for row in tokens])
        ended = yield StepOutput(tokens, buffer[:, 1], drafts, scores)
        if ended is not None and ended.any():
            buffer = buffer.copy()
            buffer[ended, config.host_buffer.root] = -1
            remaining = jnp.where(jnp.asarray(ended), 0, state.remaining)
            state = dataclasses.replace(state, remaining=remaining)
        if not config.host_buffer.active(buffer):
            return
        began = time.perf_counter()
        trees = None if pruner is None else pruner(buffer)
        seconds["search"] += time.perf_counter() - began
        if with_drafts:
            drafts = _drafts(config, state, buffer, trees)
        stage, began = "device", time.perf_counter()
        with measure_compilation() as compilation:
            state, packed = step(config, params, state, trees)


def _check_numbers(tokens: list[np.ndarray], before: np.ndarray) -> None:
    """Raises UserError if a token was drawn from logits that are NaN.

    Args:
      tokens: new tokens of each row.
      before: int [B], how many new tokens each row had before.
    """
    for row, count in zip(tokens, before, strict=True):
        if len(row) and row[-1] < 0:
            raise UserError(
                f"the target's logits are NaN at new token {count + len(row)} of a text; its "
                "weights, or a logits processor, give numbers that are too large or not numbers"
            )


def _rows(scores: TokenScores | None, counts: Sequence[int]) -> list[TokenScores] | None:
    """Copies each row's scores to the host, of as many tokens as it has emitted."""
    if scores is None:
        return None
    arrays = jax.tree.map(np.array, scores)  # copies: the state is donated
    return [jax.tree.map(lambda x, n=n: x[n, : counts[n]], arrays) for n in range(len(counts))]


def _drafts(
    config: DecodeConfig, state: DecodeState, buffer: np.ndarray, trees: np.ndarray | None
) -> Drafts:
    """What the next step verifies: the search's trees, the state's, or only the roots."""
    context, ids, logits = config.host_buffer.candidates_of(buffer)
    if trees is None and state.trees is not None:
        trees = np.array(state.trees)  # a copy: the state is donated
    if trees is None:
        trees = np.pad(context[:, None, -1:], ((0, 0), (0, 2), (0, 0)))
    return Drafts(trees, context, ids, logits)


def generate_streaming(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options = Options(),
) -> Generation:
    """Runs the host loop to the end and collects its output."""
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    steps = list(stream(config, params, pruner, prompts, options, seconds=seconds))
    seconds["host"] = time.perf_counter() - began - sum(seconds.values())
    return collect(steps, seconds)


def collect(steps: list[StepOutput], seconds: dict[str, float]) -> Generation:
    """Joins the steps of a stream to a `Generation`."""
    rows = list(zip(*(step.tokens for step in steps), strict=True))
    drafted = [
        np.concatenate([np.arange(len(step.tokens[n])) < step.drafted[n] for step in steps])
        for n in range(len(rows))
    ]
    verifications = np.array([sum(len(tokens) > 0 for tokens in row[1:]) for row in rows])
    scores = None
    if steps[0].scores is not None:
        of_rows = zip(*(step.scores or () for step in steps), strict=True)
        scores = [jax.tree.map(lambda *parts: np.concatenate(parts), *row) for row in of_rows]
    tokens = [np.concatenate(row) for row in rows]
    return Generation(tokens, drafted, verifications, seconds, scores)


def generate_fused(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options = Options(),
) -> Generation:
    """Runs the prefill, then the whole generation as one jitted program.

    Without a pruner the program never leaves the device.

    Raises:
      UserError: the target's logits are NaN.
    """
    began = time.perf_counter()
    with measure_compilation() as compiling_prefill:
        state, packed = jax.block_until_ready(start(config, params, prompts, options))
    prefilled = time.perf_counter()
    handle = None
    if pruner is not None:
        pruner.seconds = 0.0
        handle = jnp.int32(pruner.handle)
    native = pruner is None or pruner.native
    with measure_compilation() as compiling:
        _, *results = _run(config, native, prompts.max_length, params, state, packed, handle)
    (output, drafted, scores), emitted, steps = jax.device_get(results)
    total = time.perf_counter()
    search = pruner.seconds if pruner is not None else 0.0
    seconds = {
        "prefill": prefilled - began - compiling_prefill.seconds,
        "device": total - prefilled - search - compiling.seconds,
        "search": search,
        "compile": compiling_prefill.seconds + compiling.seconds,
    }
    tokens, drafted = (
        [row[:count] for row, count in zip(rows, emitted, strict=True)]
        for rows in (output, drafted)
    )
    _check_numbers(tokens, np.zeros(len(tokens), int))
    return Generation(tokens, drafted, steps, seconds, _rows(scores, emitted))


# Of a batch of rows, [B, tokens, ...] each: tokens int32, whether they were drafted, and scores.
_Emitted = tuple[jax.Array, jax.Array, TokenScores | None]


@partial(jax.jit, static_argnames=("config", "native", "size"), donate_argnames=("state",))
def _run(
    config: DecodeConfig,
    native: bool,
    size: int,
    params: DecodeParams,
    state: DecodeState,
    packed: jax.Array,
    handle: jax.Array | None,
) -> tuple[DecodeState, _Emitted, jax.Array, jax.Array]:
    """Decodes until every row is finished.

    Returns:
      The final state, so that the donated caches can be updated in place; what was emitted, with
      size + P tokens per row; how many of them each row emitted [B]; and the verifications each
      row took part in [B].
    """
    width = config.host_buffer.path

    def emitted_in(state: DecodeState, packed: jax.Array) -> _Emitted:
        """The path of one step: its tokens, of which the packed count is valid."""
        was_drafted = jnp.arange(width, dtype=jnp.int32)[None] < packed[:, 1:2]
        return packed[:, 2 : 2 + width], was_drafted, state.scores

    @jax.vmap
    def write(all_tokens: jax.Array, path: jax.Array, at: jax.Array) -> jax.Array:
        start = (at, *(0,) * (all_tokens.ndim - 1))
        return jax.lax.dynamic_update_slice(all_tokens, path, start)

    def body(carry):
        state, packed, output, emitted, steps = carry
        steps = steps + state.active.astype(jnp.int32)
        trees = None
        if handle is not None:
            trees, _ = search_in_jit(
                config.host_buffer, config.nodes, handle, packed, native=native
            )
        state, packed = step(config, params, state, trees)
        new = emitted_in(state, packed)
        output = jax.tree.map(lambda old, path: write(old, path, emitted), output, new)
        return state, packed, output, emitted + packed[:, 0], steps

    def room(path: jax.Array) -> jax.Array:
        return jnp.pad(path, ((0, 0), (0, size), *((0, 0),) * (path.ndim - 2)))

    first = jax.tree.map(room, emitted_in(state, packed))
    carry = (state, packed, first, packed[:, 0], jnp.zeros((packed.shape[0],), jnp.int32))
    state, _, output, emitted, steps = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0].active), body, carry
    )
    return state, output, emitted, steps
