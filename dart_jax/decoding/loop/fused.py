"""The whole generation as one jitted program, the search included; where the sizes of trees change,
one program for each burst."""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.policy import MOST_STEPS
from dart_jax.decoding.adaptive.switch import Switch, TreeSize
from dart_jax.decoding.compilation import measure_compilation
from dart_jax.decoding.loop.emission import Emitted, emitted_in, room_for, write
from dart_jax.decoding.loop.results import Generation, check_numbers, join, rows_of
from dart_jax.decoding.loop.start import start
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import STATE, DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import decode_step
from dart_jax.models.sharding.collectives import in_any_group, once
from dart_jax.models.sharding.program import ALL, ROWS, program


def generate_fused(
    config: DecodeConfig,
    params: DecodeParams,
    search: TreeSearch | None,
    prompts: Prompts,
    options: Options = Options(),
) -> Generation:
    """Runs the prefill, then the whole generation as one jitted program.

    Without a search on the host the program never leaves the device.

    Args:
      config: static.
      params: see `DecodeParams`.
      search: the tree search; None if the drafting method needs none.
      prompts: the batch.
      options: how to decode.

    Raises:
      UserError: the target's logits are NaN.
    """
    return _generate(TreeSize(config, search), None, params, prompts, options)


def generate_in_bursts(
    switch: Switch, params: DecodeParams, prompts: Prompts, options: Options = Options()
) -> Generation:
    """As `generate_fused`, with trees whose sizes change; each burst is one jitted program."""
    return _generate(switch.current, switch, params, prompts, options)


def _generate(
    size: TreeSize,
    switch: Switch | None,
    params: DecodeParams,
    prompts: Prompts,
    options: Options,
) -> Generation:
    """Decodes with trees of one size or, with a switch, burst by burst."""
    began = time.perf_counter()
    with measure_compilation() as compiling:
        state, packed = jax.block_until_ready(start(size.config, params, prompts, options))
    seconds = {"prefill": time.perf_counter() - began - compiling.seconds}
    seconds |= {"device": 0.0, "search": 0.0, "compile": compiling.seconds}
    bursts: list[Generation] = []
    new = np.zeros(len(prompts.tokens), int)
    while True:
        config, search = size
        room, limit = prompts.max_length, None
        if switch is not None and switch.left is not None:
            room, limit = MOST_STEPS * config.host_buffer.path, jnp.int32(switch.left)
        pausing = config.pause and config.drafting is None
        root = state.context[:, -1] if pausing else None
        began, before = time.perf_counter(), 0.0 if search is None else search.seconds
        with measure_compilation() as compiling:
            state, packed, output, *counts = run(config, search, room, params, state, packed, limit)
            features = output.features
            told = (output._replace(features=None), *counts, state.remaining)
            output, emitted, steps, remaining = jax.device_get(told)
        searched = 0.0
        if search is not None:
            search.check()
            searched = search.seconds - before
        total = time.perf_counter() - began - compiling.seconds
        seconds["device"] += total - searched
        seconds["search"] += searched
        seconds["compile"] += compiling.seconds
        tokens, ranks = (
            [row[:count] for row, count in zip(rows, emitted, strict=True)]
            for rows in (output.tokens, output.ranks)
        )
        check_numbers(tokens, new)
        new += emitted
        bursts.append(Generation(tokens, ranks, steps, {}, rows_of(output.scores, emitted)))
        if switch is None:
            break
        switch.learn(np.concatenate(ranks), steps, None if compiling.seconds else total)
        if not remaining.any():
            break
        if root is not None:
            switch.paused(root, output.tokens, features, emitted)
        began = time.perf_counter()
        with measure_compilation() as compiling:
            state, packed = switch.next(state, packed)
        seconds["device"] += time.perf_counter() - began - compiling.seconds
        seconds["compile"] += compiling.seconds
        size = switch.current
    return join(bursts, seconds)


@program(
    inputs={"state": STATE, "search": ALL, "packed": ROWS, "limit": ALL},
    outputs=(STATE, ROWS, ROWS, ROWS, ROWS),
    static=("config", "size"),
    donated=("state",),
)
def run(
    config: DecodeConfig,
    search: TreeSearch | None,
    size: int,
    params: DecodeParams,
    state: DecodeState,
    packed: jax.Array,
    limit: jax.Array | None = None,
) -> tuple[DecodeState, jax.Array, Emitted, jax.Array, jax.Array]:
    """Decodes until every row is finished.

    Args:
      config: static.
      search: the tree search; None if the drafting method needs none.
      size: static; tokens that a row may emit.
      params: see `DecodeParams`.
      state: donated.
      packed: the host buffer; what it says was emitted begins the output.
      limit: int32 scalar, steps after which to stop before that; None for no limit.

    Returns:
      The final state, so that the donated caches can be updated in place; the host buffer, in which
      nothing is emitted anew; what was emitted, with size + P tokens per row; how many of them each
      row emitted [B]; and the verifications each row took part in [B].
    """

    execution = config.execution
    searched = None if search is None else search.in_program
    if searched is not None and execution.shards > 1:
        searched = partial(once, searched)

    def unfinished(carry):
        state, *_, turn = carry
        active = jnp.any(state.active)
        if execution.groups > 1:
            active = in_any_group(active)  # all run the same number of steps
        return active if limit is None else active & (turn < limit)

    def body(carry):
        state, packed, output, emitted, steps, turn = carry
        steps = steps + state.active.astype(jnp.int32)
        trees = None if searched is None else searched(packed)
        state, packed = decode_step(config, params, state, trees)
        new = emitted_in(config, state, packed)
        output = jax.tree.map(lambda old, path: write(old, path, emitted), output, new)
        turn = None if turn is None else turn + 1
        return state, packed, output, emitted + packed[:, 0], steps, turn

    first = jax.tree.map(partial(room_for, size), emitted_in(config, state, packed))
    steps = jnp.zeros((packed.shape[0],), jnp.int32)
    turn = None if limit is None else jnp.int32(0)
    carry = (state, packed, first, packed[:, 0], steps, turn)
    state, packed, output, emitted, steps, _ = jax.lax.while_loop(unfinished, body, carry)
    return state, packed.at[:, 0].set(0), output, emitted, steps
