"""Judging trained drafters alike: what they predict, what decoding gains, and what it costs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice
from pathlib import Path

import jax
import numpy as np

from dart_jax.data.stdlib import HELD_OUT, held_out_files, short_prompts
from dart_jax.decoding.decoder import Decoder
from dart_jax.model import DartModel
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.text.tokenizer import Tokenizer
from train.data.packed_dataset import PackedDataset
from train.drafter import DrafterTraining
from train.evaluation.acceptance import AcceptanceLength, Agreement
from train.objective.predictions import Drafting, Frozen

_LONGEST = 128  # tokens of a prompt


class Judge:
    """The same text and the same search for every drafter."""

    def __init__(
        self,
        recipe: DrafterTraining,
        held_out: PackedDataset,
        ngram: str | None,
        new_tokens: int,
        nodes: int | None = None,
    ):
        """Takes what all drafters share.

        Args:
          recipe: of their training: target, held-out rows and the weight of the n-gram model.
          held_out: rows that none was trained on.
          ngram: file of the n-gram model; None searches without one.
          new_tokens: decoded greedily behind every prompt.
          nodes: of the trees; None for the device's.

        Raises:
          UserError: the target or the n-gram model cannot be read.
        """
        self._recipe, self._held_out = recipe, held_out
        self._new_tokens, self._nodes = new_tokens, nodes
        self._model = DartModel.from_pretrained(
            recipe.target, ngram=ngram, dtype=recipe.target_dtype
        )
        # One program for all drafters of a shape.
        self._agreements: dict[Hashable, Agreement] = {}

    def load(self, drafter: Path) -> DartModel:
        """The target, which is in memory once, with one of the drafters."""
        return self._model.with_drafter(drafter)

    def agreement(self, model: DartModel) -> dict[str, float]:
        """See `Agreement`."""
        assert isinstance(model.drafter, DrafterConfig)
        ids = model.params["draft_ids"]
        shape = (model.drafter, np.asarray(ids).tobytes())
        if shape not in self._agreements:
            positions = model.drafter.num_positions
            drafting = Drafting(model.target, model.drafter, positions, self._recipe.chunk)
            frozen = Frozen(model.params["target"], ids)
            rows = self._recipe.acceptance.eval_rows
            self._agreements[shape] = Agreement(drafting, frozen, self._held_out, rows)
        return self._agreements[shape](model.params["drafter"])

    def tau(
        self, model: DartModel, prompts: Sequence[np.ndarray], weight: float | None = None
    ) -> float:
        """Tokens per verification, bonus included; `weight` as of `Variant`."""
        return self._length(model, prompts).tau(model.params["drafter"], self._weight(weight))

    def decoder(self, model: DartModel, prompts: Sequence[np.ndarray]) -> Decoder:
        """What the first of these figures is decoded with."""
        return self._length(model, prompts).decoder(model.params["drafter"], self._weight(None))

    def _length(self, model: DartModel, prompts: Sequence[np.ndarray]) -> AcceptanceLength:
        weight = self._weight(None)
        return AcceptanceLength(model, prompts, self._new_tokens, weight, self._nodes)

    def _weight(self, weight: float | None) -> float:
        return self._recipe.acceptance.ngram_weight if weight is None else weight


def benchmark_prompts(tokenizer: Tokenizer, per_group: int) -> list[np.ndarray]:
    """The demo benchmark's, int32 [n] each, of modules that no training and no count has seen."""
    return [
        tokens.astype(np.int32)
        for group in HELD_OUT
        for _, tokens in islice(
            short_prompts(held_out_files(group), tokenizer.encode, _LONGEST), per_group
        )
    ]


def parameters(model: DartModel) -> int:
    """How many the drafter has."""
    return sum(leaf.size for leaf in jax.tree.leaves(model.params["drafter"]))


def step_seconds(
    decoders: Sequence[Decoder], prompts: Sequence[np.ndarray], new_tokens: int, repeats: int
) -> list[list[float]]:
    """Of a decode step, prefill left out: for every decoder one figure a repeat.

    Prompts are decoded one at a time, by the decoders in turn, after a pass that compiles.
    """
    figures: list[list[float]] = [[] for _ in decoders]
    for repeat in range(-1, repeats):
        spent = np.zeros(len(decoders))
        steps = np.zeros(len(decoders))
        for prompt in prompts:
            # The order changes, so that none always comes behind the same other.
            for number in np.roll(np.arange(len(decoders)), repeat).tolist():
                made = decoders[number]([prompt], new_tokens)
                spent[number] += sum(made.seconds.values()) - made.seconds["prefill"]
                steps[number] += int(made.steps.sum())
        if repeat >= 0:
            for figure, seconds in zip(figures, spent / steps, strict=True):
                figure.append(float(seconds))
    return figures
