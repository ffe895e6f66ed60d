"""Options of an engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dart_jax.decoding.options import MAX_NODES
from dart_jax.errors import UserError

if TYPE_CHECKING:
    from dart_jax.engine.request import SamplingMode

# Sampling modes that are compiled in advance.
Warmup = Literal["greedy", "filtered", "all", "none"]


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Options by which requests are decoded together."""

    slots: int = 16
    """Requests that are decoded together, at most."""
    max_length: int | None = None
    """Maximum length of a prompt and its new tokens together; by default the target's positions, at
    most 8,192."""
    kv_memory: str | None = None
    """Memory for the keys and values of all requests, such as 4GB; by default as much as all slots
    need at the maximum length, and at most 4GB on CPUs and 8GB elsewhere."""
    page: int = 64
    """Tokens in a page, in which this memory is given to requests."""
    chunk: int | None = None
    """Tokens of prompts that are read at a time, at most; by default 128 on CPUs, otherwise 512.
    While texts are running fewer are read, in about the time of a burst."""
    burst: int | None = None
    """Steps that the device takes before the host sees their tokens, at most: a text that is
    streamed arrives in pieces of that length. By default as many as take about 30 ms."""
    queue: int = 256
    """Requests that may wait for a slot."""
    tree_nodes: int | None = None
    """Nodes of the draft tree, besides the root; 0 for plain decoding. By default as many as pay at
    the present load, down to plain decoding."""
    no_prefix_cache: bool = False
    """Do not keep the keys and values of past texts for requests that begin with the same
    tokens."""
    warmup: Warmup = "all"
    """Programs that are compiled in advance: for greedy decoding only; for sampling with filters,
    too; or for all options. The others are compiled while a request waits for them."""
    compile_first: bool = False
    """Accept requests when all these programs are compiled. Otherwise when a single text can be
    decoded; the rest is then compiled in moments without requests."""

    offline: Annotated[bool, tyro.conf.Suppress] = False
    """All texts are known from the start, as in `DartModel.generate`: prompts are read before the
    first step, each text has its whole length in one page, and few programs are compiled."""

    def __post_init__(self) -> None:
        least = {"slots": 1, "page": 1, "queue": 0, "chunk": 1, "burst": 1, "max_length": 2}
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None and value < number:
                option = name.replace("_", "-")
                raise UserError(f"--{option} must be at least {number}, got {value}")
        if self.tree_nodes is not None and not 0 <= self.tree_nodes <= MAX_NODES:
            raise UserError(f"a tree cannot have {self.tree_nodes} nodes; choose 0 to {MAX_NODES}")

    @property
    def modes(self) -> tuple[SamplingMode, ...]:
        """Sampling modes that are compiled before the first request."""
        from dart_jax.engine.request import SAMPLING_MODES

        count = {"none": 0, "greedy": 1, "filtered": 3, "all": 4}[self.warmup]
        return SAMPLING_MODES[:count]
