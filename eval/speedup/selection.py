"""The prompts of a measurement: benchmarks as one model is asked them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console

from dart_jax.data.stdlib import HELD_OUT, stdlib
from dart_jax.errors import UserError
from dart_jax.generation import length_bucket
from dart_jax.model import DartModel
from eval.benchmarks.prompts import Prompt, asked, demo_prompts, warm_up_prompts
from eval.benchmarks.questions import Question
from eval.benchmarks.registry import find
from eval.speedup.config import DEMO, SpeedupConfig

# Longest prompt taken into the demo benchmark.
PROMPT_TOKENS = 128


class Bench(NamedTuple):
    """A benchmark's prompts.

    Attributes:
      name: the benchmark's.
      title: in tables.
      source: file and line of its first question.
      prompts: that are reported.
      warm_up: that trees are chosen on.
      max_length: cache rows, for these prompts alone, whatever else is measured.
    """

    name: str
    title: str
    source: str
    prompts: list[Prompt]
    warm_up: list[Prompt]
    max_length: int


def demo_bench(config: SpeedupConfig, base: DartModel, console: Console) -> Bench:
    """Functions of library modules.

    Raises:
      UserError: there are none, too few for a batch, or they are longer than --max-length.
    """
    prompts = demo_prompts(base.tokenizer, config.prompts, PROMPT_TOKENS)
    if len(prompts) < (wanted := config.prompts * len(HELD_OUT)):
        console.print(
            f"demo: {len(prompts)} prompts, not {wanted}: this library has no more documented "
            f"functions within {PROMPT_TOKENS} tokens"
        )
    warm_up = warm_up_prompts(base.tokenizer, config.spare, PROMPT_TOKENS // 2)
    warm_up = (warm_up + prompts)[: config.spare]
    return _bench(config, (DEMO, "demo", str(stdlib())), prompts, warm_up, PROMPT_TOKENS)


def asked_bench(
    config: SpeedupConfig,
    base: DartModel,
    console: Console,
    name: str,
    questions: Sequence[Question],
) -> Bench:
    """A benchmark, its later turns behind the answers of plain decoding.

    Args:
      config: what to measure.
      base: the model.
      console: is told of prompts that are left out.
      name: of the benchmark, or its file.
      questions: those to report, and behind them some to choose trees on, if there are more.

    Raises:
      UserError: no prompt is short enough, or they are too few for a batch.
    """
    found, tokenizer = find(name), base.tokenizer
    length = min(config.max_length or base.target.max_length, base.target.max_length)
    model = base.with_drafter(None)

    def answer(prompts: list[np.ndarray]) -> list[np.ndarray]:
        room = length_bucket(max(map(len, prompts)) + config.max_new_tokens)
        plain = model.decoder(nodes=0, max_length=min(room, length), sampling=config.samplings[0])
        return plain(prompts, config.max_new_tokens, config.seed).tokens

    # Trees are chosen on questions behind those that are reported, where there are such.
    reported, rest = questions[: config.prompts], questions[config.prompts :]
    made = [
        asked(some, tokenizer, answer, thinking=config.thinking, batch=config.spare)
        for some in (reported, [*rest, *reported][: config.spare])
    ]
    most = length - config.max_new_tokens
    prompts, warm_up = ([p for p in some if len(p.tokens) <= most] for some in made)
    if len(prompts) < len(made[0]):
        console.print(
            f"{found.title}: {len(made[0]) - len(prompts)} prompts of more than {most} tokens "
            "left out"
        )
    if not prompts:
        raise UserError(f"no prompt of {name} is within {most} tokens; raise --max-length")
    warm_up = (warm_up + prompts)[: max(config.spare, len(warm_up))]
    return _bench(config, (found.name, found.title, questions[0].where), prompts, warm_up, 0)


def _bench(
    config: SpeedupConfig,
    told: tuple[str, str, str],
    prompts: list[Prompt],
    warm_up: list[Prompt],
    shortest: int,
) -> Bench:
    if max(config.batch_size) > len(prompts):
        raise UserError(
            f"--batch-size {max(config.batch_size)} needs as many prompts, and {told[0]} has "
            f"{len(prompts)}; raise --prompts, or lower the batch size"
        )
    longest = max(len(prompt.tokens) for prompt in (*prompts, *warm_up))
    length = config.max_length or max(longest, shortest) + config.max_new_tokens
    if longest + config.max_new_tokens > length:
        raise UserError(
            f"a prompt of {longest} tokens and {config.max_new_tokens} new ones do not fit "
            f"into a cache of {length}; raise --max-length"
        )
    return Bench(*told, prompts, warm_up, length)
