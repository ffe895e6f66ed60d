"""Workloads: the prompts of a benchmark for one model, and the cache length they need."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from dart_jax.data.stdlib import HELD_OUT, stdlib
from dart_jax.errors import UserError
from dart_jax.generation import length_bucket
from dart_jax.model import DartModel
from eval.benchmarks.context import long_prompt, long_question
from eval.benchmarks.prompts import PROMPT_TOKENS, Prompt, demo_prompts, question_prompts
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import DEMO, find
from eval.methods.decoding import Decoder
from eval.speedup.config import SpeedupConfig


class Workload(NamedTuple):
    """The prompts of one benchmark.

    Attributes:
      name: name of the benchmark.
      title: its title in tables.
      source: file and line of its first question.
      prompts: the prompts.
      max_length: rows of the KV cache, for these prompts only, whatever else is measured.
      context: tokens to which the prompts were lengthened; None if they were not.
    """

    name: str
    title: str
    source: str
    prompts: list[Prompt]
    max_length: int
    context: int | None = None

    @property
    def prompt_tokens(self) -> list[int]:
        """The length of each prompt, in tokens."""
        return [len(prompt.tokens) for prompt in self.prompts]

    @property
    def mean_tokens(self) -> float:
        """Mean length of the prompts, in tokens."""
        return statistics.mean(self.prompt_tokens)


def demo_workload(
    config: SpeedupConfig, base: DartModel, console: Console, context: int | None
) -> Workload:
    """Returns functions of library modules; raises UserError as `demo_prompts`."""
    prompts = demo_prompts(base.tokenizer, config.prompts)
    if len(prompts) < (requested := config.prompts * len(HELD_OUT)):
        console.print(
            f"demo: {len(prompts)} prompts, not {requested}: this library has no more documented "
            f"functions within {PROMPT_TOKENS} tokens"
        )
    longest = PROMPT_TOKENS
    if context is not None:
        prompts = [long_prompt(p, n, base.tokenizer, context) for n, p in enumerate(prompts)]
        longest = max(longest, context)
    length = longest + config.max_new_tokens
    return Workload(DEMO, DEMO, str(stdlib()), prompts, length, context)


def benchmark_workload(
    config: SpeedupConfig,
    base: DartModel,
    console: Console,
    name: str,
    questions: Sequence[Question],
    context: int | None,
) -> Workload:
    """Returns the prompts of a benchmark; later turns follow the answers of plain decoding.

    Args:
      config: the measurement's options.
      base: the model.
      console: where left-out prompts are reported.
      name: name of the benchmark, or path of its file.
      questions: its questions.
      context: tokens to which the first turns' prompts are lengthened; None to leave them.

    Raises:
      UserError: no prompt is short enough.
    """
    benchmark, model = find(name), base.with_drafter(None)

    def answer(prompt: np.ndarray) -> np.ndarray:
        room = length_bucket(len(prompt) + config.max_new_tokens)
        length = min(room, base.target.max_length)
        plain = Decoder(model, length, config.samplings[0], tree_nodes=0)
        return plain([prompt], config.max_new_tokens, config.seed).tokens[0]

    if context is not None:
        questions = [
            long_question(question, n, base.tokenizer, context, thinking=config.thinking)
            for n, question in enumerate(questions)
        ]
    every = question_prompts(questions, base.tokenizer, answer, thinking=config.thinking)
    limit = base.target.max_length - config.max_new_tokens
    prompts = [prompt for prompt in every if len(prompt.tokens) <= limit]
    if left_out := len(every) - len(prompts):
        console.print(f"{benchmark.title}: {left_out} prompts of more than {limit} tokens left out")
    if not prompts:
        raise UserError(f"no prompt of {name} is within {limit} tokens")
    length = max(len(prompt.tokens) for prompt in prompts) + config.max_new_tokens
    where = questions[0].where.removeprefix(f"{Path(__file__).parents[2]}/")  # of our own
    return Workload(benchmark.name, benchmark.title, where, prompts, length, context)
