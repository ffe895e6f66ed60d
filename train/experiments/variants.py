"""The experiments, the paper's and others: the variants to compare, and the paper's figures.

The paper's figures are for Qwen3-4B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Name = Literal[
    "gamma",
    "weights",
    "loss",
    "shift",
    "layers",
    "horizon",
    "pairs",
    "ngram",
    "vocabulary",
    "domain",
]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One of the compared drafters.

    Attributes:
      options: training options that differ from the recipe, by name.
      ngram_weight: weight of the n-gram model in its evaluation; None for the recipe's.
      data: its training data: the recipe's, or one of `domain`'s two sets.
      start: an earlier variant, whose drafter of the same seed is trained further; None starts
        from what the recipe says.
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ngram_weight: float | None = None
    data: Literal["recipe", "all", "without"] = "recipe"
    start: str | None = None


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A comparison.

    Attributes:
      title: title of its section.
      axis: what the variants' names stand for.
      variants: the variants, by name.
      base: the variant that the others are compared with.
      figures: figures to report and draw.
      compared: the figures whose differences are reported.
      paper: the paper's figures, by figure and variant.
      alphas: whether to report and draw the agreement at every position.
      timed: whether to measure the time of a decode step.
      notes: notes for the reader.
    """

    title: str
    axis: str
    variants: Mapping[str, Variant]
    base: str
    figures: tuple[str, ...]
    compared: tuple[str, ...]
    paper: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    alphas: bool = False
    timed: bool = False
    notes: tuple[str, ...] = ()


_TIMED = (
    "Time is the median over repeats of the ratio to the base's time; prompts are decoded one at a "
    "time, by the variants in turn. tau per that time does not include the spread of the time."
)
TITLES: dict[Name, str] = {
    "gamma": "Gamma",
    "weights": "Weights of the positions",
    "loss": "Loss",
    "shift": "Shifted or not",
    "layers": "Layers",
    "horizon": "Horizon",
    "pairs": "Pair scores",
    "ngram": "N-gram weight",
    "vocabulary": "Draft vocabulary",
    "domain": "Domains",
}


def gamma(values: tuple[float, ...]) -> Experiment:
    """Compares decay rates of the position weights."""
    return Experiment(
        TITLES["gamma"],
        "gamma",
        {f"{value:g}": Variant({"gamma": value}) for value in values},
        base="1",
        figures=("tau", "tau_without_ngram"),
        compared=("tau",),
        paper={"tau": {"0.5": 3.59, "0.6": 3.63, "0.7": 3.57, "0.8": 3.54, "0.9": 3.52, "1": 3.48}},
    )


def weights() -> Experiment:
    """Compares the annealed weights of the positions with those by confidence."""
    return Experiment(
        TITLES["weights"],
        "weights",
        {name: Variant({"weights": name}) for name in ("annealed", "confidence")},
        base="annealed",
        figures=("tau", "tau_without_ngram"),
        compared=("tau", "tau_without_ngram"),
        alphas=True,
    )


def loss() -> Experiment:
    """Compares losses."""
    return Experiment(
        TITLES["loss"],
        "loss",
        {name: Variant({"loss": name}) for name in ("kl", "cross-entropy", "cross-entropy-tv")},
        base="kl",
        figures=("tau", "tau_without_ngram"),
        compared=("tau", "tau_without_ngram"),
        alphas=True,
    )


def shift() -> Experiment:
    """Compares drafters whose anchor does and does not predict."""
    return Experiment(
        TITLES["shift"],
        "drafter",
        {name: Variant({"shifted": name == "shifted"}) for name in ("shifted", "unshifted")},
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
    )


def layers(numbers: tuple[int, ...]) -> Experiment:
    """Compares drafters with different numbers of layers."""
    return Experiment(
        TITLES["layers"],
        "layers",
        {str(number): Variant({"layers": number}) for number in numbers},
        base=str(numbers[0]),
        figures=("tau", "parameters", "step_time", "tau_per_time"),
        compared=("tau",),
        alphas=True,
        timed=True,
        notes=(_TIMED,),
    )


def horizon(numbers: tuple[int, ...]) -> Experiment:
    """Compares numbers of drafted positions, d."""
    return Experiment(
        TITLES["horizon"],
        "d",
        {str(number): Variant({"positions": number}) for number in numbers},
        base=str(8 if 8 in numbers else numbers[0]),
        figures=("tau", "step_time", "tau_per_time"),
        compared=("tau",),
        alphas=True,
        timed=True,
        notes=(
            _TIMED,
            "Positions beyond a tree's number of nodes (`--tree-nodes`) cannot be in it and are "
            "not computed.",
        ),
    )


def pairs(ranks: tuple[int, ...]) -> Experiment:
    """Compares ranks of the pair scores, trained with the drafter or after it."""
    variants = {"0": Variant()}
    for rank in ranks:
        variants[str(rank)] = Variant({"pair_rank": rank})
        alone = {"pair_rank": rank, "train": "pairs"}
        variants[f"{rank}, frozen"] = Variant(alone, start="0")
    return Experiment(
        TITLES["pairs"],
        "pair rank",
        variants,
        base="0",
        figures=("held_out_loss", "tau", "tau_without_ngram", "step_time", "tau_per_time"),
        compared=("held_out_loss", "tau", "tau_without_ngram"),
        alphas=True,
        timed=True,
        notes=(
            "Frozen: the pair scores are added to the drafter of rank 0, which stays as it is, and "
            "are trained for as many steps again. With pair scores, alpha_t and the held-out loss "
            "are those of predictions that are given the text's token before them, as where the "
            "draft has been right so far.",
            _TIMED,
        ),
    )


def ngram(weights: tuple[float, ...]) -> Experiment:
    """Compares weights of the n-gram model in the tree search, with the same drafters."""
    return Experiment(
        TITLES["ngram"],
        "weight",
        {f"{weight:g}": Variant(ngram_weight=weight) for weight in dict.fromkeys((0.0, *weights))},
        base="0",
        figures=("tau",),
        compared=("tau",),
        paper={"tau": {"0": 3.13, "0.5": 3.63}},
        notes=("The paper's figures are for HumanEval.",),
    )


def vocabulary(sizes: tuple[int, ...]) -> Experiment:
    """Compares sizes of the draft vocabulary: of the same drafters, cut after training."""
    return Experiment(
        TITLES["vocabulary"],
        "tokens",
        {str(size): Variant() for size in sizes},
        base=str(max(sizes)),
        figures=("coverage", "tau", "tau_without_ngram", "parameters"),
        compared=("tau",),
        notes=(
            "The drafters are trained with the largest vocabulary and then keep only the most "
            "frequent tokens of their data. One that is trained with the smaller vocabulary also "
            "learns to share its probability among fewer tokens, so it should lose less. Coverage "
            "is the share of the held-out answers' tokens that can be drafted.",
        ),
    )


def domain(family: str) -> Experiment:
    """Compares drafters trained on all domains with drafters that never saw one."""
    return Experiment(
        TITLES["domain"],
        "trained on",
        {"all": Variant(data="all"), f"all but {family}": Variant(data="without")},
        base=f"all but {family}",
        figures=("tau_inside", "tau_outside"),
        compared=("tau_inside", "tau_outside"),
        notes=(
            f"Prompts inside are from {family}, prompts outside from the other modules; neither "
            "drafter was trained on answers to any of them. The search has no n-gram model, since "
            "that has counted all domains. The target was trained on both. The drafter without "
            f"{family} has less data and trains for the same number of steps.",
        ),
    )
