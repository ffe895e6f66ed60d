"""The beginning of every generation: the prompts are read, a long one in chunks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dart_jax.decoding.prefill import divide, empty_caches, prefill, read_chunk
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState

# Stop ids are padded to a multiple of this.
_STOP_IDS = 8


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
