"""The paper's experiments: what differs between drafters, and what the paper measured.

The paper's figures are of Qwen3-4B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Name = Literal["gamma", "shift", "layers", "horizon", "ngram", "domain"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One of the drafters that are compared.

    Attributes:
      options: in which its training differs from the recipe, by their names.
      ngram_weight: of the search that it is judged with; None for the recipe's.
      data: of its training: the recipe's, or of `domain`'s two sets.
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ngram_weight: float | None = None
    data: Literal["recipe", "all", "without"] = "recipe"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A comparison.

    Attributes:
      title: of its section.
      axis: what the variants' names are.
      variants: by name.
      base: the variant that the others are compared with.
      figures: that are told and drawn; those of `compared` are compared.
      compared: some of the figures.
      paper: the paper's, by figure and variant.
      alphas: tell and draw the agreement at every position.
      timed: measure the time of a decode step.
      notes: what a reader must know.
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
    "Time is the median over repeats of the ratio to the base's, one prompt at a time, in turn; "
    "its own spread is not in tau per that time."
)
TITLES: dict[Name, str] = {
    "gamma": "Gamma",
    "shift": "Shifted or not",
    "layers": "Layers",
    "horizon": "Horizon",
    "ngram": "N-gram weight",
    "domain": "Domains",
}


def gamma(values: tuple[float, ...]) -> Experiment:
    """How fast the weight of later positions falls."""
    return Experiment(
        TITLES["gamma"],
        "gamma",
        {f"{value:g}": Variant({"gamma": value}) for value in values},
        base="1",
        figures=("tau", "tau_without_ngram"),
        compared=("tau",),
        paper={"tau": {"0.5": 3.59, "0.6": 3.63, "0.7": 3.57, "0.8": 3.54, "0.9": 3.52, "1": 3.48}},
    )


def shift() -> Experiment:
    """Whether the last real row predicts as well."""
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
            "Both predict as many positions; the unshifted one takes a mask row more. After few "
            "steps the figures tell how fast drafters learn, not what they come to; tau counts the "
            "positions behind the first as well, which the table shows one by one.",
        ),
    )


def layers(numbers: tuple[int, ...]) -> Experiment:
    """Drafters of several layers."""
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
    """How many positions are drafted, d."""
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
            "Positions behind the first so many as a tree has nodes cannot stand in it and are not "
            "computed (`--tree-nodes`).",
        ),
    )


def ngram(weights: tuple[float, ...]) -> Experiment:
    """The same drafters, searched with and without the n-gram model."""
    return Experiment(
        TITLES["ngram"],
        "weight",
        {f"{weight:g}": Variant(ngram_weight=weight) for weight in dict.fromkeys((0.0, *weights))},
        base="0",
        figures=("tau",),
        compared=("tau",),
        paper={"tau": {"0": 3.13, "0.5": 3.63}},
        notes=("The paper's figures are of HumanEval.",),
    )


def domain(family: str) -> Experiment:
    """Drafters of all domains beside such as never saw one."""
    return Experiment(
        TITLES["domain"],
        "trained on",
        {"all": Variant(data="all"), f"all but {family}": Variant(data="without")},
        base=f"all but {family}",
        figures=("tau_inside", "tau_outside"),
        compared=("tau_inside", "tau_outside"),
        notes=(
            f"Inside are prompts of {family}, outside those of the other modules; neither drafter "
            "was trained on answers to any of them. The search has no n-gram model, which knows "
            f"all domains. The target was trained on both. The drafter without {family} has fewer "
            "data and takes as many steps.",
        ),
    )
