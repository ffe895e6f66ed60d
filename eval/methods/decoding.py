"""Batches of token prompts, decoded by one method with fixed options; acceptance of a given length,
to measure speed without a good drafter or real weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.options import Sampling
from dart_jax.decoding.step import Acceptance
from dart_jax.decoding.tree import DraftTree
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.engine import Engine
from dart_jax.engine.request import Output, Request
from dart_jax.model import DartModel


class Generation(NamedTuple):
    """A batch that was decoded: all that each prompt was given, and the engine's `seconds`."""

    outputs: Sequence[Output]
    seconds: Mapping[str, float]

    @property
    def tokens(self) -> list[np.ndarray]:
        """New tokens of each prompt."""
        return [each.tokens for each in self.outputs]

    @property
    def steps(self) -> np.ndarray:
        """Verifications of each prompt's text, int [B]."""
        return np.array([each.steps for each in self.outputs], int)

    @property
    def nodes(self) -> int:
        """Nodes of all trees that were verified."""
        return sum(each.nodes for each in self.outputs)


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Decodes batches with a method's model, each with an engine of its own.

    Attributes:
      max_length: maximum length of a prompt and its new tokens together.
      stop: ids that end a text; None for the model's own.
      tree_nodes: of the draft tree; None for as many as pay.
      grammar: what texts must follow, as `Grammars.check` returns it; None for anything.
      options: others of `DartModel.engine`.
    """

    model: DartModel
    max_length: int
    sampling: Sampling = Sampling()
    stop: tuple[int, ...] | None = None
    tree_nodes: int | None = None
    grammar: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def engine(self, batch: int) -> Engine:
        """Returns an engine for a number of prompts; raises UserError if options do not fit."""
        sizes = {"max_length": self.max_length, "tree_nodes": self.tree_nodes}
        return self.model.engine(EngineConfig(slots=batch, **sizes, offline=True), **self.options)

    def __call__(
        self, prompts: Sequence[np.ndarray], max_new_tokens: int, seed: int = 0
    ) -> Generation:
        """Continues token prompts, each int [n]."""
        engine = self.engine(len(prompts))
        requests = Request.several(
            prompts,
            max_new_tokens,
            self.sampling,
            seed=seed,
            stop_ids=self.model.eos if self.stop is None else self.stop,
            grammar=self.grammar,
        )
        return Generation(engine.run(requests), engine.seconds)

    def prepare(self, prompts: Sequence[np.ndarray], max_new_tokens: int, seed: int = 0) -> None:
        """Compiles what such a call may run, and measures what trees of each size cost: decodes
        with all sizes until that is known. Without it, calls do both as they go."""
        engine = self.engine(len(prompts))
        shapes, sizes = engine.runner.shapes, engine.tree_sizes
        mode = Request(prompts[0].astype(np.int32), 1, self.sampling).mode
        sizes.tour(shapes.rows_for(-(-len(prompts) // shapes.groups)), mode)
        while sizes.touring:
            self(prompts, max_new_tokens, seed)


@dataclasses.dataclass(frozen=True)
class ImposedTau:
    """Accepts `tau` tokens per verification on average, bonus included, at least 1, rounded to
    three decimals, whether or not the target agrees; the work is the same as if it did. Where fewer
    nodes are drafted, as in a text's first step, so many tokens are emitted and one more.

    After every verification the number of remaining tokens is a multiple of tau, rounded down. Only
    the first one of a sequence may emit more or fewer, pseudo-randomly, so that the average is tau.
    """

    tau: float

    def __call__(
        self,
        tree: DraftTree,
        drawn: jax.Array,
        max_depth: int,
        remaining: jax.Array,
        end: jax.Array,
    ) -> Acceptance:
        """Accepts the first nodes of a tree of which the target drew `drawn`, int32 [B, N + 1];
        `remaining` tokens, int32 [B], are to be emitted, and `end`, int32 [B], is the same in all
        steps of a sequence and seeds its pseudo-random choice."""
        b, nodes = tree.tokens.shape
        chex.assert_shape([remaining, end], (b,))
        step = round(1000 * self.tau)
        steps = -(-1000 * remaining // step)
        multiple = steps * step // 1000 == remaining
        more = (1000 * remaining - (steps - 1) * step).astype(jnp.float32) / step
        hashed = (end.astype(jnp.uint32) * jnp.uint32(2654435761)) >> jnp.uint32(16)
        chance = hashed.astype(jnp.float32) / 65536
        steps = jnp.maximum(jnp.where(multiple | (chance < more), steps, steps - 1), 1)
        count = jnp.clip(remaining - (steps - 1) * step // 1000, 1, max_depth + 1)
        count = jnp.minimum(count, 1 + jnp.sum(tree.real[:, 1:], axis=1, dtype=jnp.int32))
        path = jnp.minimum(jnp.arange(max_depth + 1, dtype=jnp.int32), nodes - 1)[None]
        path = jnp.where(path < count[:, None], path, 0)
        return Acceptance(path, jnp.take_along_axis(drawn, path, axis=1), count)
