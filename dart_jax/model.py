"""A target with its drafter, loaded from files."""

from __future__ import annotations

import dataclasses
import functools
import html
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from dart_jax.decoding.drafting import (
    AnyDrafter,
    NgramConfig,
    PromptLookupConfig,
    drafter_title,
)
from dart_jax.decoding.search.choice import DEFAULT_MEMORY, check_way
from dart_jax.decoding.search.config import SearchWay
from dart_jax.decoding.state import DecodeParams
from dart_jax.errors import UserError, warn
from dart_jax.generation import GenerationConfig
from dart_jax.generation.text_generator import TextGenerator
from dart_jax.generation.transformers_options import unused_by_default
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.layers import Params
from dart_jax.models.platform.execution import AttentionChoice, Execution
from dart_jax.models.platform.weights import WeightsDtype, WeightsForm, untie
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.models.sharding.placement import replicate
from dart_jax.named import models
from dart_jax.ngram import NgramModel
from dart_jax.text.tokenizer import FILE as TOKENIZER
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import (
    load_drafter,
    load_target,
    read_any_drafter_config,
    read_target_config,
    resolve_dtype,
)
from dart_jax.weights.drafter_files import check_draft_model, check_fit
from dart_jax.weights.generation_file import FILE as GENERATION_FILE
from dart_jax.weights.generation_file import load_eos
from dart_jax.weights.tensor_files import open_tensors, read_json
from dart_jax.weights.user_cache import enable_compilation_cache, load_ngram

PathLike = str | os.PathLike[str]


# The demo model, which is part of the package.
DEMO = models.MODELS["demo"].directory


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DartModel(TextGenerator):
    """A target, its drafter and its n-gram model.

    Attributes:
      target: the target's shapes; a tied head gets its own kernel where that
        is faster (see `untie`).
      drafter: config of the drafting method, such as the drafter's shapes; None for plain decoding.
      params: see `DecodeParams`.
      ngram: n-gram model of the tree search; None searches with only the DART drafter's scores.
      tokenizer: the target's.
      eos: all end-of-sequence ids of the target's generation config.
      execution: how the models are computed.
      search_way: where trees are searched; see `way_here`.
      ngram_device_memory: bytes that the n-gram model may take on the device.
    """

    target: TargetConfig
    drafter: AnyDrafter | None
    params: DecodeParams
    ngram: NgramModel | None
    tokenizer: Tokenizer
    eos: tuple[int, ...]
    execution: Execution = dataclasses.field(default_factory=Execution.here)
    search_way: SearchWay = "auto"
    ngram_device_memory: int = DEFAULT_MEMORY

    def __repr__(self) -> str:
        return f"DartModel({', '.join(f'{name}: {what}' for name, what in self._parts().items())})"

    def _repr_html_(self) -> str:
        """A table of the model's parts, for notebooks."""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(what)}</td></tr>"
            for name, what in self._parts().items()
        )
        return f"<table><caption>DartModel</caption>{rows}</table>"

    def _parts(self) -> dict[str, str]:
        """What the model consists of, in words."""
        leaves = jax.tree.leaves(self.params)
        embedding = self.params["target"]["embed_tokens"]
        devices = sorted(device.id for device in embedding.devices())
        kind = next(iter(embedding.devices())).device_kind
        drafting = drafter_title(self.drafter)
        if "drafter" in self.params:
            drafting += f", {_count(self.params['drafter'])} parameters"
        return {
            "target": f"{self.target.model_type}, {_count(self.params['target'])} parameters",
            "drafter": drafting,
            "n-gram model": "none" if self.ngram is None else repr(self.ngram),
            "dtype": str(embedding.dtype),
            "device": f"{kind} {', '.join(map(str, devices))}",
            "size": f"{sum(leaf.nbytes for leaf in leaves) / 1e6:,.0f} MB",
        }

    @functools.cached_property
    def generation_config(self) -> GenerationConfig:
        """The target's own generation options, from its `generation_config.json`; the defaults if
        it has none. Used only if passed to `generate`.

        Raises:
          UserError: the file asks for something that is not supported, such as beam search.
        """
        directory = self.tokenizer.directory
        path = None if directory is None else directory / GENERATION_FILE
        if path is None or not path.is_file():
            return GenerationConfig()
        return GenerationConfig.from_transformers(read_json(path))

    @classmethod
    def from_pretrained(
        cls,
        target: PathLike,
        drafter: PathLike | None = None,
        ngram: PathLike | None = None,
        *,
        dtype: DTypeLike = "auto",
        attention: AttentionChoice = "auto",
        weights_dtype: WeightsDtype = "stored",
        search: SearchWay = "auto",
        ngram_device_memory: int = DEFAULT_MEMORY,
        mesh: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> DartModel:
        """Loads a model by its name, or from local directories or repositories of the Hugging Face
        hub.

        Programs compiled for the model are kept in the user's cache directory (see
        `enable_compilation_cache`).

        Args:
          target: directory or `owner/name`, in the Hugging Face layout, or a GGUF file; or
            "smollm2" or "demo", which without a drafter has that of the package, and with a DART
            drafter and without an n-gram model likewise.
          drafter: directory or `owner/name` of a DART or EAGLE-3 drafter, or of a smaller model
            with the target's vocabulary, which drafts token by token. None: drafts with the n-gram
            model only, if there is one; otherwise plain decoding.
          ngram: n-gram file, ours or the reference's `.trie`, which is converted once and kept in
            the user's cache directory; or `owner/name/file` of the hub. None: no n-gram model.
          dtype: of weights and activations; "auto" is float32 on CPU, otherwise bfloat16.
          attention: what computes attention to the cache: "native", the C++ core, for CPUs,
            "triton", a kernel for NVIDIA GPUs from the A100 on, "mosaic", one for TPUs, or "dense",
            plain JAX; "auto" is the platform's best.
          weights_dtype: "stored" keeps the values of the files; "int8" rounds those of the linear
            layers, of target and drafter, to 8 bits as they are loaded: on one CPU with the C++
            core in groups of 64, and their inputs too; elsewhere with a scale for each output, and
            also those of a mixture's experts.
          search: what searches draft trees: "native", C++ on the host, called by XLA, for CPUs and
            NVIDIA GPUs; "callback", C++ on the host, called through Python; "device", JAX, with the
            n-gram model in the device's memory, with a DART drafter; "auto" is the platform's best.
          ngram_device_memory: bytes that the n-gram model may take on the device; if it takes more,
            "device" leaves out the least frequent n-grams.
          mesh: devices that decode together, such as "model=4" or "data=2,model=4": groups of
            devices that share the weights of target and drafter (`model`), each with some of a
            batch's rows (`data`). None for one device.
          revision: branch, tag or commit of the target's repository.
          token: hub token; None uses the stored login.

        Raises:
          UserError: something is missing, damaged or not supported, or the parts do not match.
        """
        enable_compilation_cache()
        kind, execution = resolve_dtype(dtype), Execution.here(attention, weights_dtype)
        if mesh is not None:
            execution = execution.on(MeshShape.parse(mesh).make())
        check_way(search, ngram_device_memory)
        named = models.find(target)
        if named is not None and drafter is None:
            drafter = named.part(models.DRAFTER)
        # Read the small files first, so that mismatched parts are reported before the weights are
        # loaded.
        directory = hub.resolve(target, revision=revision, token=token, patterns=hub.TARGET)
        config, tokenizer = read_target_config(directory), Tokenizer.load(directory)
        ngram_model = draft_config = drafter_path = None
        if drafter is not None:
            drafter_path, draft_config = _find_drafter(drafter, config, tokenizer, token)
        searches = isinstance(draft_config, DrafterConfig | None)
        if named is not None and ngram is None and searches:
            ngram = named.part(models.NGRAM)
        if ngram is not None:
            if not searches:
                raise UserError(
                    "an n-gram model works with a DART drafter or without a drafter, but not with "
                    "this drafter; pass one of the two (--no-ngram leaves out that of --model)"
                )
            ngram_model = load_ngram(ngram, tokenizer, config.vocab_size, token=token)
        config, target_params = _load_target(
            directory, kind, execution.weights, execution.devices.mesh
        )
        params: DecodeParams = {"target": target_params}
        drafting = None if ngram_model is None else NgramConfig()
        eos = load_eos(directory, config.vocab_size)
        _tell_unused(directory / GENERATION_FILE)
        where = search, ngram_device_memory
        model = cls(config, drafting, params, ngram_model, tokenizer, eos, execution, *where)
        if drafter_path is None or draft_config is None:
            return model
        return model._with_loaded(drafter_path, draft_config, kind)

    def with_drafter(
        self, drafter: PathLike | AnyDrafter | None, *, token: str | bool | None = None
    ) -> DartModel:
        """Returns a model with another drafting method that shares this target's weights.

        Args:
          drafter: directory or `owner/name`, as for `from_pretrained`; a config that needs no
            parameters, `NgramConfig` or `PromptLookupConfig`; None for plain decoding.
          token: hub token; None uses the stored login.

        Raises:
          UserError: as `from_pretrained`.
        """
        if isinstance(drafter, str | os.PathLike):
            path, config = _find_drafter(drafter, self.target, self.tokenizer, token)
            return self._with_loaded(path, config, self.params["target"]["embed_tokens"].dtype)
        if drafter == self.drafter:
            return self
        if drafter is not None:
            if not isinstance(drafter, NgramConfig | PromptLookupConfig):
                raise UserError("a drafter's parameters are needed; pass its directory")
            if isinstance(drafter, NgramConfig) and self.ngram is None:
                raise UserError("no n-gram model was loaded; pass one")
        # Drop the previous drafter's weights.
        params: DecodeParams = {"target": self.params["target"]}
        devices = self.execution.devices.with_drafter(None)
        execution = dataclasses.replace(self.execution, devices=devices)
        return dataclasses.replace(self, drafter=drafter, params=params, execution=execution)

    def without_pair_scores(self) -> DartModel:
        """Returns the same model without its DART drafter's pair scores, if it has any."""
        if not isinstance(self.drafter, DrafterConfig) or not self.drafter.pair_rank:
            return self
        drafter = {name: part for name, part in self.params["drafter"].items() if name != "pairs"}
        config = dataclasses.replace(self.drafter, pair_rank=0)
        return dataclasses.replace(self, drafter=config, params={**self.params, "drafter": drafter})

    def _with_loaded(
        self, path: Path, config: DrafterConfig | Eagle3Config | TargetConfig, dtype: np.dtype
    ) -> DartModel:
        """Returns the model with the parameters of a drafter that fits the target."""
        params: DecodeParams = {"target": self.params["target"]}
        weights, devices = self.execution.weights, self.execution.devices.with_drafter(config)
        mesh = devices.mesh if devices.split_drafter else None
        if isinstance(config, TargetConfig):
            check_draft_model(path, open_tensors(path).tensors)
            config, params["drafter"] = _load_target(path, dtype, weights)
        else:
            config, drafter, ids = load_drafter(
                path,
                dtype,
                params["target"]["embed_tokens"],
                target=self.tokenizer.directory,
                keep_bfloat16=weights.tiles,
                mesh=mesh,
                int8=weights.int8,
            )
            params["drafter"] = weights.prepare(drafter, config, mesh)
            params["draft_ids"] = jnp.asarray(ids)
        if devices.mesh is not None:
            params = {"target": params.pop("target"), **replicate(devices.mesh, params)}
        execution = dataclasses.replace(self.execution, devices=devices)
        return dataclasses.replace(self, drafter=config, params=params, execution=execution)

    @classmethod
    def demo(cls, dtype: DTypeLike = "auto") -> DartModel:
        """Loads the small Python code model that is part of the package."""
        parts = (DEMO / part for part in ("target", models.DRAFTER, models.NGRAM))
        return cls.from_pretrained(*parts, dtype=dtype)


def _tell_unused(generation_file: Path) -> None:
    """Warns if transformers would write another text because of the target's generation config."""
    told = generation_file.is_file() and unused_by_default(read_json(generation_file))
    if told:
        warn(f"{generation_file}: {told}")


def _load_target(
    directory: Path, dtype: np.dtype, weights: WeightsForm, mesh: Mesh | None = None
) -> tuple[TargetConfig, Params]:
    """Loads a target, or a smaller model that drafts, as it is computed here."""
    config, params = load_target(
        directory,
        dtype,
        keep_bfloat16=weights.tiles,
        mesh=mesh,
        int8=weights.int8,
    )
    params = weights.prepare(params, config, mesh)
    if jax.default_backend() == "cpu" or mesh is not None or weights.int8:
        config, params = untie(config, params, weights, mesh)
    return config, params


def _count(params: Any) -> str:
    """The number of parameters, such as 1.7 B."""
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def _find_drafter(
    drafter: PathLike, target: TargetConfig, tokenizer: Tokenizer, token: str | bool | None
) -> tuple[Path, DrafterConfig | Eagle3Config | TargetConfig]:
    """Returns a drafter's directory and config; raises UserError if it does not fit the target."""
    directory = hub.resolve(drafter, token=token, patterns=hub.DRAFTER)
    config = read_any_drafter_config(directory)
    check_fit(target, config)
    if isinstance(config, TargetConfig):
        _check_tokens(directory, tokenizer)
    return directory, config


def _check_tokens(directory: Path, tokenizer: Tokenizer) -> None:
    """Raises UserError if a draft model has a tokenizer, and its ids are not the target's tokens.

    Added tokens may differ, as between the base model and the one for chats.
    """
    path = directory / TOKENIZER
    if not path.is_file():
        return
    ours, theirs = (
        {id: text for text, id in one.backend.get_vocab(with_added_tokens=False).items()}
        for one in (tokenizer, Tokenizer.load(path))
    )
    for id in ours.keys() & theirs.keys():
        if ours[id] != theirs[id]:
            raise UserError(
                f"token {id} is {theirs[id]!r} in the draft model's {path} and {ours[id]!r} in the "
                "target's; pass a draft model with the target's tokenizer"
            )
