"""A decoder: models, tree search and loop, combined for batches of token prompts."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import numpy as np

from dart_jax.decoding.adaptive.memory import TreeMemory
from dart_jax.decoding.adaptive.policy import Learned
from dart_jax.decoding.drafting import drafter_title
from dart_jax.decoding.loop import Generation, generate_fused, generate_streaming, measure_costs
from dart_jax.decoding.prompts import CHUNK, Options, Prompts
from dart_jax.decoding.pruner import Pruner
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.state import DecodeConfig, DecodeParams

Loop = Literal["fused", "host"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Decoder:
    """Decodes batches of token prompts with a fixed configuration.

    Attributes:
      config: what the step is compiled for.
      params: the models' parameters.
      pruner: the tree search; None if trees are built on the device, or for plain decoding.
      max_length: maximum length of prompt and new tokens together.
      sampling: how the target samples.
      stop: ids that end a sequence.
      loop: `fused`, one jitted program, or `host`, step and search called in turn from the host.
      chunk: tokens of a prompt that are read at a time.
      memory: what is known about tree sizes, if steps choose them.
    """

    config: DecodeConfig
    params: DecodeParams
    pruner: Pruner | None
    max_length: int
    sampling: Sampling
    stop: tuple[int, ...]
    loop: Loop
    chunk: int = CHUNK
    memory: TreeMemory = dataclasses.field(default_factory=TreeMemory)

    def __repr__(self) -> str:
        method = "plain decoding"
        if self.config.drafting is not None:
            title = drafter_title(self.config.drafter)
            most = "at most " if self.config.sizes else ""
            method = f"drafting: {title}, trees of {most}{self.config.nodes} nodes"
        return f"Decoder({method}, up to {self.max_length} tokens, {self.loop} loop)"

    def pad(
        self, prompts: list[np.ndarray], max_new_tokens: int, limit: int | None = None
    ) -> Prompts:
        """Pads prompts to a batch for this decoder; see `Prompts.pad`."""
        vocab_size = self.config.target.vocab_size
        return Prompts.pad(prompts, max_new_tokens, self.max_length, vocab_size, limit, self.chunk)

    def options(self, seed: int) -> Options:
        """The options of a batch; raises UserError if the seed is out of range."""
        return Options(self.sampling, self.stop, seed)

    def __call__(self, prompts: list[np.ndarray], max_new_tokens: int, seed: int = 0) -> Generation:
        """Continues token prompts, each int [n], by up to `max_new_tokens`.

        Raises:
          UserError: as `Prompts.pad` and `Options`.
        """
        padded, options = self.pad(prompts, max_new_tokens), self.options(seed)
        learned = self.learned(padded, options)
        generate = generate_fused if self.loop == "fused" else generate_streaming
        return generate(self.config, self.params, self.pruner, padded, options, learned)

    def learned(
        self, prompts: Prompts, options: Options, *, fused: bool | None = None
    ) -> Learned | None:
        """Returns what is known about the sizes of trees for such a batch, and measures what steps
        cost if that is not known; None if all trees are of one size.

        Args:
          prompts: the batch.
          options: how it will be decoded.
          fused: the loop that will run; None for the decoder's own.
        """
        if not self.config.sizes:
            return None
        fused = self.loop == "fused" if fused is None else fused
        sampling = jax.tree.structure(options.sampling.values())
        program = (self.config, len(prompts.tokens), prompts.max_length, fused, str(sampling))
        return self.memory.policy(
            program,
            options.sampling,
            self.config.nodes,
            lambda: measure_costs(
                self.config, self.params, self.pruner, prompts, options, fused=fused
            ),
        )
