"""Evaluates trained drafters identically: agreement, acceptance length, and time per step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dart_jax.data.contents import read_contents
from dart_jax.data.stdlib import HELD_OUT, held_out_files, short_prompts
from dart_jax.engine.decoder import Decoder
from dart_jax.model import DartModel
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.text.tokenizer import Tokenizer
from train.data.answers import Conversation
from train.data.packed_dataset import PackedDataset
from train.evaluation.acceptance import AcceptanceConfig, AcceptanceLength, Agreement
from train.objective.predictions import Frozen, PackedForward

_LONGEST = 128  # maximum tokens of a prompt


@dataclasses.dataclass(frozen=True, eq=False)
class DrafterEvaluator:
    """Evaluates every drafter on the same text with the same search.

    Attributes:
      model: the target, and the n-gram model of the search, if there is one.
      held_out: rows that no drafter was trained on.
      acceptance: how many of these rows are compared.
      prompts: token ids to decode greedily, int32 [n] each.
      new_tokens: tokens to decode after each prompt.
      nodes: nodes of the draft trees; None for the default of the device.
      chunk: see `train.drafter.DrafterTraining`.
    """

    model: DartModel
    held_out: PackedDataset
    acceptance: AcceptanceConfig
    prompts: Sequence[np.ndarray]
    new_tokens: int
    nodes: int | None = None
    chunk: int | None = None

    @functools.lru_cache(maxsize=1)  # noqa: B019  one drafter is compared with several searches
    def figures(self, drafter: Path) -> dict[str, float]:
        """Returns all figures of a drafter but `tau`."""
        model = self.model.with_drafter(drafter)
        ids = np.asarray(model.params["draft_ids"])
        counts = self.held_out.token_counts()
        assert isinstance(model.drafter, DrafterConfig)
        forward = PackedForward(
            model.target, model.drafter, model.drafter.num_positions, self.chunk
        )
        frozen = Frozen(model.params["target"], model.params["draft_ids"])
        agreement = Agreement(forward, frozen, self.held_out, self.acceptance.eval_rows)
        return {
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(model.params["drafter"])),
            "coverage": float(counts[ids].sum() / counts.sum()),
            **agreement(model.params["drafter"]),
            "tau_without_ngram": self.tau(drafter, 0.0),
        }

    def tau(self, drafter: Path, weight: float) -> float:
        """Returns the acceptance length of a drafter at a weight of the n-gram model."""
        model = self.model.with_drafter(drafter)
        return self._length(model, weight).tau(model.params["drafter"], weight)

    def decoder(self, drafter: Path) -> Decoder:
        """Returns a decoder with a drafter and the recipe's weight of the n-gram model."""
        model, weight = self.model.with_drafter(drafter), self.acceptance.ngram_weight
        return self._length(model, weight).decoder(model.params["drafter"], weight)

    def _length(self, model: DartModel, weight: float) -> AcceptanceLength:
        return AcceptanceLength(model, self.prompts, self.new_tokens, weight, self.nodes)


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
    files: Sequence[Path], tokenizer: Tokenizer, per_file: int, template_kwargs: Mapping[str, Any]
) -> list[np.ndarray]:
    """Returns the first questions of chats and instructions as prompts, int32 [n] each.

    Args:
      files: records in the forms of `dart_jax.data.contents`, each with a question.
      tokenizer: the target's.
      per_file: maximum number of prompts from each file.
      template_kwargs: for the chat template.

    Raises:
      UserError: a record cannot be read or has no question, or the target has no chat template.
    """
    prompts = []
    for path in files:
        for content, record in islice(read_contents(path), per_file):
            conversation = Conversation.of(content, record.where, tokenizer)
            prompts.append(np.array(conversation.prompt(tokenizer, template_kwargs), np.int32))
    return prompts


def step_seconds(
    decoders: Sequence[Decoder], prompts: Sequence[np.ndarray], new_tokens: int, repeats: int
) -> list[list[float]]:
    """Returns seconds per decode step, without prefill: for each decoder, one figure per repeat.

    Prompts are decoded one at a time, by the decoders in turn, after a pass that compiles.
    """
    figures: list[list[float]] = [[] for _ in decoders]
    for repeat in range(-1, repeats):
        spent, steps = np.zeros(len(decoders)), np.zeros(len(decoders))
        for prompt in prompts:
            # Rotate the order, so that no decoder always follows the same one.
            for number in np.roll(np.arange(len(decoders)), repeat).tolist():
                result = decoders[number]([prompt], new_tokens)
                spent[number] += sum(result.seconds.values()) - result.seconds["prefill"]
                steps[number] += int(result.steps.sum())
        if repeat >= 0:
            for figure, seconds in zip(figures, spent / steps, strict=True):
                figure.append(float(seconds))
    return figures
