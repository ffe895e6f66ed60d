"""Workloads: the prompts of a benchmark for one model, and the cache length they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console

from dart_jax.data.stdlib import HELD_OUT, stdlib
from dart_jax.errors import UserError
from dart_jax.generation import length_bucket
from dart_jax.model import DartModel
from eval.benchmarks.prompts import PROMPT_TOKENS, Prompt, demo_prompts, question_prompts
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import DEMO, find
from eval.speedup.config import SpeedupConfig


class Workload(NamedTuple):
    """The prompts of one benchmark.

    Attributes:
      name: name of the benchmark.
      title: its title in tables.
      source: file and line of its first question.
      prompts: the prompts.
      max_length: rows of the KV cache, for these prompts only, whatever else is measured.
    """

    name: str
    title: str
    source: str
    prompts: list[Prompt]
    max_length: int


def demo_workload(config: SpeedupConfig, base: DartModel, console: Console) -> Workload:
    """Returns functions of library modules; raises UserError as `demo_prompts`."""
    prompts = demo_prompts(base.tokenizer, config.prompts)
    if len(prompts) < (requested := config.prompts * len(HELD_OUT)):
        console.print(
            f"demo: {len(prompts)} prompts, not {requested}: this library has no more documented "
            f"functions within {PROMPT_TOKENS} tokens"
        )
    return Workload(DEMO, DEMO, str(stdlib()), prompts, PROMPT_TOKENS + config.max_new_tokens)


def benchmark_workload(
    config: SpeedupConfig,
    base: DartModel,
    console: Console,
    name: str,
    questions: Sequence[Question],
) -> Workload:
    """Returns the prompts of a benchmark; later turns follow the answers of plain decoding.

    Args:
      config: the measurement's options.
      base: the model.
      console: where left-out prompts are reported.
      name: name of the benchmark, or path of its file.
      questions: its questions.

    Raises:
      UserError: no prompt is short enough.
    """
    benchmark, model = find(name), base.with_drafter(None)

    def answer(prompt: np.ndarray) -> np.ndarray:
        room = length_bucket(len(prompt) + config.max_new_tokens)
        length = min(room, base.target.max_length)
        plain = model.decoder(nodes=0, max_length=length, sampling=config.samplings[0])
        return plain([prompt], config.max_new_tokens, config.seed).tokens[0]

    every = question_prompts(questions, base.tokenizer, answer, thinking=config.thinking)
    limit = base.target.max_length - config.max_new_tokens
    prompts = [prompt for prompt in every if len(prompt.tokens) <= limit]
    if left_out := len(every) - len(prompts):
        console.print(f"{benchmark.title}: {left_out} prompts of more than {limit} tokens left out")
    if not prompts:
        raise UserError(f"no prompt of {name} is within {limit} tokens")
    length = max(len(prompt.tokens) for prompt in prompts) + config.max_new_tokens
    return Workload(benchmark.name, benchmark.title, questions[0].where, prompts, length)
