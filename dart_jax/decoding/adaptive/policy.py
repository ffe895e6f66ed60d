"""Chooses the size of each step's tree, and when not to draft at all.

A step with n nodes emits 1 + (the sum of their probabilities of acceptance) tokens on average, and
takes a time that was measured. The size is taken that gains most over what the same time yields at
the present pace (the marginal value theorem; CaDDTree, arXiv 2606.01813, applies the same rule to
every further node). Drafting goes on while it is expected to be faster than plain decoding;
otherwise it pauses, for longer each time, and in the end for the rest of the text. The next text
begins with the draft that the prefill has made.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.adaptive.acceptance import AcceptanceRates

# Steps of plain decoding in a pause: the first one; the longest after which drafting is tried
# again; and the rest of a text. The drafter must read what was written in a pause, which takes a
# few percent of its time.
_FIRST_PAUSE = 16
LONGEST_PAUSE = 64
REST = 2**30

# Tokens per row and step by which drafting is believed to be ahead of plain decoding before the
# first step, and what a step counts in the average of this figure.
_FIRST_LEAD = 2.0
_NEWEST = 0.15

# Part of the earlier tokens and seconds that is kept from step to step to know the present pace.
_KEPT = 0.97


class TreeCosts(NamedTuple):
    """Measured seconds of a batch's steps, float32.

    Attributes:
      steps: [S], with a draft and the verification of a tree of each size.
      plain: of plain decoding.
    """

    steps: jax.Array
    plain: jax.Array


class Policy(NamedTuple):
    """What is known, and what has been decided.

    Attributes:
      costs: what steps cost.
      rates: how often nodes were accepted.
      size: int32, index of the size verified last.
      tokens: float32, tokens per row of the latest steps.
      seconds: float32, their expected time.
      lead: float32, expected tokens per row of a step with a draft, beyond those of plain decoding
        in the same time; averaged over the latest steps.
      wait: int32, plain steps to do before the next draft.
      pause: int32, plain steps of the next pause.
    """

    costs: TreeCosts
    rates: AcceptanceRates
    size: jax.Array
    tokens: jax.Array
    seconds: jax.Array
    lead: jax.Array
    wait: jax.Array
    pause: jax.Array

    @classmethod
    def start(cls, costs: TreeCosts, nodes: int) -> Policy:
        """The policy before the first step, for trees of up to `nodes` nodes."""
        return cls(
            costs,
            AcceptanceRates.prior(nodes),
            jnp.int32(0),
            jnp.float32(0),
            jnp.float32(0),
            jnp.float32(_FIRST_LEAD),
            jnp.int32(0),
            jnp.int32(_FIRST_PAUSE),
        )


@dataclasses.dataclass(eq=False)
class Learned:
    """The policy of one kind of generations, which each of them continues and updates."""

    policy: Policy

    def keep(self, policy: Policy) -> None:
        """Keeps the policy after a generation, for the next one."""
        self.policy = policy._replace(wait=np.int32(0))


def choose(
    policy: Policy, sizes: tuple[int, ...], probability: jax.Array, active: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the index of the size to verify, int32, and the tokens per row to expect, float32.

    Args:
      policy: what is known.
      sizes: ascending.
      probability: float32 [B, N + 1], see `acceptance.expected`.
      active: bool [B], unfinished rows.
    """
    rows = jnp.maximum(jnp.sum(active), 1).astype(jnp.float32)
    of_rank = jnp.sum(jnp.where(active[:, None], probability, 0), axis=0) / rows
    within = np.arange(probability.shape[1])[None] <= np.array(sizes)[:, None]
    tokens = 1 + jnp.sum(jnp.where(within, of_rank[None], 0), axis=1)
    pace = 1 / policy.costs.plain
    reached = policy.tokens / jnp.maximum(policy.seconds, policy.costs.plain)
    gain = tokens - jnp.maximum(pace, reached) * policy.costs.steps
    size = jnp.argmax(gain).astype(jnp.int32)
    return size, tokens[size]


def account(policy: Policy, size: jax.Array, expected: jax.Array, emitted: jax.Array) -> Policy:
    """Notes what a step yielded, and decides whether to draft on.

    Args:
      policy: is updated.
      size: int32, index of the size.
      expected: float32, tokens per row that were expected.
      emitted: float32, tokens per row that were emitted.
    """
    seconds = policy.costs.steps[size]
    newest = expected - seconds / policy.costs.plain
    lead = policy.lead + _NEWEST * (newest - policy.lead)
    behind = lead < 0
    longer = jnp.where(policy.pause < LONGEST_PAUSE, 2 * policy.pause, REST)
    return policy._replace(
        size=size,
        tokens=_KEPT * policy.tokens + emitted,
        seconds=_KEPT * policy.seconds + seconds,
        lead=lead,
        wait=jnp.where(behind, policy.pause, 0),
        pause=jnp.where(behind, longer, _FIRST_PAUSE),
    )
