"""This project's own decoding: plain, and with DART."""

from __future__ import annotations

import dataclasses
import os
import time

import jax
import numpy as np

from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.generation.defaults import default_tree
from dart_jax.models.drafter_config import DrafterConfig
from eval.methods.registry import adaptive, decoder
from eval.methods.tree_size import Tree
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
        tree = adaptive(model, 1, config.level_decay)
        if tree.nodes and config.tree_nodes is not None:
            _, search = default_tree(model.drafter)
            decay = search.level_decay if config.level_decay is None else config.level_decay
            tree = Tree(config.tree_nodes, decay)
        made = decoder(model, tree, max_length=setup.max_length, sampling=Sampling(), loop="fused")
        self._decoder = dataclasses.replace(made, stop=())
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
