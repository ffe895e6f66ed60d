"""This project's own decoding: plain, and with DART."""

from __future__ import annotations

import os

import numpy as np

from dart_jax.errors import UserError
from dart_jax.generation.defaults import adaptive_tree, default_tree
from dart_jax.models.drafter_config import DrafterConfig
from eval.peers.engine import PLAIN, Decode, Setup


def load(setup: Setup) -> Decode:
    """Loads plain decoding or DART, in the fused loop; raises UserError if there is no drafter."""
    if hasattr(os, "sched_setaffinity"):
        # XLA makes as many threads as there are cores for this process when it starts.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setup.threads])
    model = setup.model.load()
    options = {"max_length": setup.max_length, "stop": (), "loop": "fused"}
    if setup.name == PLAIN:
        decoder = model.with_drafter(None).decoder(nodes=0, **options)
    elif isinstance(model.drafter, DrafterConfig):
        sizes, search = adaptive_tree(model.drafter)
        nodes, _ = default_tree(model.drafter)
        decoder = model.decoder(nodes=nodes, sizes=sizes, search=search, **options)
    else:
        raise UserError("needs a DART drafter; pass it as --drafter")

    prepared = False

    def decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        nonlocal prepared
        if not prepared:
            decoder.prepare([prompt], new_tokens)
            prepared = True
        generation = decoder([prompt], new_tokens)
        seconds = sum(generation.seconds.values()) - generation.seconds["prefill"]
        return generation.tokens[0].tolist(), seconds

    return decode
