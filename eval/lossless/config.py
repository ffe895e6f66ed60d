"""Options of `eval.lossless`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from dart_jax.data.stdlib import HELD_OUT
from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least, check_some
from eval.methods.choice import MethodChoice

if TYPE_CHECKING:
    from dart_jax.decoding.options import Sampling

# Tokens of a prompt, the first of a function's, so that few programs are compiled.
TEXT_TOKENS = 32

# The distribution test: sequences per batch, tokens per prompt, tokens sampled, number of prompts.
SAMPLES_AT_ONCE, START_TOKENS, SAMPLE_TOKENS, STARTS = 64, 16, 5, 2


@dataclasses.dataclass(frozen=True)
class LosslessConfig(MethodChoice):
    """Settings to check, and their prompts."""

    prompts: int = 2
    """Prompts per group, of four groups."""
    max_new_tokens: int = 32
    """Tokens to generate for each prompt."""
    temperature: tuple[float, ...] = (0.0, 0.7, 1.0)
    """Sampling temperatures; 0 is greedy, others are checked without and with the filters below."""
    top_k: int = 50
    """Sample from the k most likely tokens; 0 for all."""
    top_p: float = 0.9
    """Sample from the smallest set of tokens with at least this probability."""
    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens already in the sequence become less likely; at every temperature."""
    batch_size: tuple[int, ...] = (1, 8)
    """Prompts decoded together."""
    tree_nodes: tuple[int, ...] = (8, 60, 0)
    """Nodes of the draft trees, at most 16 of prompt lookup and n-grams and 6 of a draft model; 0
    for sizes that change at random, down to plain decoding."""
    samples: int = 1024
    """Sequences sampled for each distribution test, with the first method; 0 skips the tests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_some(self, "temperature", "batch_size", "tree_nodes")
        check_least(self, prompts=1, max_new_tokens=1, batch_size=1, tree_nodes=0)
        if max(self.batch_size) > self.prompts * len(HELD_OUT):
            raise UserError(
                f"--batch-size {max(self.batch_size)} needs as many prompts, and --prompts "
                f"{self.prompts} gives {self.prompts * len(HELD_OUT)}, {self.prompts} of each of "
                f"{len(HELD_OUT)} groups; raise --prompts or lower --batch-size"
            )
        if 0 < self.samples < SAMPLES_AT_ONCE * STARTS:
            raise UserError(f"--samples must be 0 or at least {SAMPLES_AT_ONCE * STARTS}")
        _ = self.samplings  # checks the values

    @property
    def samplings(self) -> tuple[Sampling, ...]:
        """The sampling parameters: every temperature without and with filters."""
        from dart_jax.decoding.options import Sampling

        penalty = self.repetition_penalty
        samplings = []
        for temperature in self.temperature:
            samplings.append(Sampling(temperature, repetition_penalty=penalty))
            if temperature:
                samplings.append(Sampling(temperature, self.top_k, self.top_p, self.min_p, penalty))
        return tuple(dict.fromkeys(samplings))
