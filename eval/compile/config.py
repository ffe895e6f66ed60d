"""Options of `eval.compile`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least, check_some

# fmt: off
Gpus = Literal["t4", "l4", "a100", "rtx-3090", "rtx-4090", "rtx-5090", "h100", "h200", "b200"]
# fmt: on
Device = Literal[Gpus, "v5e", "v6e"]
Method = Literal["plain", "text", "dart", "eagle3", "dflash", "dspark"]
Program = Literal["prefill", "step", "search", "loop", "serve"]
# All of sampling on which programs depend.
Level = Literal["greedy", "filtered", "full"]


@dataclasses.dataclass(frozen=True)
class CompileConfig:
    """Programs to compile, and the device."""

    device: Device = "h200"
    """GPUs need the extra aot, TPUs the extra tpu (in an environment without CUDA's)."""
    shape: tuple[str, ...] = ("qwen3-8b",)
    """Shapes of models: demo, qwen3-0.6b, -1.7b, -4b, -8b, -14b, -32b, -30b-a3b,
    -235b-a22b, llama-3-8b, llama-3-70b, llama-3.1-70b, tiny."""
    method: tuple[Method, ...] = ("plain", "dart")
    """Ways to draft."""
    program: tuple[Program, ...] = ("step",)
    """prefill (a chunk of prompts), step (verify and draft), search (of the trees), loop (a burst
    of up to 256 steps, as of generate), or serve (one of up to 4, with caches in pages of 64)."""
    batch_size: tuple[int, ...] = (1,)
    """Sequences decoded together."""
    tree_nodes: tuple[int, ...] = (60,)
    """Nodes of the draft tree, besides the root."""
    context: tuple[int, ...] = (2048,)
    """Cached tokens of each sequence."""
    weights: tuple[Literal["stored", "int8"], ...] = ("stored",)
    """Storage of the weights of linear layers and experts: in bfloat16 (on a T4 float16), or in 8
    bits."""
    sampling: Level = "greedy"
    """Sampling of tokens: greedy; filtered, by temperature, top-k, top-p and min-p; or full, also
    with a bias of logits and the penalties for which a server's requests may ask."""
    layers: int | None = None
    """Compile only this many layers of the target, to be quicker; at least 7."""
    mesh: str = "data=1,model=1"
    """Devices that decode together, such as data=1,model=8; programs: all but search."""
    check: bool = False
    """Exit with status 1 if a program copies a cache or does not update it in place, sorts the
    whole vocabulary, exchanges data with the host, has no kernel for the attention of a layer, runs
    a step in more than one CUDA graph or outside of it, or exchanges weights or logits among
    devices."""
    max_kernels_a_layer: float = float("inf")
    """Also exit with status 1 if a layer of the target has more kernels."""
    json: Path | None = None
    """Write all figures to this file."""

    def __post_init__(self) -> None:
        from dart_jax.models.sharding.mesh import MeshShape
        from eval.compile.devices import ACCELERATORS
        from eval.latency.shapes import target_of

        for name in self.shape:
            target_of(name)
        check_least(self, batch_size=1, tree_nodes=1, context=1)
        check_some(self, "batch_size", "tree_nodes", "context")
        if self.layers is not None and self.layers < 7:
            raise UserError("--layers must be at least 7: a drafter reads three different ones")
        if self.max_kernels_a_layer < float("inf") and not self.check:
            raise UserError("--max-kernels-a-layer needs --check")
        mesh = MeshShape.parse(self.mesh)
        ACCELERATORS[self.device].topology(mesh.data * mesh.model)
        if mesh.data * mesh.model > 1 and "search" in self.program:
            raise UserError("--program search runs on one device; leave --mesh out")
        for batch in self.batch_size:
            if batch % mesh.data:
                raise UserError(
                    f"{mesh.data} groups of devices cannot share a batch of {batch} evenly; change "
                    "--batch-size or --mesh"
                )
