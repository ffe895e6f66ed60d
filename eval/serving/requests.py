"""The requests of a comparison, which depend on the options and their number alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.prompts import demo_prompts, held_out_text
from eval.benchmarks.questions import prompt_tokens
from eval.benchmarks.registry import DEMO, load
from eval.serving.config import ServingBenchConfig

# A request's fields by the API's names, without the model's.
Body = dict[str, Any]

# Functions of each of the demo's groups, and questions of a benchmark.
_PER_GROUP, _QUESTIONS = 256, 512


def bench_requests(config: ServingBenchConfig, tokenizer: Tokenizer) -> Callable[[int], Body]:
    """Returns a function from a number to that request; prompts come again after the last one.

    Raises:
      UserError: the benchmark's files are missing.
    """
    if config.bench == DEMO:
        prompts = [each.tokens for each in demo_prompts(tokenizer, _PER_GROUP)]
        # Those of a group follow each other: a few requests should come from all of them.
        prompts = [prompts[n] for n in np.random.default_rng(config.seed).permutation(len(prompts))]
    else:
        questions = load(config.bench, None, _QUESTIONS)
        prompts = [prompt_tokens(each, (), tokenizer, thinking=False) for each in questions]

    def request(number: int) -> Body:
        return {
            "prompt": prompts[number % len(prompts)].tolist(),
            "max_tokens": config.max_new_tokens,
            "temperature": config.temperature,
            "seed": (config.seed + number) % 2**32,
        }

    return request


def library_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """Returns library code to cut prompts from, int [n]; raises UserError if there is none."""
    text = np.array(tokenizer.encode(held_out_text()))
    if not len(text):
        raise UserError("this Python has no library sources, which prompts are cut from")
    return text
