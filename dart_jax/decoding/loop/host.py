"""The loop on the host: step and search are called in turn, and tokens are yielded as they are
emitted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.policy import Learned
from dart_jax.decoding.adaptive.step import (
    adaptive_step,
    resume,
    single_plain_step,
    start_adapting,
)
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
from dart_jax.decoding.pruner import Pruner
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import step


def stream(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options = Options(),
    learned: Learned | None = None,
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
      learned: what is known about trees of each size, if steps choose it; is updated.
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
        if learned is not None:
            state = start_adapting(config, state, learned.policy)
    drafts, before, waiting = None, np.zeros(len(prompts.tokens), int), False
    while True:
        if learned is not None:
            policy = jax.device_get(state.adaptive.policy)
            learned.keep(policy)
            waiting = policy.wait > 0
            if drafts is not None:
                size = config.sizes[int(policy.size)]
                drafts = drafts._replace(trees=drafts.trees[:, :, : size + 1])
        buffer = np.asarray(packed)
        seconds[stage] += time.perf_counter() - began - compilation.seconds
        seconds["compile"] += compilation.seconds
        tokens = config.host_buffer.emitted(buffer)
        check_numbers(tokens, before)
        before += buffer[:, 0]
        scores = rows_of(state.scores, [len(row) for row in tokens])
        ended = yield StepOutput(tokens, buffer[:, 1], drafts, scores)
        if ended is not None and ended.any():
            buffer = buffer.copy()
            buffer[ended, config.host_buffer.root] = -1
            remaining = jnp.where(jnp.asarray(ended), 0, state.remaining)
            state = dataclasses.replace(state, remaining=remaining)
        if not config.host_buffer.active(buffer):
            return
        drafts, stage, began = None, "device", time.perf_counter()
        if waiting:
            if with_drafts:
                drafts = _drafts(config, state, buffer, _roots(config, buffer))
            with measure_compilation() as compilation:
                state, packed = single_plain_step(config, params, state)
            continue
        if learned is not None and state.adaptive.pending.count > 0:
            with measure_compilation() as compilation:
                state, packed = resume(config, params, state)
                buffer = np.asarray(packed)
            seconds["device"] += time.perf_counter() - began - compilation.seconds
            seconds["compile"] += compilation.seconds
        began = time.perf_counter()
        found = None if pruner is None else pruner.scored(buffer)
        seconds["search"] += time.perf_counter() - began
        if with_drafts:
            drafts = _drafts(config, state, buffer, None if found is None else found[0])
        began = time.perf_counter()
        with measure_compilation() as compilation:
            if learned is None:
                trees = None if found is None else found[0]
                state, packed = step(config, params, state, trees)
            else:
                state, packed = adaptive_step(config, params, state, found)


def _drafts(
    config: DecodeConfig, state: DecodeState, buffer: np.ndarray, trees: np.ndarray | None
) -> Drafts:
    """What the next step verifies: the search's trees, the state's, or only the roots."""
    drafted = config.host_buffer.candidates_of(buffer)
    if trees is None and state.trees is not None:
        trees = np.array(state.trees)  # a copy: the state is donated
    if trees is None:
        trees = _roots(config, buffer)
    return Drafts(trees, *drafted, config.host_buffer.pairs_of(buffer))


def _roots(config: DecodeConfig, buffer: np.ndarray) -> np.ndarray:
    """Trees of only the roots, int32 [B, 3, 1]."""
    root = config.host_buffer.root
    return np.pad(buffer[:, None, root : root + 1], ((0, 0), (0, 2), (0, 0)))


def generate_streaming(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options = Options(),
    learned: Learned | None = None,
) -> Generation:
    """Runs the host loop to the end and collects its output."""
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    steps = list(stream(config, params, pruner, prompts, options, learned, seconds=seconds))
    seconds["host"] = time.perf_counter() - began - sum(seconds.values())
    return collect(steps, seconds)
