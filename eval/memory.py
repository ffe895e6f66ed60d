"""Memory that decoding needs, per model, as a table in Markdown; and what fits a device.

    dart-jax memory
    dart-jax memory --device t4
    dart-jax memory --shape qwen3-8b --length 32768 --batch-size 4
    dart-jax memory --shape llama-3-70b --weights int8
    dart-jax memory --target Qwen/Qwen3-1.7B --drafter fvliang/qwen1.7b-dart

Reads only shapes: nothing is allocated, and of a target and drafter only `config.json` is needed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.models.kernels.choices import CacheDtype
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.tables import narrow, table
from eval.compile.config import Gpus

if TYPE_CHECKING:
    from dart_jax.models.config import TargetConfig
    from dart_jax.models.networks.sizes import WithWeights

_FLOAT = 4  # bytes of a logit
_FRACTION = 0.9  # of a device's memory that JAX takes, if it is told to
_SHORTEST = 512  # tokens of a text that is worth a model
_MESHES = 2, 4, 8
_NOTE = (
    "tree: what a verification returns; left: of nine tenths of the memory, which JAX takes with "
    "XLA_CLIENT_MEM_FRACTION=0.9, a tenth of these is for activations; fits: the longest texts, in "
    "tokens, by halves of what the model was made for; int8: with --weights int8; devices: with "
    "--mesh model=2, 4 or 8, for texts as asked"
)


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
    """The models, and their texts."""

    target: str | None = None
    """Directory or hub repository of a target, instead of --shape."""
    drafter: str | None = None
    """Directory or hub repository of a drafter for --target; by default a DART drafter of the
    target's shape."""
    shape: tuple[str, ...] = (
        "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b",
        "llama-3-8b", "llama-3-70b",
    )  # fmt: skip
    """Names of published shapes; case does not matter."""
    device: Gpus | None = None
    """Also say what is left of the memory of this GPU, and what would fit."""
    ngram: Path | None = None
    """N-gram file that the GPU searches (--search device)."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """dtype of weights and caches: auto is float16 for a T4, otherwise bfloat16. On a CPU, the
    weights of products that bfloat16 or float16 holds exactly take 2 bytes each also in float32."""
    weights: Literal["stored", "int8"] = "stored"
    """Storage of the weights of linear layers and experts: with that dtype, or in 8 bits with a
    scale for each output, as on GPUs and TPUs."""
    kv: CacheDtype = "auto"
    """dtype of caches; auto: as the rest."""
    length: int = 4096
    """Tokens of prompt and new text together."""
    batch_size: int = 1
    """Sequences decoded together."""
    tree_nodes: int = 60
    """Nodes of the draft tree, besides the root."""

    def __post_init__(self) -> None:
        from dart_jax.decoding.options import MAX_NODES
        from dart_jax.models.platform.execution import check_cache

        check_least(self, length=1, batch_size=1)
        check_cache(self.kv, self.kind)
        if not 0 <= self.tree_nodes <= MAX_NODES:
            raise UserError(f"--tree-nodes must be from 0 to {MAX_NODES}, got {self.tree_nodes}")
        if self.drafter is not None and self.target is None:
            raise UserError("--drafter needs the --target that it was made for")

    @property
    def kind(self) -> Any:
        """The dtype of weights."""
        from dart_jax.weights.checkpoint import resolve_dtype
        from eval.compile.devices import ACCELERATORS

        if self.dtype != "auto":
            return resolve_dtype(self.dtype)
        return resolve_dtype("bfloat16" if self.device is None else ACCELERATORS[self.device].dtype)

    @functools.cached_property
    def table(self) -> int:
        """Bytes of the n-gram model on a device."""
        from dart_jax.ngram import NgramModel
        from dart_jax.ngram.device_table import table_bytes

        return 0 if self.ngram is None else table_bytes(sum(NgramModel.load(self.ngram).sizes[1:]))

    def models(self) -> list[tuple[str, TargetConfig, WithWeights]]:
        """Returns the name, the target and the drafter of each model; raises UserError if a shape
        is unknown, or a config cannot be read."""
        from dart_jax.weights import hub
        from dart_jax.weights.checkpoint import read_any_drafter_config, read_target_config
        from dart_jax.weights.drafter_files import check_fit
        from eval.latency.shapes import drafter_of, target_of

        if self.target is None:
            targets = [(name.lower(), target_of(name)) for name in self.shape]
            return [(name, target, drafter_of(target)) for name, target in targets]
        target = read_target_config(hub.resolve(self.target, patterns=["config.json"]))
        drafter = drafter_of(target)
        if self.drafter is not None:
            drafter = read_any_drafter_config(hub.resolve(self.drafter, patterns=["config.json"]))
            check_fit(target, drafter)
        return [(Path(self.target).name, target, drafter)]


class Memory(NamedTuple):
    """Bytes on the device: the weights of target, tied embeddings once, and drafter; their caches
    at full length; and what a verification returns for every node: its logits in float32, features,
    keys and values. What XLA needs besides is not counted."""

    target: int
    drafter: int
    caches: int
    verification: int


def memory(
    target: TargetConfig, drafter: WithWeights, config: MemoryConfig, shards: int = 1
) -> Memory:
    """Computes what one model needs, with the options of `config`, on each of so many devices that
    share it."""
    import numpy as np
    from jax.sharding import AbstractMesh

    from dart_jax.decoding.state import DecodeConfig
    from dart_jax.engine.shapes import length_bucket
    from dart_jax.models.kernels.matmul import activations
    from dart_jax.models.kernels.options import LayerOptions
    from dart_jax.models.networks.sizes import cache_row, device_bytes
    from dart_jax.models.sharding.devices import Devices
    from dart_jax.models.sharding.mesh import DATA, MODEL

    dtype, int8 = np.dtype(config.kind), config.weights == "int8"
    kv = LayerOptions(kv=config.kv).cache_dtype(dtype)
    decoding = DecodeConfig(target, drafter, config.tree_nodes)
    length = min(length_bucket(config.length), target.max_length)
    rows = config.batch_size * decoding.capacity(length)
    features = activations(dtype).itemsize * len(decoding.feature_layers) * target.hidden_size
    node = _FLOAT * target.vocab_size + features + cache_row(target, kv)
    mesh: Any = AbstractMesh((1, shards), (DATA, MODEL)) if shards > 1 else None
    own = Devices(mesh).with_drafter(drafter).drafter_shards
    return Memory(
        device_bytes(target, dtype, int8, shards),
        device_bytes(drafter, dtype, int8, own),
        rows * (cache_row(target, kv) // shards + cache_row(drafter, kv) // own),
        config.batch_size * (config.tree_nodes + 1) * node,
    )


def fitting(target: TargetConfig, drafter: WithWeights, config: MemoryConfig, room: float) -> str:
    """Says what fits into so many bytes: the longest texts with the weights as asked, or in 8 bits
    if these are shorter than asked; otherwise the devices that could share the model."""
    ways = dict.fromkeys((config.weights, "int8"))

    def fits(shards: int = 1, **changes: Any) -> bool:
        need = memory(target, drafter, dataclasses.replace(config, **changes), shards)
        return sum(need) + config.table <= room

    longest = {}
    for weights in ways:
        lengths = [target.max_length]
        while lengths[-1] >= 2 * _SHORTEST:
            lengths.append(lengths[-1] // 2)
        at = next((n for n in lengths if fits(weights=weights, length=n)), 0)
        longest[weights] = f"{'' if weights == config.weights else f'{weights}: '}{at:,}", at
    asked = min(config.length, target.max_length)
    for least in (asked, _SHORTEST):
        for words, length in longest.values():
            if length >= least:
                return words
    for weights in ways:
        for n in _MESHES:
            if fits(n, weights=weights):
                return f"{'' if weights == config.weights else f'{weights}, '}{n} devices"
    return "no"


def rows(config: MemoryConfig) -> list[list[str]]:
    """Returns the table's cells, in gigabytes (10^9 bytes); raises UserError as `models`."""
    from dart_jax.models.platform.device_memory import DeviceMemory
    from eval.compile.devices import ACCELERATORS

    found, form = [], ".2f" if config.device is None else ".1f"
    for name, target, drafter in config.models():
        need = memory(target, drafter, config)
        parts = [*need, config.table] if config.ngram else [*need]
        row: list[float] = [*parts, sum(parts)]
        last = []
        if config.device is not None:
            gpu = ACCELERATORS[config.device].gpu
            assert gpu is not None
            room = DeviceMemory(round(_FRACTION * gpu.memory), 0).left
            row.append(room - sum(parts))
            last = [fitting(target, drafter, config, room)]
        found.append([name, *(f"{x / 1e9:{form}}" for x in row), *last])
    return found


def columns(config: MemoryConfig) -> list[str]:
    """Returns the names of the columns of `rows`."""
    names = ["model", "target", "drafter", "caches", "tree"]
    names += ["n-grams"] if config.ngram else []
    return [*names, "sum", *(["left", "fits"] if config.device else [])]


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        config = parse(MemoryConfig, args, __doc__)
        what = columns(config), rows(config)
        title = f"Gigabytes (10^9 bytes), {config.kind}"
        if config.device is None:
            Console().print(table(title, *what))
        else:
            Console().print(narrow(f"{title}, {config.device}", *what, _NOTE))


if __name__ == "__main__":
    main()
