"""This project's own decoding: plain, and with DART."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import jax
import numpy as np

from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.pure import Params, dtype_of
from eval.methods.registry import decoder, tree
from eval.peers.engine import PLAIN, Loaded, Setup


def load(setup: Setup) -> Loaded:
    """Loads plain decoding or DART; raises UserError if there is no drafter."""
    if hasattr(os, "sched_setaffinity"):
        # XLA makes as many threads as there are cores for this process when it starts.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setup.threads])
    model = setup.model.load()
    if setup.name == PLAIN:
        model = model.with_drafter(None)
    elif model.drafter is None or model.drafter.traits.search != "candidates":
        raise UserError("needs a DART or block drafter; pass it as --drafter")
    size = tree(model, setup.tree_nodes)
    whole = decoder(model, size, max_length=setup.max_length, sampling=Sampling())
    endless = dataclasses.replace(whole, stop=())

    def decode(prompt: np.ndarray, new_tokens: int) -> tuple[list[int], float]:
        generation = endless([prompt], new_tokens)
        seconds = sum(generation.seconds.values()) - generation.seconds["prefill"]
        return generation.tokens[0].tolist(), seconds

    return Loaded(_weights(model.params["target"]), decode)


def _weights(target: Params) -> str:
    """The type of most weights, by GGUF's name if it is one of blocks."""
    leaves = jax.tree.leaves(target, is_leaf=lambda x: isinstance(x, Tiles))
    types = Counter[str]()
    for leaf in leaves:
        if isinstance(leaf, Tiles):
            for type, out in zip(leaf.types, leaf.outs, strict=True):
                types[type] += out * leaf.d_in
    (most, _), *_ = types.most_common(1) or [(dtype_of(target).name, 0)]
    return {"F32": "float32", "BF16": "bfloat16"}.get(most, most)
