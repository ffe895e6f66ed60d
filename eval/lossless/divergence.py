"""A setting compared with plain decoding; the first difference of two outputs is a tie within
rounding, or shows two different distributions.

The same forward over a different number of rows sums in a different order. What computes that error
uses nothing of the code under test (tree, cache updates, acceptance): masks are built by hand, and
cached rows come from one forward over the whole text.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.options import Sampling
from dart_jax.decoding.sampling import gumbel_noise, row_keys
from dart_jax.model import DartModel
from dart_jax.models.config import TargetConfig
from dart_jax.models.kernels.choices import CacheDtype
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.layers.dense import Params
from dart_jax.models.networks.pure import bind, dtype_of
from dart_jax.models.networks.target import Target, TargetOutput
from dart_jax.models.platform.weights import in_blocks
from eval.lossless.literal_sampling import may_win, scale, scale_rounding

# The token id of an output that had already ended.
ENDED = -1


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first new token at which the text of a prompt differs: the indices of both, and the ids
    of plain decoding's token and the drafting method's, `ENDED` if a text had ended.

    Attributes:
      margin: difference of the two tokens' exact scores: logits if greedy, otherwise logits over
        temperature plus noise.
      rounding: rounding error of a score.
      tie: whether rounding can make either token the sampled one.
    """

    prompt: int
    new_token: int
    plain: int
    dart: int
    margin: float
    rounding: float
    tie: bool

    @property
    def verdict(self) -> str:
        """The result in words."""
        return "tie" if self.tie else "DIVERGES"


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting; 0 nodes stand for trees whose sizes change at random."""

    method: str
    sampling: Sampling
    batch_size: int
    nodes: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One setting compared with plain decoding: its prompts, the tokens that plain decoding gave
    them, verifications, and the first difference of every prompt whose outputs differ."""

    case: Case
    prompts: int
    tokens: int
    steps: int
    divergences: list[Divergence]

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus token included."""
        return (self.tokens - self.prompts) / max(1, self.steps)


def examine(
    prober: Prober,
    sampling: Sampling,
    seed: int,
    *,
    prompt: int,
    row: int,
    text: np.ndarray,
    plain: np.ndarray,
    dart: np.ndarray,
) -> Divergence | None:
    """Returns the first difference of the new tokens of plain decoding, int [m], and of a drafting
    method, int [m'], after a prompt, its index and its `text`, int [n]; None if there is none. The
    noise depends on the `row` in the batch."""
    if np.array_equal(plain, dart):
        return None
    shorter = min(len(plain), len(dart))
    at = int(np.append(plain[:shorter] != dart[:shorter], True).argmax())
    pair = [int(tokens[at]) if at < len(tokens) else ENDED for tokens in (plain, dart)]
    before = np.concatenate([text, plain[:at]])
    probe = prober(before)
    eps = scale_rounding(probe.rounding, sampling)
    scaled = scale(probe.logits, sampling, before)
    noise = np.zeros_like(scaled)
    if sampling.temperature:
        noise = noise_at(seed, row, len(before), len(scaled))
    score, ended = scaled + noise, ENDED in pair
    return Divergence(
        prompt=prompt,
        new_token=at,
        plain=pair[0],
        dart=pair[1],
        margin=float("inf") if ended else float(abs(score[pair[0]] - score[pair[1]])),
        rounding=eps,
        # Rounding cannot decide whether a sequence ends after the same tokens.
        tie=probe.plausible
        and not ended
        and all(may_win(scaled, noise, sampling, token, eps) for token in pair),
    )


def noise_at(seed: int, row: int, position: int, vocab: int) -> np.ndarray:
    """Returns the noise that `sampling.draw` adds at one position, float64 [V]."""
    keys = row_keys(jnp.uint32(seed), jnp.full((1,), row, jnp.int32))
    positions = jnp.full((1, 1), position, jnp.int32)
    return np.asarray(gumbel_noise(keys, positions, vocab)[0, 0], np.float64)


# Differences up to this count as rounding, in units of the dtype's resolution at the largest logit:
# some ten times what the demo shows. Larger ones mean that the computations are not equivalent.
# Sums are float32 for both dtypes, so bfloat16 loses fewer of its units.
PLAUSIBLE = {"float32": 64.0, "bfloat16": 4.0}


class Probe(NamedTuple):
    """The logits after a text, float32 [V], computed in float32 in one forward; the largest
    difference from them of logits in the model's dtype computed in one forward, with all but the
    last token cached, and as a tree node; and whether the dtype explains that."""

    logits: np.ndarray
    rounding: float
    plausible: bool


class Prober:
    """Computes a model's logits in several equivalent ways."""

    def __init__(self, model: DartModel, nodes: int):
        """`nodes` is the size of the trees to imitate."""
        self._config, self._params = model.target, model.params["target"]
        # With weights in blocks inputs are rounded to 8 bits, and the sums of other kernels would
        # differ by steps of that: the model's own kernels compute them.
        own = in_blocks(self._params)
        kv: CacheDtype = "float16" if dtype_of(self._params) == np.float16 else "auto"
        self._options = model.execution.target if own else LayerOptions(kv=kv)
        # Products with tiles are computed in float32.
        exact = lambda x: x if isinstance(x, Tiles) else x.astype(jnp.float32)  # noqa: E731
        is_leaf = lambda x: isinstance(x, Tiles)  # noqa: E731
        self._exact = jax.tree.map(exact, self._params, is_leaf=is_leaf)
        self._dtype = dtype_of(self._params)
        self._plausible = PLAUSIBLE.get(self._dtype.name, PLAUSIBLE["bfloat16"])
        self._nodes = nodes
        self._probes: dict[tuple[int, ...], Probe] = {}

    def __call__(self, text: np.ndarray) -> Probe:
        """Returns the logits after `text`, int [n], n >= 1."""
        key = tuple(map(int, text))
        if key not in self._probes:
            self._probes[key] = self._probe(np.array(key, np.int32))
        return self._probes[key]

    def _probe(self, text: np.ndarray) -> Probe:
        padded = np.zeros((1, max(32, 1 << (len(text) - 1).bit_length())), np.int32)
        padded[0, : len(text)] = text
        tokens, length = jnp.asarray(padded), jnp.int32(len(text))
        of = self._config, self._options
        exact = np.asarray(_full_forward(*of, self._exact, tokens, length))
        variants = [_full_forward(*of, self._params, tokens, length)]
        for path, rows in ((1, 1), (min(len(text), 8, self._nodes + 1), self._nodes + 1)):
            forward = partial(_cached_forward, *of, rows, self._params)
            variants.append(forward(tokens, length, jnp.int32(path)))
        rounding = max(float(np.abs(np.asarray(logits) - exact).max()) for logits in variants)
        resolution = float(jnp.finfo(self._dtype).eps) * float(np.abs(exact).max())
        return Probe(exact, rounding, rounding <= self._plausible * resolution)


@partial(jax.jit, static_argnames=("config", "options"))
def _full_forward(
    config: TargetConfig,
    options: LayerOptions,
    params: Params,
    tokens: jax.Array,
    length: jax.Array,
) -> jax.Array:
    """Returns the logits after a text [1, T] of `length` tokens, right-padded: float32 [V]."""
    with jax.default_matmul_precision("highest"):
        target = bind(config, params, options)
        hidden = _forward(target, tokens).hidden
        return target.logits(jnp.take(hidden[0], length[None] - 1, axis=0))[0]


@partial(jax.jit, static_argnames=("config", "options", "rows"))
def _cached_forward(
    config: TargetConfig,
    options: LayerOptions,
    rows: int,
    params: Params,
    tokens: jax.Array,
    length: jax.Array,
    path: jax.Array,
) -> jax.Array:
    """As `_full_forward`, with the last `path` tokens as a path among `rows` new rows."""
    with jax.default_matmul_precision("highest"):
        target = bind(config, params, options)
        cache = _forward(target, tokens).rows
        start = (length - path)[None]
        row = jnp.arange(rows, dtype=jnp.int32)
        level = jnp.where(row < path, row, 0)
        earlier = (row[:, None] >= row[None]) & (row < path)[:, None]
        mask = earlier | jnp.eye(rows, dtype=bool)
        new = jnp.take(tokens, start + level, axis=1)
        out = target(new, (start + level)[None], mask[None], cache, start)
        return target.logits(jnp.take(out.hidden[0], path[None] - 1, axis=0))[0]


def _forward(target: Target, tokens: jax.Array) -> TargetOutput:
    size = tokens.shape[1]
    positions = jnp.arange(size, dtype=jnp.int32)[None]
    return target(tokens, positions, jnp.tril(jnp.ones((1, size, size), bool)))
