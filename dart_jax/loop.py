"""Loops over the decode step.

`stream` runs step and search in turn from the host and yields tokens as they are won; `fused` puts
the whole generation into one jitted `lax.while_loop` with the search as a callback. Both give the
same tokens.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError
from dart_jax.pruner import Pruner
from dart_jax.step import DecodeConfig, DecodeParams, DecodeState, prefill, step


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A batch of prompts, padded on the right to a power of two so that shapes stay few.

    Attributes:
      tokens: int32 [B, T].
      length: int32 [B].
      max_new_tokens: int32 [B], cut to what `max_length` leaves room for.
      max_length: prompt and new tokens together, per row.
    """

    tokens: np.ndarray
    length: np.ndarray
    max_new_tokens: np.ndarray
    max_length: int

    @classmethod
    def pad(
        cls, prompts: list[np.ndarray], max_new_tokens: int, max_length: int, vocab_size: int
    ) -> Prompts:
        """Lays prompts of different lengths side by side.

        Raises:
          UserError: an empty prompt, one that leaves no room for a new token, a token outside
            the vocabulary, or nothing to generate.
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
                f"a prompt of {length.max()} tokens leaves no room in a cache of {max_length}; "
                "shorten it or raise --max-length"
            )
        padded = min(1 << (int(length.max()) - 1).bit_length(), max_length)
        tokens = np.zeros((len(prompts), padded), np.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        if tokens.min() < 0 or tokens.max() >= vocab_size:
            raise UserError(f"prompt tokens must be in 0..{vocab_size - 1}")
        budget = np.minimum(max_new_tokens, max_length - length).astype(np.int32)
        return cls(tokens, length, budget, max_length)


@dataclasses.dataclass
class Generation:
    """What a generation gave and what it took.

    Attributes:
      tokens: per row the new tokens, EOS included where it was drawn.
      steps: int [B], verifications each row took part in (prefill is none).
      seconds: of wall time: `prefill`, `device` (draft and verify), `search` and, streaming,
        `host` (the rest); in the fused loop the rest is part of `device`.
    """

    tokens: list[np.ndarray]
    steps: np.ndarray
    seconds: dict[str, float]

    @property
    def tau(self) -> np.ndarray:
        """Tokens emitted per verification, bonus included: float [B]; nan without a step."""
        won = np.array([len(tokens) - 1 for tokens in self.tokens])
        with np.errstate(invalid="ignore"):
            return won / self.steps


def start(
    config: DecodeConfig, params: DecodeParams, prompts: Prompts, seed: int
) -> tuple[DecodeState, jax.Array]:
    """Runs the prefill of a batch.

    Raises:
      UserError: the seed is not in 0..2**32 - 1.
    """
    if not 0 <= seed < 2**32:
        raise UserError(f"the seed must be in 0..{2**32 - 1}, got {seed}")
    return prefill(
        # The same for every tree that is deep enough, so compiled once.
        dataclasses.replace(config, nodes=config.max_depth),
        params,
        jnp.asarray(prompts.tokens),
        jnp.asarray(prompts.length),
        jnp.asarray(prompts.max_new_tokens),
        jnp.uint32(seed),
        capacity=config.capacity(prompts.max_length),
    )


def stream(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    *,
    seed: int = 0,
    seconds: dict[str, float] | None = None,
) -> Iterator[list[np.ndarray]]:
    """Yields, after the prefill and after every step, the tokens each row won in it.

    Args:
      config: static.
      params: see `DecodeParams`.
      pruner: the search; None for plain decoding.
      prompts: the batch.
      seed: of the target's draws.
      seconds: collects wall time under `prefill`, `device` and `search`.
    """
    seconds = {} if seconds is None else seconds
    seconds |= {"prefill": 0.0, "device": 0.0, "search": 0.0}
    stage, began = "prefill", time.perf_counter()
    state, packed = start(config, params, prompts, seed)
    while True:
        handed = np.asarray(packed)
        seconds[stage] += time.perf_counter() - began
        yield config.handover.emitted(handed)
        if not config.handover.active(handed):
            return
        began = time.perf_counter()
        trees = None if pruner is None else pruner(handed)
        seconds["search"] += time.perf_counter() - began
        stage, began = "device", time.perf_counter()
        state, packed = step(config, params, state, trees)


def generate_streaming(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    *,
    seed: int = 0,
) -> Generation:
    """`stream`, collected."""
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    won = list(stream(config, params, pruner, prompts, seed=seed, seconds=seconds))
    seconds["host"] = time.perf_counter() - began - sum(seconds.values())
    rows = [list(row) for row in zip(*won, strict=True)]
    steps = np.array([sum(len(tokens) > 0 for tokens in row[1:]) for row in rows])
    return Generation([np.concatenate(row) for row in rows], steps, seconds)


def generate_fused(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    *,
    seed: int = 0,
) -> Generation:
    """The whole generation as one jitted program behind the prefill.

    Without a pruner, that is plain decoding, the program never leaves the device.
    """
    began = time.perf_counter()
    state, packed = jax.block_until_ready(start(config, params, prompts, seed))
    prefilled = time.perf_counter()
    if pruner is not None:
        pruner.seconds = 0.0
    _, *won = _run(config, pruner, prompts.max_length, params, state, packed)
    output, emitted, steps = jax.device_get(won)
    total = time.perf_counter()
    search = pruner.seconds if pruner is not None else 0.0
    seconds = {
        "prefill": prefilled - began,
        "device": total - prefilled - search,
        "search": search,
    }
    tokens = [row[:count] for row, count in zip(output, emitted, strict=True)]
    return Generation(tokens, steps, seconds)


@partial(jax.jit, static_argnames=("config", "pruner", "size"), donate_argnames=("state",))
def _run(
    config: DecodeConfig,
    pruner: Pruner | None,
    size: int,
    params: DecodeParams,
    state: DecodeState,
    packed: jax.Array,
) -> tuple[DecodeState, jax.Array, jax.Array, jax.Array]:
    """Decodes until every row is finished.

    Returns:
      The last state, so that the donated caches can be used in place; new tokens
      int32 [B, size + P], how many of them each row emitted [B], and the verifications each row
      took part in [B].
    """
    width = config.handover.path

    @jax.vmap
    def write(output, emitted, packed):
        output = jax.lax.dynamic_update_slice(output, packed[1 : 1 + width], (emitted,))
        return output, emitted + packed[0]

    def body(carry):
        state, packed, output, emitted, steps = carry
        steps = steps + state.active.astype(jnp.int32)
        trees = None if pruner is None else pruner.callback(packed)
        state, packed = step(config, params, state, trees)
        return state, packed, *write(output, emitted, packed), steps

    zero = jnp.zeros((packed.shape[0],), jnp.int32)
    output = jnp.zeros((packed.shape[0], size + width), jnp.int32)
    output, emitted = write(output, zero, packed)
    state, _, output, emitted, steps = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0].active), body, (state, packed, output, emitted, zero)
    )
    return state, output, emitted, steps
