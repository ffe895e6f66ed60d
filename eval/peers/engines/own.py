"""This project's own decoding: plain, and with DART."""

from __future__ import annotations

import dataclasses
import os
import time

import jax
import numpy as np

from dart_jax.errors import UserError
from dart_jax.generation.defaults import adaptive_tree, default_tree
from dart_jax.models.drafter_config import DrafterConfig
from eval.peers.engine import Decoded, Setup
from eval.peers.registry import PLAIN


class OwnEngine:
    """Plain decoding or DART, in the fused loop."""

    def __init__(self, setup: Setup):
        """Loads the model.

        Raises:
          UserError: as `ModelChoice.load`, or there is no DART drafter.
        """
        config = setup.config
        model = config.load()
        plain = setup.name == PLAIN
        if plain:
            model = model.with_drafter(None)
        elif not isinstance(model.drafter, DrafterConfig):
            raise UserError("needs a DART drafter; pass it as --drafter")
        nodes, search = default_tree(model.drafter)
        sizes: tuple[int, ...] = ()
        if config.tree_nodes is None:
            sizes, search = adaptive_tree(model.drafter)
        if config.level_decay is not None:
            search = dataclasses.replace(search, level_decay=config.level_decay)
        self._decoder = model.decoder(
            nodes=0 if plain else config.tree_nodes or nodes,
            sizes=() if plain else sizes,
            max_length=setup.max_length,
            stop=(),
            search=None if plain else search,
            loop="fused",
        )
        leaves = jax.tree.leaves(model.params["target"])
        kinds = {leaf.dtype.name for leaf in leaves}
        # On CPUs, matrices that bfloat16 holds exactly are stored in it.
        computed = model.params["target"]["embed_tokens"].dtype.name
        self.precision = f"{computed}*" if kinds - {computed} else computed

    def decode(self, prompt: np.ndarray, new_tokens: int) -> Decoded:
        """See `Engine.decode`. One program generates the whole text, prefill included: it tells its
        wall time without prefill; its processor time is that of the text minus that of one
        token."""
        cpu = [time.process_time()]
        self._decoder([prompt], 1)
        cpu.append(time.process_time())
        generation = self._decoder([prompt], new_tokens)
        cpu.append(time.process_time())
        seconds = sum(generation.seconds.values()) - generation.seconds["prefill"]
        cpu_seconds = max(cpu[2] - 2 * cpu[1] + cpu[0], 0.0)
        return Decoded(generation.tokens[0].tolist(), seconds, cpu_seconds)


def load(setup: Setup) -> OwnEngine:
    """Loads plain decoding or DART."""
    if hasattr(os, "sched_setaffinity"):
        # XLA makes as many threads as there are cores for this process when it starts.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setup.threads])
    return OwnEngine(setup)
