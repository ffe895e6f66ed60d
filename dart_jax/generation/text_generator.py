"""What a loaded model does: `generate` and `stream` continue prompts, `decoder` tokens."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack, cast, overload

import numpy as np

from dart_jax.decoding.drafting import AnyDrafter, NgramConfig
from dart_jax.decoding.logits import LogitsConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.choice import make_search
from dart_jax.decoding.search.config import SearchConfig, SearchWay
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.decoding.tree import MAX_NODES
from dart_jax.engine.decoder import Decoder, TreeMemory
from dart_jax.errors import UserError
from dart_jax.files import user_cache
from dart_jax.generation.config import GenerationConfig, GenerationOptions
from dart_jax.generation.defaults import (
    adaptive_tree,
    default_search,
    default_tree,
    length_bucket,
)
from dart_jax.generation.prompts import (
    Batch,
    Chat,
    Prompt,
    check_ids,
    encode_prompt,
    is_batch,
    split_stops,
)
from dart_jax.generation.results import Completion
from dart_jax.generation.text_generation import TextGeneration
from dart_jax.generation.transformers_options import return_sequences
from dart_jax.models.config import TargetConfig
from dart_jax.models.platform.execution import Execution
from dart_jax.models.sharding.mesh import several_processes
from dart_jax.ngram import NgramModel
from dart_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import transformers


class TextGenerator:
    """What a loaded model does; its subclass `dart_jax.DartModel` loads it.

    Attributes:
      target: the target's shapes.
      drafter: config of the drafting method; None for plain decoding.
      params: see `DecodeParams`.
      ngram: n-gram model of the tree search, if any.
      tokenizer: the target's.
      eos: ids that end a text.
      execution: how the models are computed.
      search_way: where trees are searched.
      ngram_device_memory: bytes that the n-gram model may take on the device.
    """

    target: TargetConfig
    drafter: AnyDrafter | None
    params: DecodeParams
    ngram: NgramModel | None
    tokenizer: Tokenizer
    eos: tuple[int, ...]
    execution: Execution
    search_way: SearchWay
    ngram_device_memory: int

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
        prompts: np.ndarray,
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
          config: generation options, here or in `transformers`' class; None for the defaults below;
            `DartModel.generation_config` has the target's own.
          num_return_sequences: continue each prompt this many times, with different draws.
          options: these override `config`; None leaves one unchanged.
            max_new_tokens: maximum number of new tokens (256).
            max_length: maximum length of prompt and new tokens together, beside max_new_tokens.
            do_sample: False decodes greedily; True samples, by default at temperature 1.
            temperature: sampling temperature; 0, the default, decodes greedily.
            top_k: sample from the k most likely tokens; 0 for all (0).
            top_p: sample from the most likely tokens whose probability reaches p (1).
            min_p: drop tokens less likely than this fraction of the most likely one (0).
            repetition_penalty: above 1, tokens of prompt and text become less likely (1).
            seed: the same seed gives the same text, drafted or not (0).
            stop: stop strings and token ids, or a single one.
            eos_token_id: ids that end a text, instead of the target's own.
            logprobs: report each new token's log-probability, and this many most likely tokens.
            output_scores: report the scores of the whole vocabulary.
            logits_processor: pure JAX functions (tokens, logits, length) -> logits of a row.
            tree_nodes: nodes of the draft tree; 0 for plain decoding (by default what pays best).
            search: parameters of the tree search.
            use_ngram: use the n-gram model, if there is one (True).
            chat_template_kwargs: arguments of the chat template.

        Returns:
          A completion; or a list of completions for a list of prompts or with
          `num_return_sequences`, those of the same prompt next to each other.

        Raises:
          UserError: an option is unknown or out of range, or a prompt cannot be decoded.
        """
        several = num_return_sequences is not None or _sequences(config) > 1
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
        Its `completions` are the completions so far; `completion` is the first one.

        Args:
          prompts: as for `generate`.
          config: as for `generate`.
          num_return_sequences: as for `generate`.
          options: as for `generate`.

        Raises:
          UserError: as `generate`.
        """
        sequences = _sequences(config) if num_return_sequences is None else num_return_sequences
        made = GenerationConfig.of(config, options)
        as_batch = cast(Sequence[Prompt], prompts if is_batch(prompts) else [prompts])
        return self._start(as_batch, made, sequences)

    def _start(
        self, prompts: Sequence[Prompt], config: GenerationConfig, sequences: int
    ) -> TextGeneration:
        """Encodes the prompts and sets up their generation; raises UserError as `generate`."""
        if isinstance(sequences, bool) or not isinstance(sequences, numbers.Integral):
            raise UserError(f"num_return_sequences must be an integer, got {sequences!r}")
        if sequences < 1:
            raise UserError(f"num_return_sequences must be at least 1, got {sequences}")
        if sequences > 1 and config.sampling.temperature == 0:
            raise UserError(
                "greedy decoding gives the same text every time; set do_sample=True to use "
                "num_return_sequences"
            )
        vocab_size = self.target.vocab_size
        strings, ids = split_stops(
            self.tokenizer, cast(tuple[str | int, ...], config.stop), vocab_size
        )
        eos = self.eos
        if config.eos_token_id is not None:
            eos = cast(tuple[int, ...], config.eos_token_id)
            check_ids("eos_token_id", eos, vocab_size, self.tokenizer)
        if (config.logprobs or 0) > vocab_size:
            raise UserError(f"logprobs={config.logprobs}, but there are {vocab_size} tokens")
        encoded = (
            encode_prompt(self.tokenizer, prompt, config.chat_template_kwargs, vocab_size)
            for prompt in prompts
        )
        tokens = [prompt for prompt in encoded for _ in range(sequences)]
        limit = min(config.max_length or self.target.max_length, self.target.max_length)
        longest = max(map(len, tokens), default=0) + max(config.max_new_tokens, 1)
        nodes, sizes, search = self._tree(config, len(tokens))
        decoder = self.decoder(
            nodes=nodes,
            sizes=sizes,
            max_length=min(length_bucket(min(longest, limit)), self.target.max_length),
            sampling=config.sampling,
            stop=(*eos, *ids),
            use_ngram=config.use_ngram,
            search=search,
            logits=config.logits,
        )
        return TextGeneration(decoder, self.tokenizer, tokens, config, strings)

    def _tree(
        self, config: GenerationConfig, batch: int
    ) -> tuple[int, tuple[int, ...], SearchConfig]:
        """Returns the number of tree nodes to begin with, the sizes that follow, if they change,
        and the search parameters."""
        nodes, search = default_tree(self.drafter, batch)
        if self.drafter is None:
            return 0, (), search
        if config.tree_nodes is not None:
            # The default search is tuned for the default size.
            search = search if config.tree_nodes == nodes else default_search(self.drafter)
            return config.tree_nodes, (), config.search or search
        sizes, search = adaptive_tree(self.drafter, batch)
        return nodes, sizes, config.search or search

    @functools.cached_property
    def _tree_memory(self) -> TreeMemory:
        # Processes that decode together must know the same.
        together = several_processes(self.execution.devices.mesh)
        return TreeMemory.at(None if together else user_cache() / "tree_costs")

    def decoder(
        self,
        *,
        nodes: int,
        max_length: int,
        sizes: tuple[int, ...] = (),
        sampling: Sampling | None = None,
        stop: tuple[int, ...] | None = None,
        use_ngram: bool = True,
        search: SearchConfig | None = None,
        logits: LogitsConfig = LogitsConfig(),
        coupled: bool = True,
    ) -> Decoder:
        """Returns a decoder with draft trees of `nodes` nodes.

        Args:
          nodes: N; 0 for plain decoding.
          max_length: maximum length of prompt and new tokens together.
          sizes: numbers of nodes, ascending from 0, between which decoding changes as they pay,
            beginning with N; empty for N nodes in every step.
          sampling: how the target samples; None decodes greedily.
          stop: ids that end a sequence; None for the model's own.
          use_ngram: use the n-gram model in the search, if there is one.
          search: parameters of a DART drafter's search; unused when only the
            n-gram model drafts.
          logits: processors of the target's logits, and what is reported about them.
          coupled: whether drafts are ranked with the noise of the target's draws.

        Raises:
          UserError: `nodes` or `sizes` are out of range, or need a drafter that was not loaded, or
            `max_length` exceeds the target's positions, or trees cannot be searched where
            `search_way` says.
        """
        if max_length > self.target.max_length:
            raise UserError(
                f"a cache of {max_length} tokens is beyond the target's {self.target.max_length} "
                "positions; lower the length"
            )
        if not 0 <= nodes <= MAX_NODES:
            raise UserError(f"a tree cannot have {nodes} nodes; choose 0 to {MAX_NODES}")
        if nodes and self.drafter is None:
            raise UserError("no drafter was loaded; pass one, or decode with 0 nodes")
        if sizes and (sizes[0] != 0 or nodes not in sizes[1:] or sorted(set(sizes)) != [*sizes]):
            raise UserError(f"sizes must ascend from 0 and include {nodes} nodes, got {sizes}")
        if not 0 <= max(sizes, default=0) <= MAX_NODES:
            raise UserError(f"a tree cannot have {sizes[-1]} nodes; choose 0 to {MAX_NODES}")
        largest = sizes[-1] if sizes else nodes
        config = DecodeConfig(
            self.target,
            self.drafter if nodes else None,
            largest,
            logits=logits,
            coupled=coupled,
            execution=self.execution,
        )
        made = None
        if config.searches:
            if isinstance(self.drafter, NgramConfig) and not (use_ngram and self.ngram):
                raise UserError("drafting with only an n-gram model needs one; pass one and use it")
            made = make_search(
                config.host_buffer,
                largest,
                ngram=self.ngram if use_ngram else None,
                eos=self.eos,
                search=search or default_search(self.drafter),
                way=self.search_way,
                memory=self.ngram_device_memory,
            )
        return Decoder(
            config,
            self.params,
            made,
            max_length,
            sampling or Sampling(),
            self.eos if stop is None else stop,
            sizes=sizes,
            first=nodes if sizes else None,
            memory=self._tree_memory,
        )


def _sequences(config: GenerationConfig | transformers.GenerationConfig | None) -> int:
    """How often a config asks each prompt to be continued."""
    return 1 if isinstance(config, GenerationConfig | None) else return_sequences(config)
