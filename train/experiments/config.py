"""The options of `train.ablate`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import tyro

from dart_jax.errors import UserError
from dart_jax.model import DEMO
from train.experiments import variants
from train.experiments.variants import Experiment


@dataclasses.dataclass(frozen=True)
class AblateConfig:
    """The experiment and its options."""

    experiment: Annotated[variants.Name, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")]
    """gamma: the weight of later positions; weights: by gamma or by confidence; loss; shift:
    whether the last real row predicts; layers; horizon: positions; pairs: rank of the pair scores,
    trained with the drafter or after it; ngram: its weight in the search; vocabulary: tokens that
    can be drafted; domain: data without one domain."""
    recipe: Path = Path(__file__).parents[1] / "ablate.toml"
    """Recipe of every run, as for `train.drafter --config`."""
    steps: int | None = None
    """Training steps, overriding the recipe's."""
    batch_size: int | None = None
    """Batch size, overriding the recipe's."""
    seeds: int = 3
    """Runs per variant; the seed sets the initial parameters and the order of the data."""
    work: Path = Path("build/ablate")
    """Directory of runs, prepared data and raw figures, for all experiments."""
    out: Path = Path("docs")
    """Directory to write the report to."""
    gamma: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    """Values of the experiment gamma."""
    layers: tuple[int, ...] = (1, 2, 3)
    """Numbers of layers of the experiment layers."""
    horizon: tuple[int, ...] = (4, 6, 8, 12, 16)
    """Numbers of drafted positions of the experiment horizon."""
    pair_rank: tuple[int, ...] = (64, 256)
    """Ranks of the experiment pairs, besides 0."""
    ngram_weight: tuple[float, ...] = (0.25, 0.5, 1.0)
    """Weights of the experiment ngram, besides 0."""
    vocabulary: tuple[int, ...] = (4096, 2048, 1024, 512)
    """Sizes of the draft vocabulary in the experiment vocabulary."""
    drafter: Path | None = None
    """Directory of a trained drafter for the experiment vocabulary, instead of training some."""
    family: str = "asyncio"
    """Module or package of the standard library that the experiment domain leaves out."""
    ngram: str | None = str(DEMO / "ngram.dng")
    """N-gram file for the tree search."""
    questions: tuple[str, ...] = ()
    """Files of chats or instructions whose first questions are decoded, instead of functions of the
    demo benchmark; they must not be among the data."""
    prompts: int = 8
    """Prompts from each of those files, or from each of the demo benchmark's four groups."""
    max_new_tokens: int = 128
    """Tokens decoded per prompt."""
    tree_nodes: int | None = None
    """Nodes of the draft trees; the root not counted; by default few on a CPU and the
    reference's 60 elsewhere."""
    repeats: int = 5
    """Repeats of every time measurement."""

    def __post_init__(self) -> None:
        for name in ("seeds", "prompts", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1")
        if self.tree_nodes is not None and self.tree_nodes < 1:
            raise UserError("--tree-nodes must be at least 1")
        if self.max_new_tokens < 2:
            raise UserError("--max-new-tokens must be at least 2")
        for name in ("gamma", "layers", "horizon", "pair_rank", "ngram_weight", "vocabulary"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise UserError(f"--{name.replace('_', '-')} must be one or more distinct values")
        for name in ("layers", "horizon", "pair_rank", "vocabulary"):
            if min(getattr(self, name)) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be numbers of at least 1")
        if not all(0 < value <= 1 for value in self.gamma):
            raise UserError("--gamma must be above 0 and at most 1")
        if not all(0 <= value < math.inf for value in self.ngram_weight):
            raise UserError("--ngram-weight must be finite numbers of at least 0")
        if self.drafter is not None and self.experiment != "vocabulary":
            raise UserError("--drafter is for the experiment vocabulary; leave it out")
        if self.experiment == "ngram" and self.ngram is None:
            raise UserError("the experiment ngram needs an --ngram model")

    def plan(self) -> Experiment:
        """Returns the experiment."""
        match self.experiment:
            case "gamma":
                return variants.gamma(self.gamma)
            case "weights":
                return variants.weights()
            case "loss":
                return variants.loss()
            case "shift":
                return variants.shift()
            case "layers":
                return variants.layers(self.layers)
            case "horizon":
                return variants.horizon(self.horizon)
            case "pairs":
                return variants.pairs(self.pair_rank)
            case "ngram":
                return variants.ngram(self.ngram_weight)
            case "vocabulary":
                return variants.vocabulary(self.vocabulary)
            case "domain":
                return variants.domain(self.family)
