"""Options of `eval.peers`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from dart_jax.errors import UserError
from dart_jax.machine import available_cores
from dart_jax.programs.model_choice import ModelChoice
from eval.benchmarks.registry import parse_names
from eval.peers.registry import ENGINES, PLAIN


@dataclasses.dataclass(frozen=True)
class PeersConfig(ModelChoice):
    """The model, the engines, and how to time them."""

    engine: tuple[str, ...] = tuple(ENGINES)
    """Engines, of plain, dart, transformers, compiled (transformers with torch.compile), lookup and
    assisted (its generate with prompt lookup, or with a small model), llama.cpp, ctranslate2,
    onnxruntime and openvino; plain is always there. Those that lack a package or a part are left
    out."""
    draft_model: str | None = None
    """Directory or hub repository of a small model with the target's vocabulary, for assisted."""
    bench: str | None = None
    """Comma-separated benchmarks or files, as for eval.speedup, of which the first turns are
    answered; by default `questions`, our own, and functions of the demo benchmark for a target
    without a chat template."""
    data_dir: Path | None = None
    """Directory of the benchmarks' files; by default they come from the Hugging Face hub."""
    prompts: int = 2
    """Questions of each benchmark, or functions of each of the demo benchmark's four groups."""
    new_tokens: int = 128
    """Tokens that every engine writes for each prompt, whichever they are; the first one, which
    comes with the prefill, is not timed."""
    repeats: int = 3
    """Measured passes over all prompts."""
    threads: int | None = None
    """Cores of every engine; by default one or all of the machine's, whichever is faster for it."""
    tree_nodes: int | None = None
    """Nodes of DART's draft trees; by default as many as pay, step by step."""
    level_decay: float | None = None
    """Exponent of the level weight of DART's tree search; by default that of the device."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("prompts", "repeats", "threads", "tree_nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if self.new_tokens < 2:
            raise UserError("--new-tokens must be at least 2: the first one is not timed")
        if self.level_decay is not None and not 0 <= self.level_decay < math.inf:
            raise UserError("--level-decay must be 0 or a positive number")
        if self.bench is not None:
            parse_names(self.bench)
        for name in self.engine:
            if name not in ENGINES:
                raise UserError(f"no engine {name!r}; pass some of {', '.join(ENGINES)}")

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines, each once, plain decoding first."""
        return tuple(dict.fromkeys((PLAIN, *self.engine)))

    @property
    def thread_choices(self) -> tuple[int, ...]:
        """Numbers of threads to choose from, for each engine."""
        return (self.threads,) if self.threads else tuple(sorted({1, available_cores()}))
