"""Evaluates trained drafters identically: agreement, acceptance length, and time per step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice
from pathlib import Path

import jax
import numpy as np

from dart_jax.data.contents import read_contents
from dart_jax.data.stdlib import HELD_OUT, held_out_files, short_prompts
from dart_jax.decoding.decoder import Decoder
from dart_jax.model import DartModel
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.text.tokenizer import Tokenizer
from train.data.answers import Conversation
from train.data.packed_dataset import PackedDataset
from train.evaluation.acceptance import AcceptanceConfig, AcceptanceLength, Agreement
from train.objective.predictions import Frozen, PackedForward

_LONGEST = 128  # maximum tokens of a prompt


class DrafterEvaluator:
    """Evaluates every drafter on the same text with the same search."""

    def __init__(
        self,
        model: DartModel,
        held_out: PackedDataset,
        acceptance: AcceptanceConfig,
        new_tokens: int,
        nodes: int | None = None,
        chunk: int | None = None,
    ):
        """Loads nothing; drafters are loaded one by one.

        Args:
          model: the target, and the n-gram model of the search, if there is one.
          held_out: rows that no drafter was trained on.
          acceptance: how many of these rows are compared, and the weight of the n-gram model.
          new_tokens: tokens decoded greedily for every prompt.
          nodes: nodes of the draft trees; None for the default of the device.
          chunk: see `train.drafter.DrafterTraining`.
        """
        self._model, self._held_out, self._acceptance = model, held_out, acceptance
        self._new_tokens, self._nodes, self._chunk = new_tokens, nodes, chunk
        # One compiled program per drafter shape.
        self._agreements: dict[Hashable, Agreement] = {}

    def load(self, drafter: Path) -> DartModel:
        """Loads a drafter next to the shared target."""
        return self._model.with_drafter(drafter)

    def agreement(self, model: DartModel) -> dict[str, float]:
        """Returns the figures of `Agreement`."""
        assert isinstance(model.drafter, DrafterConfig)
        ids = model.params["draft_ids"]
        shape = (model.drafter, np.asarray(ids).tobytes())
        if shape not in self._agreements:
            positions = model.drafter.num_positions
            forward = PackedForward(model.target, model.drafter, positions, self._chunk)
            frozen = Frozen(model.params["target"], ids)
            rows = self._acceptance.eval_rows
            self._agreements[shape] = Agreement(forward, frozen, self._held_out, rows)
        return self._agreements[shape](model.params["drafter"])

    def coverage(self, model: DartModel) -> float:
        """Returns the share of the held-out supervised tokens in the draft vocabulary."""
        counts = self._held_out.token_counts()
        return float(counts[np.asarray(model.params["draft_ids"])].sum() / counts.sum())

    def tau(
        self, model: DartModel, prompts: Sequence[np.ndarray], weight: float | None = None
    ) -> float:
        """Returns the acceptance length; `weight` as `Variant.ngram_weight`."""
        return self._length(model, prompts).tau(model.params["drafter"], self._weight(weight))

    def decoder(self, model: DartModel, prompts: Sequence[np.ndarray]) -> Decoder:
        """Returns the decoder that `tau` uses by default."""
        return self._length(model, prompts).decoder(model.params["drafter"], self._weight(None))

    def _length(self, model: DartModel, prompts: Sequence[np.ndarray]) -> AcceptanceLength:
        weight = self._weight(None)
        return AcceptanceLength(model, prompts, self._new_tokens, weight, self._nodes)

    def _weight(self, weight: float | None) -> float:
        return self._acceptance.ngram_weight if weight is None else weight


def benchmark_prompts(tokenizer: Tokenizer, per_group: int) -> list[np.ndarray]:
    """Returns the demo benchmark's prompts, int32 [n] each, from modules held out of training."""
    return [
        tokens.astype(np.int32)
        for group in HELD_OUT
        for _, tokens in islice(
            short_prompts(held_out_files(group), tokenizer.encode, _LONGEST), per_group
        )
    ]


def question_prompts(
    files: Sequence[Path], tokenizer: Tokenizer, per_file: int
) -> list[np.ndarray]:
    """Returns the first questions of chats and instructions as prompts, int32 [n] each.

    Args:
      files: records in the forms of `dart_jax.data.contents`, each with a question.
      tokenizer: the target's.
      per_file: maximum number of prompts from each file.

    Raises:
      UserError: a record cannot be read or has no question, or the target has no chat template.
    """
    prompts = []
    for path in files:
        for content, record in islice(read_contents(path), per_file):
            conversation = Conversation.of(content, record.where, tokenizer)
            prompts.append(np.array(conversation.prompt(tokenizer, {}), np.int32))
    return prompts


def parameters(model: DartModel) -> int:
    """Returns the drafter's number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(model.params["drafter"]))


def step_seconds(
    decoders: Sequence[Decoder], prompts: Sequence[np.ndarray], new_tokens: int, repeats: int
) -> list[list[float]]:
    """Returns seconds per decode step, without prefill: for each decoder, one figure per repeat.

    Prompts are decoded one at a time, by the decoders in turn, after a pass that compiles.
    """
    figures: list[list[float]] = [[] for _ in decoders]
    for repeat in range(-1, repeats):
        spent = np.zeros(len(decoders))
        steps = np.zeros(len(decoders))
        for prompt in prompts:
            # Rotate the order, so that no decoder always follows the same one.
            for number in np.roll(np.arange(len(decoders)), repeat).tolist():
                made = decoders[number]([prompt], new_tokens)
                spent[number] += sum(made.seconds.values()) - made.seconds["prefill"]
                steps[number] += int(made.steps.sum())
        if repeat >= 0:
            for figure, seconds in zip(figures, spent / steps, strict=True):
                figure.append(float(seconds))
    return figures
