"""Options of `eval.lossless`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from dart_jax.data.stdlib import HELD_OUT
from dart_jax.decoding.decoder import Loop
from dart_jax.decoding.sampling import Sampling
from dart_jax.errors import UserError
from eval.lossless import report as report
from eval.methods.registry import MethodChoice

# Prompts are functions of up to so many tokens, of which the first are taken: all of one length, or
# nearly, so that there are few programs to compile.
FUNCTION_TOKENS = 128
PROMPT_TOKENS = 32

# The distribution test: sequences drawn together, tokens of a prompt, tokens drawn, prompts.
SAMPLES_AT_ONCE = 64
START_TOKENS = 16
SAMPLE_TOKENS = 5
STARTS = 2


@dataclasses.dataclass(frozen=True)
class LosslessConfig(MethodChoice):
    """What to check, and how thoroughly."""

    prompts: int = 2
    """Prompts of each of the four groups."""
    max_new_tokens: int = 32
    """Tokens to generate for each prompt."""
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    """0 takes the most likely token; others are checked without and with the filters below."""
    top_k: int = 50
    """Draw from the k most likely tokens; 0 for all."""
    top_p: float = 0.9
    """Draw from the smallest set of tokens with this much probability."""
    min_p: float = 0.0
    """Leave out tokens less likely than this fraction of the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that the text holds become less likely; at every temperature."""
    batch_sizes: tuple[int, ...] = (1, 8)
    """Prompts decoded together."""
    tree_nodes: tuple[int, ...] = (8, 60)
    """Nodes of the draft trees; no more than eval.speedup would give the method."""
    grid: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """All tree sizes that eval.speedup chooses from, instead of --tree-nodes."""
    loops: tuple[Loop, ...] = ("fused", "host")
    """fused: the generation is one program; host: step and search in turn."""
    samples: int = 1024
    """Sequences drawn for each distribution test, of the first method; 0 leaves the tests out."""
    seed: int = 0
    """Of the target's draws."""
    json: Path | None = None
    """Write everything found to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperatures", "batch_sizes", "tree_nodes", "loops"):
            if not getattr(self, name):
                raise UserError(f"--{name.replace('_', '-')} needs at least one value")
        for name in ("prompts", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        for name in ("batch_sizes", "tree_nodes"):
            if min(getattr(self, name)) < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1")
        if max(self.batch_sizes) > self.prompts * len(HELD_OUT):
            raise UserError(
                f"a batch of {max(self.batch_sizes)} needs more than the {self.prompts} prompts of "
                f"each of {len(HELD_OUT)} groups; raise --prompts"
            )
        if 0 < self.samples < SAMPLES_AT_ONCE * STARTS:
            raise UserError(f"--samples must be 0 or at least {SAMPLES_AT_ONCE * STARTS}")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be in 0..{2**32 - 1}")
        _ = self.samplings  # checks the values

    @property
    def samplings(self) -> tuple[Sampling, ...]:
        """How the target draws, in turn: every temperature without and with filters."""
        penalty = self.repetition_penalty
        made = []
        for temperature in self.temperatures:
            made.append(Sampling(temperature, repetition_penalty=penalty))
            if temperature:
                made.append(Sampling(temperature, self.top_k, self.top_p, self.min_p, penalty))
        return tuple(dict.fromkeys(made))
