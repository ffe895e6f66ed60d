"""Batches of token prompts, decoded by one method with fixed options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dart_jax.decoding.sampling import Sampling
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
    """Decodes batches, each with an engine of its own.

    Attributes:
      model: of the method.
      max_length: maximum length of a prompt and its new tokens together.
      sampling: how the target samples.
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
        requests = [
            Request(
                prompt.astype(np.int32),
                max_new_tokens,
                self.sampling,
                seed=seed,
                choice=row,
                stop_ids=self.model.eos if self.stop is None else self.stop,
                grammar=self.grammar,
            )
            for row, prompt in enumerate(prompts)
        ]
        return Generation(engine.run(requests), engine.seconds)

    def prepare(self, prompts: Sequence[np.ndarray], max_new_tokens: int, seed: int = 0) -> None:
        """Compiles what such a call may run, and measures what trees of each size cost: decodes
        with all sizes until that is known. Without it, calls do both as they go."""
        engine = self.engine(len(prompts))
        shapes, sizes = engine.runner.shapes, engine.tree_sizes
        sizes.tour(shapes.rows_for(-(-len(prompts) // shapes.groups)))
        while sizes.touring:
            self(prompts, max_new_tokens, seed)
