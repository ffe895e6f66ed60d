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
from eval.benchmarks.prompts import (
    PROMPT_TOKENS,
    Prompt,
    demo_prompts,
    question_prompts,
    warm_up_prompts,
)
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import DEMO, find
from eval.speedup.config import SpeedupConfig


class Workload(NamedTuple):
    """The prompts of one benchmark.

    Attributes:
      name: name of the benchmark.
      title: its title in tables.
      source: file and line of its first question.
      prompts: reported prompts.
      warm_up: prompts on which trees are chosen; reported ones only if there are too few others.
      max_length: rows of the KV cache, for these prompts only, whatever else is measured.
    """

    name: str
    title: str
    source: str
    prompts: list[Prompt]
    warm_up: list[Prompt]
    max_length: int


def demo_workload(config: SpeedupConfig, base: DartModel, console: Console) -> Workload:
    """Returns functions of library modules; raises UserError as `_workload`, or if there are none
    of a group."""
    prompts = demo_prompts(base.tokenizer, config.prompts, PROMPT_TOKENS)
    if len(prompts) < (requested := config.prompts * len(HELD_OUT)):
        console.print(
            f"demo: {len(prompts)} prompts, not {requested}: this library has no more documented "
            f"functions within {PROMPT_TOKENS} tokens"
        )
    warm_up = warm_up_prompts(base.tokenizer, config.warm_up, PROMPT_TOKENS // 2)
    labels = DEMO, DEMO, str(stdlib())
    return _workload(config, labels, prompts, warm_up, PROMPT_TOKENS)


def benchmark_workload(
    config: SpeedupConfig,
    base: DartModel,
    console: Console,
    name: str,
    questions: Sequence[Question],
) -> Workload:
    """Returns the prompts of a benchmark; later turns follow the answers of plain decoding.

    Args:
      config: what to measure.
      base: the model.
      console: where left-out prompts are reported.
      name: name of the benchmark, or path of its file.
      questions: the questions to report, then those to choose trees on, if there are more.

    Raises:
      UserError: no prompt is short enough, or as `_workload`.
    """
    benchmark, model = find(name), base.with_drafter(None)

    def answer(prompts: list[np.ndarray]) -> list[np.ndarray]:
        room = length_bucket(max(map(len, prompts)) + config.max_new_tokens)
        length = min(room, base.target.max_length)
        plain = model.decoder(nodes=0, max_length=length, sampling=config.samplings[0])
        return plain(prompts, config.max_new_tokens, config.seed).tokens

    # Choose trees on questions after the reported ones, if there are any.
    reported, rest = questions[: config.prompts], questions[config.prompts :]
    limit = base.target.max_length - config.max_new_tokens
    kept: list[list[Prompt]] = []
    for some in (reported, [*rest, *reported][: config.warm_up]):
        every = question_prompts(
            some, base.tokenizer, answer, thinking=config.thinking, batch=config.warm_up
        )
        kept.append([prompt for prompt in every if len(prompt.tokens) <= limit])
        if some is reported and (left_out := len(every) - len(kept[0])):
            what = f"{left_out} prompts of more than {limit} tokens left out"
            console.print(f"{benchmark.title}: {what}")
    if not kept[0]:
        raise UserError(f"no prompt of {name} is within {limit} tokens")
    labels = benchmark.name, benchmark.title, questions[0].where
    return _workload(config, labels, kept[0], kept[1])


def _workload(
    config: SpeedupConfig,
    labels: tuple[str, str, str],  # name, title and source
    prompts: list[Prompt],
    warm_up: list[Prompt],
    least: int = 0,  # tokens of a prompt for which the cache has room at least
) -> Workload:
    """Raises UserError if the prompts are too few for a batch."""
    if max(config.batch_size) > len(prompts):
        raise UserError(
            f"--batch-size {max(config.batch_size)} needs as many prompts, and {labels[0]} has "
            f"{len(prompts)}; raise --prompts, or lower the batch size"
        )
    warm_up = (warm_up + prompts)[: max(config.warm_up, len(warm_up))]
    longest = max(least, *(len(prompt.tokens) for prompt in (*prompts, *warm_up)))
    return Workload(*labels, prompts, warm_up, longest + config.max_new_tokens)
