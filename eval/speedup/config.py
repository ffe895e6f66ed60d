"""What `eval.speedup` is asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dart_jax.decoding.decoder import Loop
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.model import DEMO as DEMO_MODEL
from dart_jax.model import DartModel
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights.checkpoint import weights_dtype
from dart_jax.weights.user_cache import enable_compilation_cache
from eval.benchmarks.registry import parse_names
from eval.latency.case import Model
from eval.latency.shapes import target_of
from eval.methods.registry import PLAIN, MethodChoice

DEMO = "demo"

# Prompts that trees are chosen on, where a batch has no more.
_WARM_UP = 4


@dataclasses.dataclass(frozen=True)
class SpeedupConfig(MethodChoice):
    """What to measure, and on what."""

    bench: str = DEMO
    """Between commas: alpaca, code_alpaca, humaneval, livecodebench, math500, mbpp, mt_bench (the
    paper's), gsm8k, spec_bench, files of questions, or all of the named ones that are found; demo
    asks for library functions."""
    data_dir: Path | None = None
    """Where the benchmarks' files lie; by default they come from the Hugging Face hub."""
    thinking: bool = False
    """Let the chat template's model think."""
    temperature: tuple[float, ...] = (0.0,)
    """0 takes the most likely token. Each is measured in turn."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this much probability."""
    batch_size: tuple[int, ...] = (1,)
    """Prompts decoded together, of one benchmark. Each is measured in turn."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt."""
    max_length: int | None = None
    """Cache rows: prompt and new tokens together; by default what each benchmark's longest prompt
    needs."""
    prompts: int = 8
    """Questions of each benchmark, or functions of each of the demo's four groups."""
    tree_nodes: Literal["auto"] | int = "auto"
    """Nodes of the draft trees; auto takes the fastest on warm-up prompts, for each method."""
    level_decay: Literal["auto"] | float = "auto"
    """Exponent of the search's level weight, 0.7 in the paper; auto takes the faster of 0.7 and
    2.5 on warm-up prompts, with --acceptance 0.7."""
    acceptance: float | None = None
    """Tokens that every verification of a draft emits, whatever the target thinks of it; nothing
    ends a text early. Speed apart from the drafter's quality; needs --tree-nodes."""
    shape: str | None = None
    """In place of --target, random weights in a shape that eval.latency knows, such as qwen3-8b,
    with the demo's tokenizer and without an n-gram model. Needs --acceptance."""
    loop: Loop = "fused"
    """fused: the generation is one jitted program that calls the search; host: step and search in
    turn, as when streaming."""
    repeats: int = 3
    """Measured passes over all prompts."""
    seed: int = 0
    """Of the target's draws; all methods get the same."""
    sweep: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also measure DART with every tree size, with and without n-gram model, and both loops."""
    json: Path | None = None
    """Write everything measured to this file."""
    markdown: Path | None = None
    """Write the tables to this file."""
    plot: Path | None = None
    """Draw the figure into this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_new_tokens", "prompts", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        for name in ("temperature", "batch_size"):
            if not getattr(self, name):
                raise UserError(f"--{name.replace('_', '-')} needs at least one value")
        if min(self.batch_size) < 1:
            raise UserError("--batch-size must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        if self.tree_nodes != "auto" and self.tree_nodes < 1:
            raise UserError("--tree-nodes must be at least 1")
        if self.level_decay != "auto" and not 0 <= self.level_decay < float("inf"):
            raise UserError("--level-decay must be 0 or a positive number")
        if self.acceptance is not None and not 1 <= self.acceptance < float("inf"):
            raise UserError("--acceptance must be at least 1: a verification emits a token")
        self._check_combinations()
        _ = self.samplings
        if self.bench != DEMO:
            parse_names(self.bench)

    def _check_combinations(self) -> None:
        if self.acceptance is not None and self.tree_nodes == "auto":
            raise UserError(
                "--acceptance needs --tree-nodes: at one tau for all, the cheapest tree would be "
                "chosen"
            )
        if self.acceptance is not None and self.sweep:
            raise UserError("--sweep compares trees, which one --acceptance for all makes alike")
        if self.shape is None:
            return
        target_of(self.shape)
        if self.acceptance is None:
            raise UserError("--shape has random weights, which accept nothing; pass --acceptance")
        if any(part is not None for part in (self.target, self.drafter, self.ngram)):
            raise UserError("--shape brings its own target and drafter, and no n-gram model")

    def part(self, given: str | None, name: str) -> str | None:
        """Of the model's parts, the path given; of random weights the demo has none."""
        return given if self.shape is not None else super().part(given, name)

    def load(self) -> DartModel:
        """Reads the model, or makes the random weights of a shape.

        Raises:
          UserError: as `DartModel.from_pretrained`, or the tokenizer has too many tokens.
        """
        if self.shape is None:
            return super().load()
        tokenizer, size = Tokenizer.load(DEMO_MODEL / "target"), target_of(self.shape).vocab_size
        if tokenizer.vocab_size > size:
            raise UserError(
                f"--shape {self.shape} has but {size} tokens, the demo's tokenizer "
                f"{tokenizer.vocab_size}; pass a larger shape"
            )
        enable_compilation_cache()
        made = Model.random(self.shape.lower(), weights_dtype(self.dtype))
        return DartModel(made.target, made.drafter, made.params, None, tokenizer, ())

    def models(self, base: DartModel) -> tuple[dict[str, DartModel], list[str]]:
        """As `MethodChoice.models`; of all methods, those whose trees are deep enough for the tau
        that is imposed.

        Raises:
          UserError: as there, or the trees of a method asked for by name are too shallow, or all.
        """
        models, left_out = super().models(base)
        if self.acceptance is None or self.tree_nodes == "auto":
            return models, left_out
        for name in [name for name in models if name != PLAIN]:
            model = models[name]
            depth = DecodeConfig(model.target, model.drafter, self.tree_nodes).max_depth
            if self.acceptance <= depth + 1:
                continue
            told = (
                f"{name}: its trees of {self.tree_nodes} nodes and depth {depth} emit at most "
                f"{depth + 1} tokens a verification; lower --acceptance {self.acceptance:g}"
            )
            if self.methods[name]:
                raise UserError(told)
            left_out.append(told)
            del models[name]
        if len(models) == 1:
            raise UserError(f"no method is left: {left_out[-1]}")
        return models, left_out

    @property
    def samplings(self) -> list[Sampling]:
        """How the target draws, in turn; raises UserError if a value is out of range."""
        return [Sampling(each, self.top_k, self.top_p) for each in self.temperature]

    @staticmethod
    def warm_up(batch_size: int) -> int:
        """How many prompts trees are chosen on: a full batch, and not too few."""
        return max(_WARM_UP, batch_size)

    @property
    def spare(self) -> int:
        """Warm-up prompts that the largest batch needs."""
        return self.warm_up(max(self.batch_size))
