"""A loaded target with its drafter, and the decoders built from them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dart_jax.decoding.decoder import Decoder, Loop
from dart_jax.decoding.drafting import AnyDrafter, NgramConfig, PromptLookupConfig
from dart_jax.decoding.pruner import Pruner, SearchConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.errors import UserError
from dart_jax.generation import Completion, GenerationConfig, default_tree, length_bucket
from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.target import untie
from dart_jax.ngram import NgramModel
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.text_generation import Prompt, TextGeneration, encode_prompt, is_batch, split_stops
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import (
    check_fit,
    load_drafter,
    load_eos,
    load_target,
    read_any_drafter_config,
    read_target_config,
    weights_dtype,
)
from dart_jax.weights.user_cache import enable_compilation_cache, load_ngram

PathLike = str | os.PathLike[str]


# The demo model, which is part of the package.
DEMO = Path(__file__).parent / "demo"


@dataclasses.dataclass(frozen=True, eq=False)
class DartModel:
    """A target, its drafter and its n-gram model.

    Attributes:
      target: the target's shapes; on CPU a tied head gets its own kernel, which is faster.
      drafter: config of the drafting method, such as the drafter's shapes; None for plain decoding.
      params: see `DecodeParams`.
      ngram: n-gram model of the tree search; None searches with only the DART drafter's scores.
      tokenizer: the target's.
      eos: all end-of-sequence ids of the target's generation config.
    """

    target: TargetConfig
    drafter: AnyDrafter | None
    params: DecodeParams
    ngram: NgramModel | None
    tokenizer: Tokenizer
    eos: tuple[int, ...]

    @classmethod
    def from_pretrained(
        cls,
        target: PathLike,
        drafter: PathLike | None = None,
        ngram: PathLike | None = None,
        *,
        dtype: DTypeLike = "auto",
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> DartModel:
        """Loads a model from local directories or repositories of the Hugging Face hub.

        Programs compiled for the model are kept in the user's cache directory (see
        `enable_compilation_cache`).

        Args:
          target: directory or `owner/name`, in the Hugging Face layout.
          drafter: directory or `owner/name` of a DART or EAGLE-3 drafter, or of a smaller model
            with the target's vocabulary, which drafts token by token. None: drafts with the n-gram
            model only, if there is one; otherwise plain decoding.
          ngram: n-gram file, ours or the reference's `.trie`, which is converted once and kept in
            the user's cache directory; or `owner/name/file` of the hub. None: no n-gram model.
          dtype: of weights and activations; "auto" is float32 on CPU, otherwise bfloat16.
          revision: branch, tag or commit of the target's repository.
          token: hub token; None uses the stored login.

        Raises:
          UserError: something is missing, damaged or not supported, or the parts do not match.
        """
        enable_compilation_cache()
        on_cpu = jax.default_backend() == "cpu"
        kind = weights_dtype(dtype)
        # Read the small files first, so that mismatched parts are reported before the weights are
        # loaded.
        directory = hub.resolve(target, revision=revision, token=token, patterns=hub.TARGET)
        config, tokenizer = read_target_config(directory), Tokenizer.load(directory)
        if tokenizer.vocab_size > config.vocab_size:
            raise UserError(
                f"{target}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, but the target "
                f"has embeddings for {config.vocab_size} tokens; use the target's own tokenizer"
            )
        ngram_model = draft_config = drafter_path = None
        if drafter is not None:
            drafter_path, draft_config = _find_drafter(drafter, config, token)
        if ngram is not None:
            if not isinstance(draft_config, DrafterConfig | None):
                raise UserError(
                    "an n-gram model works with a DART drafter or without a drafter, but not with "
                    "this drafter; pass one of the two (--no-ngram leaves out the demo's)"
                )
            ngram_model = load_ngram(ngram, tokenizer, config.vocab_size, token=token)
        config, target_params = load_target(directory, kind)
        if on_cpu:
            config, target_params = untie(config, target_params)
        params: DecodeParams = {"target": target_params}
        drafting = None if ngram_model is None else NgramConfig()
        model = cls(config, drafting, params, ngram_model, tokenizer, load_eos(directory))
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
            path, config = _find_drafter(drafter, self.target, token)
            return self._with_loaded(path, config, self.params["target"]["embed_tokens"].dtype)
        if drafter == self.drafter:
            return self
        if drafter is not None:
            if not isinstance(drafter, NgramConfig | PromptLookupConfig):
                raise UserError("a drafter's parameters are needed; pass its directory")
            if isinstance(drafter, NgramConfig) and self.ngram is None:
                raise UserError("no n-gram model was loaded; pass one")
        # Drop the previous drafter's weights.
        return dataclasses.replace(self, drafter=drafter, params={"target": self.params["target"]})

    def _with_loaded(
        self, path: Path, config: DrafterConfig | Eagle3Config | TargetConfig, dtype: np.dtype
    ) -> DartModel:
        """Returns the model with the parameters of a drafter that fits the target."""
        params: DecodeParams = {"target": self.params["target"]}
        if isinstance(config, TargetConfig):
            config, params["drafter"] = load_target(path, dtype)
            if jax.default_backend() == "cpu":
                config, params["drafter"] = untie(config, params["drafter"])
        else:
            embedding = params["target"]["embed_tokens"]
            _, params["drafter"], ids = load_drafter(path, dtype, embedding)
            params["draft_ids"] = jnp.asarray(ids)
        return dataclasses.replace(self, drafter=config, params=params)

    @classmethod
    def demo(cls, dtype: DTypeLike = "auto") -> DartModel:
        """Loads the small Python code model that is part of the package."""
        return cls.from_pretrained(
            DEMO / "target", DEMO / "drafter", DEMO / "ngram.dng", dtype=dtype
        )

    @overload
    def generate(
        self, prompts: str, config: GenerationConfig | None = None, **options: Any
    ) -> Completion: ...
    @overload
    def generate(
        self, prompts: Any, config: GenerationConfig | None = None, **options: Any
    ) -> Any: ...
    def generate(
        self,
        prompts: Prompt | list[Prompt],
        config: GenerationConfig | None = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Continues prompts.

        Args:
          prompts: text, token ids, or a chat (a list of messages with `role` and `content`,
            formatted with the target's chat template); or a list of such prompts, of any lengths,
            which are decoded as a batch.
          config: generation options; None is `GenerationConfig()`.
          options: fields of `GenerationConfig`, which override those of `config`.

        Returns:
          A completion, or a list of completions for a list of prompts.

        Raises:
          UserError: an option is unknown or out of range, or a prompt cannot be decoded.
        """
        batch = is_batch(prompts)
        as_batch: Any = prompts if batch else [prompts]
        generation = self._start(as_batch, GenerationConfig.of(config, options))
        generation.run()
        return generation.completions if batch else generation.completions[0]

    def stream(
        self, prompt: Prompt, config: GenerationConfig | None = None, **options: Any
    ) -> TextGeneration:
        """Continues one prompt, step by step.

        Iterating over the result yields the text in pieces (`Piece`, a `str` with a `drafted`
        flag), each as soon as it is final and never splitting a character; joined they are the
        text that `generate` returns. Its `completion` holds the completion so far.

        Args:
          prompt: text, token ids or a chat.
          config: generation options; None is `GenerationConfig()`.
          options: fields of `GenerationConfig`, which override those of `config`.

        Raises:
          UserError: as `generate`.
        """
        return self._start([prompt], GenerationConfig.of(config, options))

    def _start(self, prompts: Sequence[Prompt], config: GenerationConfig) -> TextGeneration:
        """Encodes the prompts and sets up their generation; raises UserError as `generate`."""
        strings, ids = split_stops(self.tokenizer, cast(tuple[str | int, ...], config.stop))
        tokens = [encode_prompt(self.tokenizer, prompt, config) for prompt in prompts]
        longest = max(map(len, tokens), default=0) + max(config.max_new_tokens, 1)
        nodes, search = self._tree(config)
        decoder = self.decoder(
            nodes=nodes,
            max_length=min(length_bucket(longest), self.target.max_length),
            sampling=config.sampling,
            stop=(*self.eos, *ids),
            use_ngram=config.use_ngram,
            search=search,
        )
        return TextGeneration(decoder, self.tokenizer, tokens, config, strings)

    def _tree(self, config: GenerationConfig) -> tuple[int, SearchConfig]:
        """Returns the number of tree nodes and the search parameters."""
        nodes, search = default_tree(self.drafter)
        if self.drafter is None:
            nodes = 0
        if config.nodes is not None:
            # The default search is tuned for the default size.
            nodes, search = config.nodes, search if config.nodes == nodes else SearchConfig()
        return nodes, config.search or search

    def decoder(
        self,
        *,
        nodes: int,
        max_length: int,
        sampling: Sampling | None = None,
        stop: tuple[int, ...] | None = None,
        use_ngram: bool = True,
        search: SearchConfig | None = None,
        loop: Loop = "fused",
    ) -> Decoder:
        """Returns a decoder with draft trees of `nodes` nodes.

        Args:
          nodes: N; 0 for plain decoding.
          max_length: maximum length of prompt and new tokens together.
          sampling: how the target samples; None decodes greedily.
          stop: ids that end a sequence; None for the model's own.
          use_ngram: use the n-gram model in the search, if there is one.
          search: parameters of a DART drafter's search; unused when only the
            n-gram model drafts.
          loop: see `Decoder`.

        Raises:
          UserError: `nodes` is negative or needs a drafter that was not loaded, or `max_length`
            exceeds the target's positions.
        """
        if max_length > self.target.max_length:
            raise UserError(
                f"a cache of {max_length} tokens is beyond the target's {self.target.max_length} "
                "positions; lower the length"
            )
        if nodes < 0:
            raise UserError(f"a tree cannot have {nodes} nodes")
        if nodes and self.drafter is None:
            raise UserError("no drafter was loaded; pass one, or decode with 0 nodes")
        config = DecodeConfig(self.target, self.drafter if nodes else None, nodes)
        pruner = None
        if config.searches:
            if isinstance(self.drafter, NgramConfig) and not (use_ngram and self.ngram):
                raise UserError("drafting with only an n-gram model needs one; pass one and use it")
            pruner = Pruner(
                config.host_buffer,
                nodes,
                ngram=self.ngram if use_ngram else None,
                eos=self.eos,
                search=search or SearchConfig(),
            )
        return Decoder(
            config,
            self.params,
            pruner,
            max_length,
            sampling or Sampling(),
            self.eos if stop is None else stop,
            loop,
        )


def _find_drafter(
    drafter: PathLike, target: TargetConfig, token: str | bool | None
) -> tuple[Path, DrafterConfig | Eagle3Config | TargetConfig]:
    """Returns a drafter's directory and config; raises UserError if it does not fit the target."""
    directory = hub.resolve(drafter, token=token, patterns=hub.DRAFTER)
    config = read_any_drafter_config(directory)
    check_fit(target, config)
    return directory, config
