"""Options of `eval.peers`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dart_jax.errors import UserError, meant
from dart_jax.programs.command_line import check_least
from dart_jax.programs.model_choice import ModelChoice
from eval.peers.engine import ENGINES


@dataclasses.dataclass(frozen=True)
class PeersConfig(ModelChoice):
    """The model, the engines, and how to time them."""

    engine: tuple[str, ...] = tuple(ENGINES)
    """Engines, of plain, dart, transformers, and for GGUF targets llama.cpp; with its drafts from
    the text, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod and ngram-cache. plain is always
    there. Those that lack a package or a part are left out."""
    bench: str | None = None
    """Benchmarks or files, as for eval.speedup, of which the first turns are answered; texts follow
    no schema here."""
    data_dir: Path | None = None
    """Directory of the benchmarks' files; by default they come from the Hugging Face hub."""
    prompts: int = 2
    """Questions of each benchmark, or functions of each of the demo benchmark's four groups."""
    new_tokens: int = 128
    """Tokens that every engine writes for each prompt, whichever they are; the first one, which
    comes with the prefill, is not timed."""
    repeats: int = 3
    """Measured passes over all prompts, after one that compiles."""
    threads: tuple[int, ...] = ()
    """Cores of every engine, one or more numbers of them; by default all of the machine's."""
    tree_nodes: int | None = None
    """Nodes of DART's draft trees; by default as many as pay, step by step."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        from eval.benchmarks.registry import check_bench

        super().__post_init__()
        check_least(self, prompts=1, repeats=1, threads=1, tree_nodes=1)
        if self.new_tokens < 2:
            raise UserError("--new-tokens must be at least 2: the first one is not timed")
        check_bench(self.bench)
        for name in self.engine:
            if name not in ENGINES:
                cure = meant(name, ENGINES, f"pass some of {', '.join(ENGINES)}")
                raise UserError(f"no engine {name!r}; {cure}")
