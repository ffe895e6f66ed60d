"""Measures what steps cost with trees of each size, in the very program that will choose sizes."""

from __future__ import annotations

import dataclasses
import time

import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.policy import REST, Learned, Policy, TreeCosts
from dart_jax.decoding.loop.fused import generate_fused
from dart_jax.decoding.loop.host import generate_streaming
from dart_jax.decoding.loop.start import padded_stop
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.pruner import Pruner
from dart_jax.decoding.state import DecodeConfig, DecodeParams

# Every size is measured so often, all in turn, so that a slow moment of the machine affects all;
# less often, but at least once, if that takes more than so many seconds.
_ROUNDS = 5
_SECONDS = 2.0

# New tokens of a short and a long text. The difference between their times is what steps cost,
# without what happens once in a text. Shorter ones if a token takes longer than so many seconds.
_TOKENS = (8, 72)
_FEW_TOKENS = (4, 20)
_SLOW = 0.002


def measure_costs(
    config: DecodeConfig,
    params: DecodeParams,
    pruner: Pruner | None,
    prompts: Prompts,
    options: Options,
    *,
    fused: bool,
) -> TreeCosts:
    """Times steps of each of the config's sizes, and of plain decoding.

    Args:
      config: static, with sizes.
      params: see `DecodeParams`.
      pruner: the search, if trees are built on the host; otherwise None.
      prompts: the batch that will be decoded; its rows are continued, or their beginnings.
      options: how it will be decoded; texts do not stop here.
      fused: which loop to measure.
    """
    options = dataclasses.replace(options, stop=(-1,) * len(padded_stop(options.stop)))
    policies = [_only(config, index) for index in range(len(config.sizes))]
    policies.append(policies[0]._replace(wait=jnp.int32(REST)))
    generate = generate_fused if fused else generate_streaming

    def measure(policy: Policy, tokens: int) -> tuple[float, int]:
        most = min(tokens, prompts.max_length - 1)
        length = np.minimum(prompts.length, prompts.max_length - most).astype(prompts.length.dtype)
        text = dataclasses.replace(
            prompts, length=length, max_new_tokens=np.full_like(prompts.max_new_tokens, most)
        )
        done = generate(config, params, pruner, text, options, Learned(policy))
        once = done.seconds["prefill"] + done.seconds["compile"]
        return sum(done.seconds.values()) - once, int(done.steps.max())

    for policy in policies:
        seconds, steps = measure(policy, _FEW_TOKENS[-1])  # compiles; the last one is plain
    texts = _TOKENS if seconds < _SLOW * max(steps, 1) else _FEW_TOKENS
    rounds: list[list[list[tuple[float, int]]]] = []
    began = time.perf_counter()
    while not rounds or (len(rounds) < _ROUNDS and time.perf_counter() - began < _SECONDS):
        rounds.append([[measure(policy, tokens) for tokens in texts] for policy in policies])
    # Each round compares sizes at one and the same pace of the machine.
    times, counts = np.moveaxis(np.diff(np.array(rounds), axis=2)[:, :, 0], 2, 0)
    each = times / np.maximum(counts, 1)
    plain = np.median(each[:, -1])
    sizes = plain * np.median(each[:, :-1] / np.maximum(each[:, -1:], 1e-9), axis=0)
    return TreeCosts(jnp.asarray(sizes, jnp.float32), jnp.float32(plain))


def _only(config: DecodeConfig, index: int) -> Policy:
    """A policy that always chooses this size."""
    costs = np.full(len(config.sizes), np.inf, np.float32)
    costs[index] = 0
    return Policy.start(TreeCosts(jnp.asarray(costs), jnp.float32(1)), config.nodes)
