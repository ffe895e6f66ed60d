"""Command-line options that select a model."""

from __future__ import annotations

import dataclasses
from typing import Literal

from dart_jax.decoding.search.choice import SearchChoice, Searching
from dart_jax.errors import UserError
from dart_jax.memory import parse_memory
from dart_jax.model import DEMO, DartModel
from dart_jax.models.platform.execution import AttentionChoice, WeightsDtype
from dart_jax.progress import stage


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The model to use: by default the demo model, whose parts fit only its own target."""

    target: str | None = None
    """Directory or hub repository of the target, with its tokenizer; by default the demo model's,
    which continues Python code."""
    drafter: str | None = None
    """Directory or hub repository of a DART or EAGLE-3 drafter, or of a small model with the
    target's vocabulary; the last two draft without an n-gram model. By default the demo model's,
    and none for another --target."""
    ngram: str | None = None
    """N-gram file (.dng, or .trie of the reference), or owner/name/file on the hub; without a
    drafter, only the n-gram model drafts. By default the demo model's, and none for another
    --target."""
    no_ngram: bool = False
    """Search with the drafter only, without the demo model's n-gram model."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of weights and activations; auto is float32 on CPU, otherwise bfloat16."""
    weights: WeightsDtype = "stored"
    """How the weights of linear layers are stored: with the files' values; int8, in 8 bits, in the
    platform's own form, which on a CPU also rounds their inputs; or int8-channels, in that of GPUs
    and TPUs, with a scale for each output, on any platform."""
    attention: AttentionChoice = "auto"
    """What computes attention to the cache: native, the C++ core, for CPUs; triton, a kernel for
    NVIDIA GPUs from the A100 on; mosaic, one for TPUs; or dense, plain JAX. auto is the platform's
    best."""
    search: SearchChoice = "auto"
    """What searches draft trees: native, C++ on the host, called by XLA, for CPUs and NVIDIA GPUs;
    callback, C++ on the host, called through Python; or device, JAX, with the n-gram model in the
    device's memory. auto is the platform's best."""
    ngram_device_memory: str = "2GB"
    """Memory that the n-gram model may take on the device, such as 500MB; if it takes more,
    --search device leaves out the least frequent n-grams."""
    mesh: str | None = None
    """Devices that decode together, such as model=4 or data=2,model=4: groups of devices that share
    the target's weights (model), each with some of a batch's rows (data). By default one device."""
    revision: str | None = None
    """Branch, tag or commit of the target's repository."""

    def __post_init__(self) -> None:
        if self.no_ngram and self.ngram is not None:
            raise UserError("--no-ngram and --ngram exclude each other; pass one of them")

    def part(self, given: str | None, name: str) -> str | None:
        """Returns the given path or, for the demo target, by default that of the demo's part."""
        return str(DEMO / name) if given is None and self.target is None else given

    @property
    def ngram_model(self) -> str | None:
        """The n-gram model to use, if any."""
        return None if self.no_ngram else self.part(self.ngram, "ngram.dng")

    @property
    def searching(self) -> Searching:
        """Where trees are searched; raises UserError if the memory is not a size."""
        return Searching(self.search, parse_memory(self.ngram_device_memory))

    def load(self) -> DartModel:
        """Loads the model; raises UserError as `DartModel.from_pretrained`."""
        with stage("loading the model", short=True):
            return DartModel.from_pretrained(
                self.target or DEMO / "target",
                self.part(self.drafter, "drafter_pairs"),
                self.ngram_model,
                dtype=self.dtype,
                attention=self.attention,
                weights_dtype=self.weights,
                search=self.searching.choice,
                ngram_device_memory=self.searching.memory,
                mesh=self.mesh,
                revision=self.revision,
            )
