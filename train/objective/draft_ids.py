"""Selects and orders the draft ids of a drafter's parameters."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from dart_jax.models.pure import Params


def with_draft_ids(params: Params, order: np.ndarray) -> Params:
    """Returns a drafter's parameters with only these draft ids, in this order, int [n]."""
    index = jnp.asarray(order)
    changed = {"lm_head": {"kernel": jnp.take(params["lm_head"]["kernel"], index, axis=1)}}
    if pairs := params.get("pairs"):
        tables = {name: jnp.take(pairs[name], index, axis=0) for name in ("prev", "next")}
        changed["pairs"] = {**pairs, **tables}
    return {**params, **changed}
