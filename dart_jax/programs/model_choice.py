"""Command-line options that select a model. JAX is imported when it is loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from dart_jax.decoding.search.config import SearchWay
from dart_jax.errors import UserError
from dart_jax.models.kernels.choices import AttentionChoice, CacheDtype, WeightsDtype
from dart_jax.named import models
from dart_jax.named.models import NamedModel
from dart_jax.programs.command_line import check_least
from dart_jax.progress import say

if TYPE_CHECKING:
    from dart_jax.model import DartModel


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The model to use: one that has a name, with all its parts, or a target with those given."""

    GROUP: ClassVar[str] = "loading"

    model: Literal["auto", "smollm2", "demo"] = "auto"
    """smollm2: SmolLM2-135M-Instruct, which answers questions; fetched once, 93 MB. demo: a small
    model in the package, which continues Python code. auto is smollm2 where that is in the cache or
    can be fetched, otherwise demo."""
    target: str | None = None
    """Directory or hub repository of another target, with its tokenizer; it has only the parts
    given."""
    drafter: str | None = None
    """Directory or hub repository of a DART, EAGLE-3 or block drafter, or of a small model with the
    target's vocabulary; EAGLE-3 and the small model draft without an n-gram model. By default that
    of --model; for another --target only the text itself drafts. none: nothing does."""
    drafter_window: int | None = None
    """Positions that a DART, EAGLE-3 or block drafter sees, its own included; 0 for all. By default
    what its config.json says."""
    ngram: str | None = None
    """N-gram file (.dng, or .trie of the reference), or owner/name/file on the hub; without a
    drafter, only the n-gram model drafts. By default that of --model, and none for another
    --target."""
    no_ngram: bool = False
    """Search with the drafter only, without the n-gram model of --model."""
    no_text_drafts: bool = False
    """Do not draft what followed earlier in the text."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """dtype of weights and activations; auto is float32 on CPU, float16 on GPUs before compute
    capability 8, otherwise bfloat16. With float16, norms, sums and what layers add are float32."""
    weights: WeightsDtype = "stored"
    """Storage of the weights of linear layers: as in the files, where a CPU computes a GGUF file's
    in blocks of 4 to 8 bits; as floats; or in 8 bits, which on a CPU also rounds their inputs."""
    kv: CacheDtype = "auto"
    """dtype of cached keys and values: auto is that of the weights, but bfloat16 where a CPU
    computes weights in blocks; on a CPU bfloat16 takes half of the memory of float32."""
    attention: AttentionChoice = "auto"
    """Attention to the cache: native, in the C++ core, for CPUs; triton, a kernel for NVIDIA GPUs
    from the A100 on; mosaic, a kernel for TPUs; or dense, plain JAX. auto: the platform's best."""
    search: SearchWay = "auto"
    """Search of draft trees: host, C++ on the host; or device, JAX, with the n-gram model in the
    device's memory and a DART drafter. auto is the platform's best."""
    ngram_device_memory: str = "2GB"
    """Memory that the n-gram model may take on the device, such as 500MB, for --search device."""
    mesh: str | None = None
    """Devices that decode together, such as model=4 or data=2,model=4: groups of devices that share
    the target's weights (model), each with some of a batch's rows (data). By default one device."""
    revision: str | None = None
    """Branch, tag or commit of the target's repository."""

    def __post_init__(self) -> None:
        if self.no_ngram and self.ngram is not None:
            raise UserError("--no-ngram and --ngram exclude each other; pass one of them")
        if self.revision is not None and self.target is None:
            raise UserError("--revision is of --target's repository; pass --target too")
        if self.model != "auto" and self.target is not None:
            raise UserError("--model and --target exclude each other; pass one of them")
        drafter = None if self.drafter == "none" else self.drafter
        for name, value in {"drafter": drafter, "ngram": self.ngram}.items():
            if value is not None and self.model == "auto" and self.target is None:
                message = f"--{name} was made for one model; pass --model or --target too"
                raise UserError(message)
        check_least(self, drafter_window=0)

    def words(self) -> list[str]:
        """Returns the options of a command line that make this choice."""
        words = []
        for field in dataclasses.fields(ModelChoice):
            value = getattr(self, field.name)
            if value != field.default:
                name = f"--{field.name.replace('_', '-')}"
                words += [name] if value is True else [name, str(value)]
        return words

    @property
    def named(self) -> NamedModel | None:
        """The model that has a name, or None with another target."""
        if self.target is not None:
            return None
        return models.default() if self.model == "auto" else models.MODELS[self.model]

    def decided(self) -> Self:
        """Returns the same choice for another process, which must not decide again."""
        return self if self.named is None else dataclasses.replace(self, model=self.named.name)

    def part(self, given: str | None, name: str) -> str | None:
        """Returns the given path or, by default, that of the named model's part."""
        return given if given is not None or self.named is None else str(self.named.part(name))

    @property
    def title(self) -> str:
        """The name of the model, or of the target."""
        return self.named.name if self.named else str(self.target)

    @property
    def target_path(self) -> str | Path:
        """The target, for `hub.resolve`."""
        model = self.named or models.find(str(self.target))
        return str(self.target) if model is None else model.target()

    @property
    def main_drafter(self) -> str | None:
        """The drafter to use, if any."""
        return self.part(self.drafter, models.DRAFTER)

    @property
    def ngram_model(self) -> str | None:
        """The n-gram model to use, if any."""
        if self.no_ngram or (self.drafter == "none" and self.ngram is None):
            return None
        return self.part(self.ngram, models.NGRAM)

    @property
    def main_window(self) -> int | None:
        """The window of the main drafter."""
        return self.drafter_window

    def load(self) -> DartModel:
        """Loads the model, and says what it takes of a GPU's memory; raises UserError as
        `DartModel.from_pretrained`."""
        from dart_jax.loading import room_in_words
        from dart_jax.model import DartModel

        model = DartModel.from_pretrained(
            self.target_path,
            self.main_drafter,
            self.ngram_model,
            dtype=self.dtype,
            attention=self.attention,
            weights=self.weights,
            kv=self.kv,
            search=self.search,
            ngram_device_memory=self.ngram_device_memory,
            mesh=self.mesh,
            drafter_window=self.main_window,
            text_drafts=not self.no_text_drafts,
            revision=self.revision,
        )
        if room := room_in_words(model.params, auto=self.dtype == "auto"):
            say(f"{self.title}: {room}")
        return model
