"""The experiments, the paper's and others, each a comparison of values of one option.

The paper's figures are for Qwen3-4B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Name = Literal["gamma", "loss", "shift", "layers", "horizon", "pairs", "ngram", "vocabulary"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes:
      title: title of its section.
      axis: what the variants' names stand for.
      option: the compared option of `train.drafter`; `vocabulary` is none, but the tokens that a
        trained drafter keeps.
      values: the values to compare unless others are chosen, all of one type.
      base: name of the variant that the others are compared with.
      figures: figures to report.
      compared: the figures whose differences are reported.
      paper: the paper's figures, by figure and variant.
      alphas: whether to report the agreement at every position.
      timed: whether to measure the time of a decode step.
      notes: notes for the reader.
    """

    title: str
    axis: str
    option: str
    values: tuple[Any, ...]
    base: str
    figures: tuple[str, ...] = ("tau", "tau_without_ngram")
    compared: tuple[str, ...] = ("tau",)
    paper: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    alphas: bool = False
    timed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """True if the variants are drafters that are trained differently."""
        return self.option not in ("ngram_weight", "vocabulary")

    @property
    def variants(self) -> dict[str, Any]:
        """The values, by name."""
        return {self.name(value): value for value in self.values}

    def name(self, value: Any) -> str:
        """Returns the name of the variant with a value."""
        if isinstance(value, bool):
            return self.option if value else f"un{self.option}"
        return f"{value:g}" if isinstance(value, float) else str(value)


_TIMED = (
    "Time is the median over repeats of the ratio to the base's time; prompts are decoded one at a "
    "time, by the variants in turn. tau per that time does not include the spread of the time."
)
PLANS: dict[Name, Plan] = {
    "gamma": Plan(
        "Gamma",
        "gamma",
        "gamma",
        (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        base="1",
        paper={"tau": {"0.5": 3.59, "0.6": 3.63, "0.7": 3.57, "0.8": 3.54, "0.9": 3.52, "1": 3.48}},
    ),
    "loss": Plan(
        "Loss",
        "loss",
        "loss",
        ("kl", "cross-entropy"),
        base="kl",
        compared=("tau", "tau_without_ngram"),
        alphas=True,
    ),
    "shift": Plan(
        "Shifted or not",
        "drafter",
        "shifted",
        (True, False),
        base="unshifted",
        figures=("alpha_1", "tau"),
        compared=("alpha_1", "tau"),
        paper={"alpha_1": {"shifted": 0.711, "unshifted": 0.577}},
        alphas=True,
        notes=(
            "Both predict the same number of positions; the unshifted drafter needs one more mask "
            "row. After few steps the figures show how fast drafters learn, not where they end up; "
            "tau also depends on the later positions, which the table lists.",
        ),
    ),
    "layers": Plan(
        "Layers",
        "layers",
        "layers",
        (1, 2, 3),
        base="1",
        figures=("tau", "parameters", "step_time", "tau_per_time"),
        alphas=True,
        timed=True,
        notes=(_TIMED,),
    ),
    "horizon": Plan(
        "Horizon",
        "d",
        "positions",
        (4, 6, 8, 12, 16),
        base="8",
        figures=("tau", "step_time", "tau_per_time"),
        alphas=True,
        timed=True,
        notes=(
            _TIMED,
            "Positions beyond a tree's number of nodes (`--tree-nodes`) cannot be in it and are "
            "not computed.",
        ),
    ),
    "pairs": Plan(
        "Pair scores",
        "pair rank",
        "pair_rank",
        (0, 64, 256),
        base="0",
        figures=("held_out_loss", "tau", "tau_without_ngram", "step_time", "tau_per_time"),
        compared=("held_out_loss", "tau", "tau_without_ngram"),
        alphas=True,
        timed=True,
        notes=(
            "With pair scores, alpha_t and the held-out loss are those of predictions that are "
            "given the text's token before them, as where the draft has been right so far.",
            _TIMED,
        ),
    ),
    "ngram": Plan(
        "N-gram weight",
        "weight",
        "ngram_weight",
        (0.0, 0.25, 0.5, 1.0),
        base="0",
        figures=("tau",),
        paper={"tau": {"0": 3.13, "0.5": 3.63}},
        notes=("The paper's figures are for HumanEval.",),
    ),
    "vocabulary": Plan(
        "Draft vocabulary",
        "tokens",
        "vocabulary",
        (4096, 2048, 1024, 512),
        base="4096",
        figures=("coverage", "tau", "tau_without_ngram", "parameters"),
        notes=(
            "The drafters are trained with the recipe's vocabulary and then keep only the most "
            "frequent tokens of their data. One that is trained with the smaller vocabulary also "
            "learns to share its probability among fewer tokens, so it should lose less. Coverage "
            "is the share of the held-out answers' tokens that can be drafted.",
        ),
    ),
}
