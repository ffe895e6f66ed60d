"""Options of `eval.latency`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least


@dataclasses.dataclass(frozen=True)
class LatencyConfig:
    """Shapes and settings to measure."""

    shape: tuple[str, ...] = ()
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, -30b-a3b, -235b-a22b,
    llama-3-8b, llama-3-70b, llama-3.1-70b, tiny. By default demo on a CPU, otherwise qwen3-8b."""
    context: tuple[int, ...] = ()
    """Cached tokens; by default 128 and 1024 on a CPU, otherwise 2048 and 8192."""
    tree_nodes: tuple[int, ...] = ()
    """Nodes of the trees, without the root; by default 8, 16 and 60 on a CPU, otherwise 16 and
    60."""
    batch_size: tuple[int, ...] = (1,)
    """Sequences decoded together."""
    repeats: int = 5
    """Measurements of everything."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """dtype of weights and activations; auto is what the device multiplies best."""
    json: Path | None = None
    """Write all measurements to this file."""

    def __post_init__(self) -> None:
        from eval.latency.shapes import drafter_of, target_of

        for name in self.shape:
            longest = target_of(name).max_length - drafter_of(target_of(name)).num_positions - 1
            if max(self.context, default=0) > longest:
                raise UserError(f"--context must be at most {longest} with --shape {name}")
        check_least(self, context=1, tree_nodes=1, batch_size=1, repeats=1)
        if len(set(self.tree_nodes)) < len(self.tree_nodes):
            raise UserError("--tree-nodes must be different numbers")
