"""A target with its drafter and its n-gram model, which continue prompts."""

from __future__ import annotations

import dataclasses
import functools
import html
import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
from jax.typing import DTypeLike

from dart_jax.arguments import checked
from dart_jax.decoding.drafting import AnyDrafter, MethodConfig, NgramConfig
from dart_jax.decoding.options import LogitsConfig
from dart_jax.decoding.search.choice import DEFAULT_MEMORY, check_way, make_search
from dart_jax.decoding.search.config import SearchConfig, SearchWay
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.engine import Engine
from dart_jax.engine.model_runner import ModelRunner
from dart_jax.engine.request import Request
from dart_jax.engine.shapes import Shapes, default_search, length_bucket, shapes_of, tree_sizes
from dart_jax.engine.texts import TextTrust
from dart_jax.engine.tree_size import TreeSizes, learned_sizes
from dart_jax.errors import UserError
from dart_jax.generation import Completion, GenerationConfig
from dart_jax.generation.config import GenerationOptions
from dart_jax.generation.prompts import Batch, Chat, Prompt, encode_prompts, is_batch, sequences_of
from dart_jax.generation.text_generation import TextGeneration
from dart_jax.grammar.matching import Grammars, grammars_of
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.loading import (
    PLAIN,
    PathLike,
    check_room,
    find_drafter,
    load_drafter_here,
    load_target_here,
    parts_in_words,
    warn_of_unused,
    with_window,
)
from dart_jax.memory import parse_memory
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import AnyDrafterConfig
from dart_jax.models.kernels.choices import AttentionChoice, CacheDtype, WeightsDtype
from dart_jax.models.networks.pure import dtype_of
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import MeshShape
from dart_jax.named import models
from dart_jax.ngram import NgramModel
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import read_target_config, resolve_dtype
from dart_jax.weights.generation_file import FILE as GENERATION_FILE
from dart_jax.weights.generation_file import load_eos, read_options
from dart_jax.weights.user_cache import enable_compilation_cache, load_ngram

if TYPE_CHECKING:
    import transformers

# The demo model, which is part of the package.
DEMO = models.MODELS["demo"].directory


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DartModel:
    """A target, its drafter and its n-gram model.

    Attributes:
      target: the target's shapes; a tied head has its own kernel where that is faster (`untie`).
      drafter: config of the drafting method, such as the drafter's shapes, or None without one.
      params: see `DecodeParams`.
      ngram: n-gram model of the tree search; None to search with only DART's scores.
      tokenizer: the target's.
      eos: all end-of-sequence ids of the target's generation config.
      execution: how the models are computed.
      search_way: where trees are searched; see `way_here`.
      ngram_device_memory: bytes that the n-gram model may take on the device.
      text_drafts: whether what followed earlier in a text is drafted, with a drafter's own or
        alone; with neither decoding is plain.
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
    text_drafts: bool = True

    def __repr__(self) -> str:
        return f"DartModel({', '.join(f'{name}: {what}' for name, what in self._parts().items())})"

    def _repr_html_(self) -> str:
        """Returns a table of the model's parts, for notebooks."""
        parts = (map(html.escape, part) for part in self._parts().items())
        rows = "".join(f"<tr><th>{name}</th><td>{what}</td></tr>" for name, what in parts)
        return f"<table><caption>DartModel</caption>{rows}</table>"

    def _parts(self) -> dict[str, str]:
        parts = self.target, self.drafter, self.params, self.ngram, self.execution
        return parts_in_words(*parts, text_drafts=self.text_drafts)

    @functools.cached_property
    def generation_config(self) -> GenerationConfig:
        """The target's own generation options, from its `generation_config.json`; the defaults if
        it has none. Used only if passed to `generate`.

        Raises:
          UserError: the file asks for something that is not supported, such as beam search.
        """
        options = read_options(self.tokenizer.directory)
        return (
            GenerationConfig() if options is None else GenerationConfig.from_transformers(options)
        )

    @classmethod
    @checked(weights_dtype="weights", kv_dtype="kv")
    def from_pretrained(
        cls,
        target: PathLike,
        drafter: PathLike | None = None,
        ngram: PathLike | None = None,
        *,
        dtype: DTypeLike = "auto",
        attention: AttentionChoice = "auto",
        weights: WeightsDtype = "stored",
        kv: CacheDtype = "auto",
        search: SearchWay = "auto",
        ngram_device_memory: int | str = DEFAULT_MEMORY,
        mesh: str | None = None,
        drafter_window: int | None = None,
        text_drafts: bool = True,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> DartModel:
        """Loads a model by its name, or from directories or repositories of the Hugging Face hub.

        Programs compiled for the model are kept in the user's cache directory (see
        `enable_compilation_cache`).

        Args:
          target: directory or `owner/name`, in the Hugging Face layout, or a GGUF file; or
            "smollm2" or "demo", which without a drafter has that of the package, and with a DART
            drafter and without an n-gram model likewise.
          drafter: directory or `owner/name` of a drafter, or of a smaller model with the target's
            vocabulary, which drafts token by token. None: only the n-gram model drafts, if there
            is one, and the text itself. "none": nothing drafts, decoding is plain.
          ngram: n-gram file, ours or the reference's `.trie`, which is converted once and kept in
            the user's cache directory; or `owner/name/file` of the hub. None: no n-gram model.
          dtype: of weights and activations; "auto" as for `weights.checkpoint.resolve_dtype`.
          attention: what computes attention to the cache: "native", the C++ core, for CPUs,
            "triton", a kernel for NVIDIA GPUs from the A100 on, "mosaic", one for TPUs, or "dense",
            plain JAX; "auto" is the platform's best.
          weights: "stored" keeps the files' dtypes, on one CPU with the C++ core also in
            blocks of 4 to 8 bits; "float" dequantises them; "int8" rounds the linear layers' to 8
            bits: there in blocks of 32, and their inputs too; elsewhere with a scale for each
            output, and also the weights of a mixture's experts.
          kv: dtype of cached keys and values; "auto" is `dtype`, or bfloat16 with weights in
            blocks. On CPUs "bfloat16" also rounds queries and softmax weights.
          search: what searches draft trees: "host", C++ on the host; "device", JAX, with the n-gram
            model in the device's memory, with a DART drafter; "auto" is the platform's best.
          ngram_device_memory: for "device": bytes, or such as "2GB", for the n-gram model.
          mesh: devices that decode together, such as "model=4" or "data=2,model=4": groups of
            devices that share the weights of target and drafter (`model`), each with some of a
            batch's rows (`data`). None for one device.
          drafter_window: positions that a DART, EAGLE-3 or block drafter sees, its own included, in
            all layers; 0 for all positions; by default what its config says.
          text_drafts: whether what followed earlier in a text is drafted, too.
          revision: branch, tag or commit of the target's repository.
          token: hub token, by default the stored login.

        Raises:
          UserError: something is missing, damaged or not supported, or the parts do not match.
        """
        if isinstance(ngram_device_memory, str):
            ngram_device_memory = parse_memory(ngram_device_memory)
        enable_compilation_cache()
        kind = resolve_dtype(dtype)
        execution = Execution.here(attention, weights, kv, kind)
        if mesh is not None:
            execution = execution.on(MeshShape.parse(mesh).make())
        check_way(search, ngram_device_memory)
        named, plain = models.find(target), drafter == PLAIN
        if plain and ngram is not None:
            raise UserError('an n-gram model drafts; leave it out, or the drafter "none"')
        if named is not None and drafter is None:
            drafter = named.part(models.DRAFTER)
        # The small files first: mismatched parts are reported before the weights are loaded.
        directory = hub.resolve(target, revision=revision, token=token, patterns=hub.TARGET)
        config, tokenizer = read_target_config(directory), Tokenizer.load(directory)
        ngram_model = draft_config = drafter_path = None
        if drafter is not None and not plain:
            drafter_path, draft_config = find_drafter(drafter, config, tokenizer, token)
        draft_config = with_window(draft_config, drafter_window)
        check_room(config, draft_config, kind, execution)
        searches = draft_config is None or draft_config.traits.search is not None
        if named is not None and ngram is None and searches and not plain:
            ngram = named.part(models.NGRAM)
        if ngram is not None:
            if not searches:
                raise UserError(
                    "an n-gram model works with a DART or block drafter or without one, but not "
                    "with this one; pass one of the two (--no-ngram leaves out that of --model)"
                )
            ngram_model = load_ngram(ngram, tokenizer, config.vocab_size, token=token)
        form, devices = execution.weights, execution.devices
        config, target_params = load_target_here(directory, kind, form, devices.mesh)
        params: DecodeParams = {"target": target_params}
        drafting = None if ngram_model is None else NgramConfig()
        eos = load_eos(directory, config.vocab_size)
        warn_of_unused(directory / GENERATION_FILE)
        where = execution.beside(config, target_params), search, ngram_device_memory
        drafts = text_drafts and not plain
        model = cls(config, drafting, params, ngram_model, tokenizer, eos, *where, drafts)
        if drafter_path is None or draft_config is None:
            return model
        return model._with_loaded(drafter_path, draft_config, kind)

    @checked()
    def with_drafter(
        self,
        drafter: PathLike | AnyDrafter | None,
        *,
        drafter_window: int | None = None,
        text_drafts: bool | None = None,
        token: str | bool | None = None,
    ) -> DartModel:
        """Returns a model with another drafting method that shares this target's weights.

        Args:
          drafter: directory or `owner/name`, as for `from_pretrained`; a config that needs no
            parameters, such as `NgramConfig` or `PromptLookupConfig`; or None or "none".
          drafter_window: of a drafter in a directory, as for `from_pretrained`.
          text_drafts: whether what followed earlier in a text is drafted, too; by default as in
            this model, and without a drafter not at all: decoding is plain.
          token: hub token, by default the stored login.

        Raises:
          UserError: as `from_pretrained`.
        """
        drafter, model = None if drafter == PLAIN else drafter, self
        if text_drafts is None:
            text_drafts = self.text_drafts and drafter is not None
        if text_drafts != self.text_drafts:
            model = dataclasses.replace(self, text_drafts=text_drafts)
        if isinstance(drafter, str | os.PathLike):
            path, config = find_drafter(drafter, self.target, self.tokenizer, token)
            config = with_window(config, drafter_window)
            return model._with_loaded(path, config, dtype_of(self.params["target"]))
        with_window(None, drafter_window)
        if drafter == self.drafter:
            return model
        if drafter is not None:
            if not isinstance(drafter, MethodConfig):
                raise UserError("a drafter's parameters are needed; pass its directory")
            if drafter.traits.search == "ngram" and self.ngram is None:
                raise UserError("no n-gram model was loaded; pass one")
        params: DecodeParams = {"target": self.params["target"]}
        devices = self.execution.devices.with_drafter(None)
        execution = dataclasses.replace(self.execution, devices=devices)
        return dataclasses.replace(model, drafter=drafter, params=params, execution=execution)

    def without_pair_scores(self) -> DartModel:
        """Returns the same model without its DART drafter's pair scores, if it has any."""
        if self.drafter is None or not self.drafter.pairs_apart:
            return self
        drafter = {name: part for name, part in self.params["drafter"].items() if name != "pairs"}
        params: DecodeParams = {**self.params, "drafter": drafter}
        return dataclasses.replace(self, drafter=self.drafter.without_pairs(), params=params)

    def _with_loaded(
        self, path: Path, config: AnyDrafterConfig | TargetConfig, dtype: np.dtype
    ) -> DartModel:
        """Returns the model with the parameters of a drafter that fits the target."""
        target, directory = self.params["target"], self.tokenizer.directory
        config, params, execution = load_drafter_here(
            path, config, dtype, target, directory, self.execution
        )
        return dataclasses.replace(self, drafter=config, params=params, execution=execution)

    @classmethod
    def demo(cls, dtype: DTypeLike = "auto") -> DartModel:
        """Loads the small Python code model that is part of the package."""
        return cls.from_pretrained("demo", dtype=dtype)

    @overload
    def generate(
        self,
        prompts: str | Sequence[int] | Chat,
        config: GenerationConfig | None = None,
        *,
        num_return_sequences: None = None,
        **options: Unpack[GenerationOptions],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompts: str | Sequence[int] | Chat,
        config: GenerationConfig | transformers.GenerationConfig | None = None,
        *,
        num_return_sequences: int,
        **options: Unpack[GenerationOptions],
    ) -> list[Completion]: ...
    @overload
    def generate(
        self,
        prompts: str | Sequence[int] | Chat,
        config: transformers.GenerationConfig,
        *,
        num_return_sequences: None = None,
        **options: Unpack[GenerationOptions],
    ) -> Completion | list[Completion]: ...
    @overload
    def generate(
        self,
        prompts: Batch,
        config: GenerationConfig | transformers.GenerationConfig | None = None,
        *,
        num_return_sequences: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[Completion]: ...
    @overload
    def generate(
        self,
        prompts: Prompt,
        config: GenerationConfig | transformers.GenerationConfig | None = None,
        *,
        num_return_sequences: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Completion | list[Completion]: ...
    def generate(
        self,
        prompts: Prompt | Batch,
        config: GenerationConfig | transformers.GenerationConfig | None = None,
        *,
        num_return_sequences: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Completion | list[Completion]:
        """Continues prompts.

        Args:
          prompts: text, token ids, or a chat (a list of messages with `role` and `content`,
            formatted with the target's chat template); or a list of such prompts, of any lengths,
            which are decoded as a batch.
          config: generation options, here or in `transformers`' class;
            `DartModel.generation_config` has the target's own.
          num_return_sequences: continue each prompt this many times, with different draws.
          options: fields of `GenerationConfig`, which override those of `config`; None leaves one
            unchanged.

        Returns:
          A completion; or a list of completions for a list of prompts or with
          `num_return_sequences`, with the same prompt's next to each other.

        Raises:
          UserError: an option is unknown or out of range, or a prompt cannot be decoded.
        """
        several = num_return_sequences is not None or sequences_of(config) > 1
        generation = self.stream(
            prompts, config, num_return_sequences=num_return_sequences, **options
        )
        generation.run()
        completions = generation.completions
        return completions if several or is_batch(prompts) else completions[0]

    def stream(
        self,
        prompts: Prompt | Batch,
        config: GenerationConfig | transformers.GenerationConfig | None = None,
        *,
        num_return_sequences: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> TextGeneration:
        """Continues prompts, step by step.

        Iterating over the result, with `for` or `async for`, yields the text in pieces (`Piece`, a
        `str` with a `drafted` flag and the `row` of its text in the batch), each as soon as it is
        final and never splitting a character; joined they are the text that `generate` returns.
        Its `completions` are the completions so far; `completion` is the first one. Arguments and
        errors are as for `generate`.
        """
        sequences = sequences_of(config) if num_return_sequences is None else num_return_sequences
        config = GenerationConfig.of(config, options)
        encoded = encode_prompts(
            self.tokenizer, prompts, config, sequences, self.eos, self.target.vocab_size
        )
        if not encoded.tokens:
            raise UserError("no prompts")
        grammar = None
        if config.structured_outputs is not None:
            grammar = self.grammars.check(StructuredOutputs.of(config.structured_outputs))
        longest, most = max(map(len, encoded.tokens)), self.target.max_length
        limit = min(config.max_length or most, most)
        length = min(longest + max(config.max_new_tokens, 1), limit)
        offline = EngineConfig(
            slots=len(encoded.tokens),
            max_length=min(length_bucket(length), most),
            tree_nodes=config.tree_nodes,
            offline=True,
        )
        decoding = {"search": config.search, "use_ngram": config.use_ngram, "logits": config.logits}
        engine = self.engine(offline, **decoding)
        requests = Request.several(
            encoded.tokens,
            config.max_new_tokens,
            config.sampling,
            seed=config.seed,
            max_length=config.max_length,
            stop_ids=encoded.stop_ids,
            grammar=grammar,
            logprobs=config.logprobs,
        )
        return TextGeneration(engine, self.tokenizer, encoded, requests)

    @property
    def grammars(self) -> Grammars:
        """Grammars for the target's tokens."""
        return grammars_of(self.tokenizer, self.target.vocab_size, self.eos)

    def engine(
        self,
        options: EngineConfig = EngineConfig(),
        *,
        search: SearchConfig | None = None,
        use_ngram: bool = True,
        logits: LogitsConfig = LogitsConfig(),
        coupled: bool = True,
        candidates: int = DecodeConfig.candidates,
        acceptance: Callable[..., Any] | None = None,
        policy: Callable[[Shapes], TreeSizes] | None = None,
    ) -> Engine:
        """Returns an engine that decodes requests with this model.

        Args:
          options: its options.
          search: parameters of the tree search, by default the drafter's own.
          use_ngram: use the n-gram model in the search, if there is one.
          logits: processors of the target's logits, and what is reported about them.
          coupled: whether drafts are ranked with the noise of the target's draws.
          candidates: tokens of each position that the search chooses from; with 1 it makes chains.
          acceptance: see `DecodeConfig`.
          policy: makes what chooses the sizes of trees, by default what this model's engines have
            learned.

        Raises:
          UserError: the options do not fit the model, or `search_way` cannot be taken.
        """
        largest, nodes = tree_sizes(self.drafter, text=self.text_drafts)[-1], options.tree_nodes
        nodes = largest if nodes is None else nodes
        if nodes and not largest:
            raise UserError("nothing drafts; pass a drafter, or leave the tree's nodes out")
        config = DecodeConfig(
            self.target,
            self.drafter if nodes else None,
            nodes,
            candidates=candidates,
            logits=logits,
            coupled=coupled,
            text=self.text_drafts and nodes > 0,
            acceptance=acceptance if nodes else None,
            execution=self.execution,
        )
        shapes = shapes_of(config, options)
        config = dataclasses.replace(config, nodes=shapes.most_nodes)
        tree_search = None
        if config.searches:
            alone = config.host_buffer.candidates == 0
            if alone and not (use_ngram and self.ngram):
                raise UserError("drafting with only an n-gram model needs one; pass one and use it")
            tree_search = make_search(
                config.host_buffer,
                config.nodes,
                ngram=self.ngram if use_ngram else None,
                eos=self.eos,
                search=search or default_search(self.drafter),
                way=self.search_way,
                memory=self.ngram_device_memory,
            )
        sizes = (
            policy(shapes) if policy else learned_sizes(config, tree_search, shapes, self._learned)
        )
        runner = ModelRunner(config, self.params, tree_search, options, shapes)
        return Engine(runner, options, sizes, self._text_trust, grammars=self.grammars)

    @functools.cached_property
    def _text_trust(self) -> TextTrust:
        return TextTrust()

    @functools.cached_property
    def _learned(self) -> dict[Hashable, TreeSizes]:
        return {}
