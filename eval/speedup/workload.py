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
from eval.benchmarks.prompts import Prompt, demo_prompts, question_prompts, warm_up_prompts
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import find
from eval.speedup.config import DEMO, SpeedupConfig

# Longest prompt of the demo benchmark.
PROMPT_TOKENS = 128


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
    """Returns functions of library modules.

    Raises:
      UserError: there are none, too few for a batch, or they are longer than --max-length.
    """
    prompts = demo_prompts(base.tokenizer, config.prompts, PROMPT_TOKENS)
    if len(prompts) < (requested := config.prompts * len(HELD_OUT)):
        console.print(
            f"demo: {len(prompts)} prompts, not {requested}: this library has no more documented "
            f"functions within {PROMPT_TOKENS} tokens"
        )
    warm_up = warm_up_prompts(base.tokenizer, config.max_warm_up_count, PROMPT_TOKENS // 2)
    warm_up = (warm_up + prompts)[: config.max_warm_up_count]
    return _workload(config, (DEMO, "demo", str(stdlib())), prompts, warm_up, PROMPT_TOKENS)


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
      UserError: no prompt is short enough, or they are too few for a batch.
    """
    benchmark, tokenizer = find(name), base.tokenizer
    length = min(config.max_length or base.target.max_length, base.target.max_length)
    model = base.with_drafter(None)

    def answer(prompts: list[np.ndarray]) -> list[np.ndarray]:
        room = length_bucket(max(map(len, prompts)) + config.max_new_tokens)
        plain = model.decoder(nodes=0, max_length=min(room, length), sampling=config.samplings[0])
        return plain(prompts, config.max_new_tokens, config.seed).tokens

    # Choose trees on questions after the reported ones, if there are any.
    reported, rest = questions[: config.prompts], questions[config.prompts :]
    prompt_sets = [
        question_prompts(
            some, tokenizer, answer, thinking=config.thinking, batch=config.max_warm_up_count
        )
        for some in (reported, [*rest, *reported][: config.max_warm_up_count])
    ]
    limit = length - config.max_new_tokens
    prompts, warm_up = ([p for p in some if len(p.tokens) <= limit] for some in prompt_sets)
    if left_out := len(prompt_sets[0]) - len(prompts):
        console.print(f"{benchmark.title}: {left_out} prompts of more than {limit} tokens left out")
    if not prompts:
        raise UserError(f"no prompt of {name} is within {limit} tokens; raise --max-length")
    warm_up = (warm_up + prompts)[: max(config.max_warm_up_count, len(warm_up))]
    labels = (benchmark.name, benchmark.title, questions[0].where)
    return _workload(config, labels, prompts, warm_up, 0)


def _workload(
    config: SpeedupConfig,
    labels: tuple[str, str, str],  # name, title and source
    prompts: list[Prompt],
    warm_up: list[Prompt],
    min_prompt_tokens: int,  # the cache has room for a prompt of this length
) -> Workload:
    if max(config.batch_size) > len(prompts):
        raise UserError(
            f"--batch-size {max(config.batch_size)} needs as many prompts, and {labels[0]} has "
            f"{len(prompts)}; raise --prompts, or lower the batch size"
        )
    longest = max(len(prompt.tokens) for prompt in (*prompts, *warm_up))
    length = config.max_length or max(longest, min_prompt_tokens) + config.max_new_tokens
    if longest + config.max_new_tokens > length:
        raise UserError(
            f"a prompt of {longest} tokens and {config.max_new_tokens} new ones do not fit "
            f"into a cache of {length}; raise --max-length"
        )
    return Workload(*labels, prompts, warm_up, length)
