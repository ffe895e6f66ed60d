"""Loops over the decode step.

The host loop, `stream`, calls step and search in turn and yields tokens as they are emitted. The
fused loop, `generate_fused`, runs the whole generation in one jitted `lax.while_loop` with the
search as a callback. Both produce the same tokens.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.pruner import Pruner, search_in_jit
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import prefill, step
from dart_jax.errors import UserError

# Stop ids are padded to a multiple of this, to limit the number of compiled shapes.
_STOP_IDS = 8


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A batch of prompts, padded on the right to a power of two, at least 16, to limit the number
    of compiled shapes.

    Attributes:
      tokens: int32 [B, T].
      length: int32 [B].
      max_new_tokens: int32 [B], reduced to the room that `max_length` leaves.
      max_length: maximum length of prompt and new tokens together, per row.
    """

    tokens: np.ndarray
    length: np.ndarray
    max_new_tokens: np.ndarray
    max_length: int

    @classmethod
    def pad(
        cls, prompts: list[np.ndarray], max_new_tokens: int, max_length: int, vocab_size: int
    ) -> Prompts:
        """Pads prompts of different lengths to a batch.

        Raises:
          UserError: there is no prompt, a prompt is empty, leaves no room for a new token or has a
            token outside the vocabulary, or `max_new_tokens` is below 1.
        """
        if not prompts:
            raise UserError("no prompts")
        if max_new_tokens < 1:
            raise UserError(f"max-new-tokens must be at least 1, got {max_new_tokens}")
        length = np.array([len(prompt) for prompt in prompts], np.int32)
        if length.min() < 1:
            raise UserError("a prompt is empty; give it at least one token")
        if length.max() >= max_length:
            raise UserError(
                f"a prompt of {length.max()} tokens leaves no room in {max_length} positions; "
                "shorten it"
            )
        padded = min(max(16, 1 << (int(length.max()) - 1).bit_length()), max_length)
        tokens = np.zeros((len(prompts), padded), np.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            if prompt.min() < 0 or prompt.max() >= vocab_size:
                raise UserError(f"prompt tokens must be in 0..{vocab_size - 1}")
            row[: len(prompt)] = prompt
        budget = np.minimum(max_new_tokens, max_length - length).astype(np.int32)
        return cls(tokens, length, budget, max_length)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a batch that can change without recompiling.

    Attributes:
      sampling: how the target samples.
      stop: ids that end a sequence.
      seed: seed of sampling, in 0..2**32 - 1.
    """

    sampling: Sampling = Sampling()
    stop: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"the seed must be in 0..{2**32 - 1}, got {self.seed}")


@dataclasses.dataclass
class Generation:
    """The new tokens of a batch, and the steps and time they took.

    Attributes:
      tokens: the new tokens of each row, including the stop id if one was drawn.
      drafted: per row, bool, which of them the drafter proposed; the others are the target's.
      steps: int [B], verifications each row took part in (the prefill does not count).
      seconds: wall time: `prefill`, `device` (draft and verify), `search` and, in the host loop,
        `host` (the rest); in the fused loop the rest is part of `device`.
    """

    tokens: list[np.ndarray]
    drafted: list[np.ndarray]
    steps: np.ndarray
    seconds: dict[str, float]

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
    """

    tokens: list[np.ndarray]
    drafted: np.ndarray
    drafts: Drafts | None = None


def start(
    config: DecodeConfig, params: DecodeParams, prompts: Prompts, options: Options
) -> tuple[DecodeState, jax.Array]:
    """Runs the prefill of a batch."""
    stop = options.stop + (-1,) * (-len(options.stop) % _STOP_IDS)
    return prefill(
        config.prefill,
        params,
        jnp.asarray(prompts.tokens),
        jnp.asarray(prompts.length),
        jnp.asarray(prompts.max_new_tokens),
        jnp.asarray(stop, jnp.int32),
        jnp.uint32(options.seed),
        options.sampling.values(),
        capacity=config.capacity(prompts.max_length),
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
      seconds: collects wall time under `prefill`, `device` and `search`.
      with_drafts: also yield what each step verified.
    """
    seconds = {} if seconds is None else seconds
    seconds |= {"prefill": 0.0, "device": 0.0, "search": 0.0}
    stage, began = "prefill", time.perf_counter()
    state, packed = start(config, params, prompts, options)
    drafts = None
    while True:
        buffer = np.asarray(packed)
        seconds[stage] += time.perf_counter() - began
        ended = yield StepOutput(config.host_buffer.emitted(buffer), buffer[:, 1], drafts)
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
        state, packed = step(config, params, state, trees)


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
    return Generation([np.concatenate(row) for row in rows], drafted, verifications, seconds)


def generate_fused(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options = Options(),
) -> Generation:
    """Runs the prefill, then the whole generation as one jitted program.

    Without a pruner the program never leaves the device.
    """
    began = time.perf_counter()
    state, packed = jax.block_until_ready(start(config, params, prompts, options))
    prefilled = time.perf_counter()
    handle = None
    if pruner is not None:
        pruner.seconds = 0.0
        handle = jnp.int32(pruner.handle)
    native = pruner is None or pruner.native
    _, *results = _run(config, native, prompts.max_length, params, state, packed, handle)
    output, drafted, emitted, steps = jax.device_get(results)
    total = time.perf_counter()
    search = pruner.seconds if pruner is not None else 0.0
    seconds = {
        "prefill": prefilled - began,
        "device": total - prefilled - search,
        "search": search,
    }
    rows = list(zip(output, drafted, emitted, strict=True))
    return Generation(
        [tokens[:count] for tokens, _, count in rows],
        [was_drafted[:count] for _, was_drafted, count in rows],
        steps,
        seconds,
    )


@partial(jax.jit, static_argnames=("config", "native", "size"), donate_argnames=("state",))
def _run(
    config: DecodeConfig,
    native: bool,
    size: int,
    params: DecodeParams,
    state: DecodeState,
    packed: jax.Array,
    handle: jax.Array | None,
) -> tuple[DecodeState, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Decodes until every row is finished.

    Returns:
      The final state, so that the donated caches can be updated in place; new tokens
      int32 [B, size + P]; which of them were drafted, bool [B, size + P]; how many of them each
      row emitted [B]; and the verifications each row took part in [B].
    """
    width = config.host_buffer.path

    def write_row(output, drafted, emitted, packed):
        was_drafted = jnp.arange(width, dtype=jnp.int32) < packed[1]
        output = jax.lax.dynamic_update_slice(output, packed[2 : 2 + width], (emitted,))
        drafted = jax.lax.dynamic_update_slice(drafted, was_drafted, (emitted,))
        return output, drafted, emitted + packed[0]

    write = jax.vmap(write_row)

    def body(carry):
        state, packed, (output, drafted, emitted), steps = carry
        steps = steps + state.active.astype(jnp.int32)
        trees = None
        if handle is not None:
            trees = search_in_jit(config.host_buffer, config.nodes, handle, packed, native=native)
        state, packed = step(config, params, state, trees)
        return state, packed, write(output, drafted, emitted, packed), steps

    zero = jnp.zeros((packed.shape[0],), jnp.int32)
    output = jnp.zeros((packed.shape[0], size + width), jnp.int32)
    written = write(output, output > 0, zero, packed)
    state, _, (output, drafted, emitted), steps = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0].active), body, (state, packed, written, zero)
    )
    return state, output, drafted, emitted, steps
