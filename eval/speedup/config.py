"""Options of `eval.speedup`."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.named.models import NamedModel
from dart_jax.programs.command_line import check_least, check_some
from eval.methods.choice import MethodChoice

if TYPE_CHECKING:
    from dart_jax.decoding.options import Sampling
    from dart_jax.model import DartModel
    from dart_jax.text.tokenizer import Tokenizer

# What --paper stands for: option -> its value, and its default.
_PAPER: dict[str, tuple[Any, Any]] = {
    "tree_nodes": (60, None),
    "level_decay": (0.7, None),
    "no_coupling": (True, False),
}


@dataclasses.dataclass(frozen=True)
class SpeedupConfig(MethodChoice):
    """The methods, their settings, and the prompts."""

    bench: str | None = None
    """Comma-separated: alpaca, code_alpaca, humaneval, livecodebench, math500, mbpp, mt_bench (the
    paper's), gsm8k, spec_bench, or paths of question files; all uses every one of these that is
    found; summarization, rag, second_turns, editing, extraction, tool_calls: answers that repeat
    much of their prompts, and copy uses all of these; questions are 24 of our own; demo completes
    functions of Python library modules. By default questions for a target with a chat template,
    otherwise demo."""
    data_dir: Path | None = None
    """Directory of the benchmarks' files; by default they come from the Hugging Face hub."""
    thinking: bool = False
    """Enable thinking in the chat template."""
    temperature: tuple[float, ...] = (0.0,)
    """Sampling temperatures, each measured in turn; 0 is greedy."""
    top_k: int = 0
    """Sample from the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens with at least this probability."""
    batch_size: tuple[int, ...] = (1,)
    """Prompts of one benchmark decoded together; each size is measured in turn."""
    max_new_tokens: int = 128
    """Tokens to generate for each prompt."""
    prompts: int = 8
    """Questions per benchmark, or functions per group of the demo's four groups."""
    context: tuple[int, ...] = ()
    """Lengthen the prompts to this many tokens, by a passage of Python's documents before the
    question; each length is measured in turn. By default they are left as they are."""
    tree_nodes: int | None = None
    """Nodes of the draft trees; by default they change as they pay, down to plain decoding where
    none do."""
    level_decay: float | None = None
    """Exponent of the tree search's level weight, 0.7 in the paper; by default that of the
    trees."""
    paper: bool = False
    """The paper's setting: trees of 60 nodes, level decay 0.7, no coupling."""
    json_schema: Path | None = None
    """A file with a JSON schema that all texts must follow, instead of that of extraction."""
    acceptance: float | None = None
    """Impose this tau: every verification emits this many tokens on average, regardless of what the
    target predicts, and stop tokens are ignored. Measures speed independently of the drafter's
    quality; needs --tree-nodes."""
    shape: str | None = None
    """Instead of --model, random weights in a shape of latency, such as qwen3-8b, with the
    demo's tokenizer and no n-gram model. Needs --acceptance."""
    repeats: int = 3
    """Measured passes over all prompts, after one that compiles."""
    plot: Path | None = None
    """Draw the figure into this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.paper:
            for name, (value, default) in _PAPER.items():
                if getattr(self, name) not in (value, default):
                    raise UserError("--paper chooses the trees; do not choose others as well")
                object.__setattr__(self, name, value)
        check_least(self, max_new_tokens=1, prompts=1, repeats=1)
        check_least(self, batch_size=1, tree_nodes=1, context=1, level_decay=0, acceptance=1)
        check_some(self, "temperature", "batch_size")
        if self.acceptance is not None:
            if self.tree_nodes is None:
                raise UserError(
                    "--acceptance needs --tree-nodes: if all trees have the same tau, the cheapest "
                    "always pays"
                )
            if self.json_schema is not None:
                raise UserError("--acceptance writes texts that follow no --json-schema")
        if self.shape is not None:
            self._check_shape(self.shape)
        _ = self.samplings
        from eval.benchmarks.registry import check_bench

        check_bench(self.bench)

    def _check_shape(self, shape: str) -> None:
        from eval.latency.shapes import target_of

        target_of(shape)
        if self.acceptance is None:
            raise UserError("--shape has random weights, which accept no drafts; pass --acceptance")
        parts = self.target, self.drafter, self.drafter_window, self.ngram
        if self.model != "auto" or any(part is not None for part in parts):
            raise UserError("--shape brings its own target and drafter, and no n-gram model")

    @property
    def named(self) -> NamedModel | None:
        """The model that has a name, or None with another target or --shape."""
        return super().named if self.shape is None else None

    @functools.cached_property
    def structured_outputs(self) -> StructuredOutputs | None:
        """The structure that the texts must follow; raises UserError if the schema's file cannot be
        read."""
        if self.json_schema is None:
            return None
        try:
            return StructuredOutputs(json=self.json_schema.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--json-schema {self.json_schema} cannot be read: {error}") from None

    def tokenizer(self) -> Tokenizer:
        """Loads the target's tokenizer, or the demo's for `shape`."""
        from dart_jax.model import DEMO
        from dart_jax.text.tokenizer import Tokenizer
        from dart_jax.weights import hub

        path = DEMO / "target" if self.shape else self.target_path
        return Tokenizer.load(hub.resolve(path, revision=self.revision, patterns=hub.TARGET))

    def load(self) -> DartModel:
        """Loads the model, or creates the random weights of `shape`; raises UserError as
        `DartModel.from_pretrained`, or if the demo's vocabulary is larger than the shape's."""
        if self.shape is None:
            return super().load()
        from eval.latency.shapes import model_of, target_of

        tokenizer, size = self.tokenizer(), target_of(self.shape).vocab_size
        if tokenizer.vocab_size > size:
            raise UserError(
                f"--shape {self.shape} has only {size} tokens, the demo's tokenizer "
                f"{tokenizer.vocab_size}; pass a larger shape"
            )
        return model_of(self.shape, self)

    def obstacle(self, model: DartModel) -> str | None:
        """Returns why trees are too shallow for --acceptance, if they are."""
        from dart_jax.decoding.state import DecodeConfig

        nodes = self.tree_nodes
        if self.acceptance is None:
            return None
        if model.drafter is None and model.text_drafts:
            return "drafts nothing but what texts repeat; --acceptance needs a drafter"
        if model.drafter is None or nodes is None:
            return None
        depth = DecodeConfig(model.target, model.drafter, nodes).max_depth
        if self.acceptance <= depth + 1:
            return None
        return (
            f"has trees of {nodes} nodes and depth {depth}, which emit at most {depth + 1} tokens "
            f"per verification; lower --acceptance {self.acceptance:g}"
        )

    @property
    def samplings(self) -> list[Sampling]:
        """The sampling parameters, one per temperature; raises UserError if one is out of range."""
        from dart_jax.decoding.options import Sampling

        return [Sampling(each, self.top_k, self.top_p) for each in self.temperature]
