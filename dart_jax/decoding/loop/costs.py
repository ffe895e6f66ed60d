"""Measures what steps cost with trees of each size, in the very program that will choose sizes."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.policy import REST, Learned, Policy, TreeCosts
from dart_jax.decoding.loop.fused import generate_fused
from dart_jax.decoding.loop.host import generate_streaming
from dart_jax.decoding.loop.start import padded_stop
from dart_jax.decoding.prompts import Options, Prompts
from dart_jax.decoding.pruner import Pruner
from dart_jax.decoding.state import DecodeConfig, DecodeParams

# Every size is measured so often, all in turn, so that a slow moment of the machine affects all.
_ROUNDS = 5

# New tokens of a short and a long text. The difference between their times is what steps cost,
# without what happens once in a text.
_TOKENS = (8, 72)


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
    most = min(_TOKENS[-1], prompts.max_length - 1)
    length = np.minimum(prompts.length, prompts.max_length - most).astype(prompts.length.dtype)
    texts = [
        dataclasses.replace(prompts, length=length, max_new_tokens=np.full_like(length, tokens))
        for tokens in (most * _TOKENS[0] // _TOKENS[-1], most)
    ]
    policies = [_only(config, index) for index in range(len(config.sizes))]
    policies.append(policies[0]._replace(wait=jnp.int32(REST)))
    generate = generate_fused if fused else generate_streaming

    def measure(policy: Policy, text: Prompts) -> tuple[float, int]:
        done = generate(config, params, pruner, text, options, Learned(policy))
        once = done.seconds["prefill"] + done.seconds["compile"]
        return sum(done.seconds.values()) - once, int(done.steps.max())

    rounds = [
        [[measure(policy, text) for text in texts] for policy in policies]
        for _ in range(1 + _ROUNDS)
    ]
    # The first round compiles. Each round compares sizes at one and the same pace of the machine.
    seconds, steps = np.moveaxis(np.diff(np.array(rounds[1:]), axis=2)[:, :, 0], 2, 0)
    each = seconds / np.maximum(steps, 1)
    plain = np.median(each[:, -1])
    sizes = plain * np.median(each[:, :-1] / np.maximum(each[:, -1:], 1e-9), axis=0)
    return TreeCosts(jnp.asarray(sizes, jnp.float32), jnp.float32(plain))


def _only(config: DecodeConfig, index: int) -> Policy:
    """A policy that always chooses this size."""
    costs = np.full(len(config.sizes), np.inf, np.float32)
    costs[index] = 0
    return Policy.start(TreeCosts(jnp.asarray(costs), jnp.float32(1)), config.nodes)
