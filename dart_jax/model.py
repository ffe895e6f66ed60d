"""A loaded target with what drafts for it, and decoders made from it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jax.typing import DTypeLike

from dart_jax.checkpoint import check_fit, load_drafter, load_eos, load_target, load_tokenizer
from dart_jax.config import DrafterConfig, TargetConfig
from dart_jax.errors import UserError
from dart_jax.loop import Generation, Prompts, generate_fused, generate_streaming
from dart_jax.ngram import NgramModel
from dart_jax.ngram.fingerprint import check_tokenizer
from dart_jax.pruner import Pruner, SearchConfig
from dart_jax.sampling import Sampling
from dart_jax.step import DecodeConfig, DecodeParams
from dart_jax.target import untie

PathLike = str | os.PathLike[str]
Loop = Literal["fused", "host"]

# The model that comes with the package.
DEMO = Path(__file__).parent / "demo"


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
    """Generates for batches of prompts in one fixed way.

    Attributes:
      config: what the step is compiled for.
      params: the models' parameters.
      pruner: the tree search; None decodes plainly.
      max_length: cache rows: prompt and new tokens together.
      loop: `fused`, one jitted program, or `host`, step and search in turn.
    """

    config: DecodeConfig
    params: DecodeParams
    pruner: Pruner | None
    max_length: int
    loop: Loop

    def __call__(self, prompts: list[np.ndarray], max_new_tokens: int, seed: int = 0) -> Generation:
        """Continues token prompts, each int [n], by up to `max_new_tokens`.

        Raises:
          UserError: as `Prompts.pad`.
        """
        padded = Prompts.pad(
            prompts, max_new_tokens, self.max_length, self.config.target.vocab_size
        )
        generate = generate_fused if self.loop == "fused" else generate_streaming
        # On recent GPUs a float32 product would otherwise be rounded to 19 bits.
        with jax.default_matmul_precision("highest"):
            return generate(self.config, self.params, self.pruner, padded, seed=seed)


@dataclasses.dataclass(frozen=True, eq=False)
class DartModel:
    """A target, its drafter and its n-gram model.

    Attributes:
      target: the target's shapes.
      drafter: the drafter's; None if there is none.
      params: see `DecodeParams`.
      ngram: n-gram model of the tree search; None searches by the drafter alone.
      tokenizer: the target's.
      eos: ids that end a sequence.
    """

    target: TargetConfig
    drafter: DrafterConfig | None
    params: DecodeParams
    ngram: NgramModel | None
    tokenizer: tokenizers.Tokenizer
    eos: tuple[int, ...]
    _pruners: dict[tuple[int, bool, SearchConfig], Pruner] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(
        cls,
        target: PathLike = DEMO / "target",
        drafter: PathLike | None = DEMO / "drafter",
        ngram: PathLike | None = DEMO / "ngram.dng",
        dtype: DTypeLike | None = None,
    ) -> DartModel:
        """Reads local directories; without arguments the demo model.

        Args:
          target: Hugging Face directory with `tokenizer.json`.
          drafter: directory of the reference's layout, or None.
          ngram: file that `NgramModel.save` wrote, or None.
          dtype: of weights and activations; None takes float32 on CPU, else bfloat16.

        Raises:
          UserError: something is missing or damaged, or the parts do not fit one another.
        """
        on_cpu = jax.default_backend() == "cpu"
        kind = dtype or (jnp.float32 if on_cpu else jnp.bfloat16)
        config, target_params = load_target(target, kind)
        tokenizer = load_tokenizer(target)
        if tokenizer.get_vocab_size() > config.vocab_size:
            raise UserError(
                f"{target}: the tokenizer knows {tokenizer.get_vocab_size()} tokens, the target "
                f"{config.vocab_size}"
            )
        if on_cpu:
            config, target_params = untie(config, target_params)
        params: DecodeParams = {"target": target_params}
        drafter_config = None
        if drafter is not None:
            drafter_config, params["drafter"], ids = load_drafter(drafter, kind)
            check_fit(config, drafter_config)
            params["draft_ids"] = jnp.asarray(ids)
        ngram_model = None if ngram is None else NgramModel.load(ngram)
        if ngram_model is not None:
            check_tokenizer(ngram_model, tokenizer, str(ngram), config.vocab_size)
        return cls(config, drafter_config, params, ngram_model, tokenizer, load_eos(target))

    def decoder(
        self,
        *,
        nodes: int,
        max_length: int,
        sampling: Sampling | None = None,
        use_ngram: bool = True,
        search: SearchConfig | None = None,
        loop: Loop = "fused",
    ) -> Decoder:
        """A decoder with trees of `nodes` nodes; 0 decodes plainly.

        Raises:
          UserError: trees are asked for without a drafter, or a cache longer than the target's
            positions.
        """
        if max_length > self.target.max_position_embeddings:
            raise UserError(
                f"a cache of {max_length} tokens is beyond the target's "
                f"{self.target.max_position_embeddings} positions; lower --max-length"
            )
        sampling = sampling or Sampling()
        if nodes == 0:
            config = DecodeConfig(self.target, sampling=sampling, eos=self.eos)
            return Decoder(config, self.params, None, max_length, loop)
        if nodes < 0:
            raise UserError(f"a tree cannot have {nodes} nodes")
        if self.drafter is None:
            raise UserError("no drafter was loaded; pass --drafter or decode with 0 nodes")
        config = DecodeConfig(self.target, self.drafter, nodes, sampling, self.eos)
        # The fused loop is compiled for one pruner, so decoders alike must share theirs.
        search = search or SearchConfig()
        key = (nodes, use_ngram, search)
        if key not in self._pruners:
            ngram = self.ngram if use_ngram else None
            self._pruners[key] = Pruner(
                config.handover, nodes, ngram=ngram, eos=self.eos, search=search
            )
        return Decoder(config, self.params, self._pruners[key], max_length, loop)
