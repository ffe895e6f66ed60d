"""How far a target's logits depend on the way they are computed.

The same forward over other numbers of rows sums in another order. Nothing here uses the tree, the
caches' writing or the acceptance that are under test: masks are laid out by hand, and what is
cached comes from one forward over the whole text.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.model import DartModel
from dart_jax.models.config import TargetConfig
from dart_jax.models.layers import Params
from dart_jax.models.pure import bind
from dart_jax.models.target import Target, TargetOutput

# The most that is taken for rounding, in units of the dtype's resolution at the largest logit: some
# ten times what the demo shows. Ways that differ by more do not compute the same. Sums are float32
# in both, so bfloat16 loses fewer of its units.
PLAUSIBLE = {"float32": 64.0, "bfloat16": 4.0}


class Probe(NamedTuple):
    """The logits that follow a text.

    Attributes:
      logits: float32 [V], computed in float32 in one forward over the whole text.
      rounding: the largest difference to them, over the vocabulary, of the model's own dtype in
        one forward, with all but the last token cached, and as a node of a tree.
      plausible: whether the dtype explains as much.
    """

    logits: np.ndarray
    rounding: float
    plausible: bool


class Prober:
    """Computes a model's logits in several ways."""

    def __init__(self, model: DartModel, nodes: int):
        """Probes trees of `nodes` nodes."""
        self._config, self._params = model.target, model.params["target"]
        self._exact = jax.tree.map(lambda x: x.astype(jnp.float32), self._params)
        self._dtype = jax.tree.leaves(self._params)[0].dtype
        self._plausible = PLAUSIBLE.get(self._dtype.name, PLAUSIBLE["bfloat16"])
        self._nodes = nodes
        self._known: dict[tuple[int, ...], Probe] = {}

    def __call__(self, text: np.ndarray) -> Probe:
        """What follows `text`, int [n], n >= 1."""
        key = tuple(map(int, text))
        if key not in self._known:
            self._known[key] = self._probe(np.array(key, np.int32))
        return self._known[key]

    def _probe(self, text: np.ndarray) -> Probe:
        padded = np.zeros((1, max(32, 1 << (len(text) - 1).bit_length())), np.int32)
        padded[0, : len(text)] = text
        tokens, length = jnp.asarray(padded), jnp.int32(len(text))
        exact = np.asarray(_in_one(self._config, self._exact, tokens, length))
        ways = [_in_one(self._config, self._params, tokens, length)]
        for path, rows in ((1, 1), (min(len(text), 8, self._nodes + 1), self._nodes + 1)):
            behind = partial(_behind_cache, self._config, rows, self._params)
            ways.append(behind(tokens, length, jnp.int32(path)))
        rounding = max(float(np.abs(np.asarray(way) - exact).max()) for way in ways)
        resolution = float(jnp.finfo(self._dtype).eps) * float(np.abs(exact).max())
        return Probe(exact, rounding, rounding <= self._plausible * resolution)


@partial(jax.jit, static_argnames=("config",))
def _in_one(
    config: TargetConfig, params: Params, tokens: jax.Array, length: jax.Array
) -> jax.Array:
    """Text [1, T] of `length` tokens, padded on the right -> float32 [V]."""
    with jax.default_matmul_precision("highest"):
        target = bind(config, params)
        hidden = _whole(target, tokens).hidden
        return target.logits(jnp.take(hidden[0], length[None] - 1, axis=0))[0]


@partial(jax.jit, static_argnames=("config", "rows"))
def _behind_cache(
    config: TargetConfig,
    rows: int,
    params: Params,
    tokens: jax.Array,
    length: jax.Array,
    path: jax.Array,
) -> jax.Array:
    """The same with the last `path` tokens as a path among `rows` new rows."""
    with jax.default_matmul_precision("highest"):
        target = bind(config, params)
        cache = _whole(target, tokens).rows
        start = (length - path)[None]
        row = jnp.arange(rows, dtype=jnp.int32)
        level = jnp.where(row < path, row, 0)
        earlier = (row[:, None] >= row[None]) & (row < path)[:, None]
        mask = earlier | jnp.eye(rows, dtype=bool)
        new = jnp.take(tokens, start + level, axis=1)
        out = target(new, (start + level)[None], mask[None], cache, start)
        return target.logits(jnp.take(out.hidden[0], path[None] - 1, axis=0))[0]


def _whole(target: Target, tokens: jax.Array) -> TargetOutput:
    size = tokens.shape[1]
    positions = jnp.arange(size, dtype=jnp.int32)[None]
    return target(tokens, positions, jnp.tril(jnp.ones((1, size, size), bool)))
