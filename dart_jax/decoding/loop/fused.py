"""The whole generation as one jitted program, with the search as a callback."""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.policy import Learned
from dart_jax.decoding.compilation import measure_compilation
from dart_jax.decoding.loop.adaptive import run_adaptive
from dart_jax.decoding.loop.emission import Emitted, emitted_in, room_for, write
from dart_jax.decoding.loop.results import Generation, check_numbers, rows_of
from dart_jax.decoding.loop.start import start
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.pruner import Pruner, search_in_jit
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import step


def generate_fused(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options = Options(),
    learned: Learned | None = None,
) -> Generation:
    """Runs the prefill, then the whole generation as one jitted program.

    Without a pruner the program never leaves the device.

    Args:
      config: static.
      params: see `DecodeParams`.
      pruner: the search, if trees are built on the host; otherwise None.
      prompts: the batch.
      options: how to decode.
      learned: what is known about trees of each size, if steps choose it; is updated.

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
    program, arguments = run, (params, state, packed, handle)
    if learned is not None:
        program, arguments = run_adaptive, (*arguments, learned.policy)
    with measure_compilation() as compiling:
        state, *results = program(config, native, prompts.max_length, *arguments)
    if learned is not None:
        learned.keep(state.adaptive.policy)
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
    check_numbers(tokens, np.zeros(len(tokens), int))
    return Generation(tokens, drafted, steps, seconds, rows_of(scores, emitted))


@partial(jax.jit, static_argnames=("config", "native", "size"), donate_argnames=("state",))
def run(
    config: DecodeConfig,
    native: bool,
    size: int,
    params: DecodeParams,
    state: DecodeState,
    packed: jax.Array,
    handle: jax.Array | None,
) -> tuple[DecodeState, Emitted, jax.Array, jax.Array]:
    """Decodes until every row is finished.

    Returns:
      The final state, so that the donated caches can be updated in place; what was emitted, with
      size + P tokens per row; how many of them each row emitted [B]; and the verifications each
      row took part in [B].
    """

    def body(carry):
        state, packed, output, emitted, steps = carry
        steps = steps + state.active.astype(jnp.int32)
        trees = None
        if handle is not None:
            trees, _ = search_in_jit(
                config.host_buffer, config.nodes, handle, packed, native=native
            )
        state, packed = step(config, params, state, trees)
        new = emitted_in(config, state, packed)
        output = jax.tree.map(lambda old, path: write(old, path, emitted), output, new)
        return state, packed, output, emitted + packed[:, 0], steps

    first = jax.tree.map(partial(room_for, size), emitted_in(config, state, packed))
    carry = (state, packed, first, packed[:, 0], jnp.zeros((packed.shape[0],), jnp.int32))
    state, _, output, emitted, steps = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0].active), body, carry
    )
    return state, output, emitted, steps
