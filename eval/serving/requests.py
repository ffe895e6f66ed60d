"""The requests: bodies of /v1/completions, which depend on the options and their number alone."""

from __future__ import annotations

import math
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
# Longest prompt and answer of a soak.
_PROMPT, _ANSWER = 384, 128
# Strings that occur in library code, early or late, and one that does not.
_STOPS = ("\n\n", "return", "self", "):\n", "    if ", "\x00 never")


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


def soak_requests(tokenizer: Tokenizer, count: int, seed: int) -> list[Body]:
    """Returns `count` requests of random lengths: greedy and sampled, with stop strings and
    without, some of which go on after the end of the text.

    Raises:
      UserError: there are no library sources to cut prompts from.
    """
    text = library_tokens(tokenizer)
    rng = np.random.default_rng(seed)

    def length(most: int) -> int:
        # Logarithms are uniform: short ones are as frequent as long ones.
        return round(math.exp(rng.uniform(0, math.log(most))))

    def body(number: int) -> Body:
        size = length(_PROMPT)
        start = int(rng.integers(len(text) - size))
        fields: Body = {
            "prompt": text[start : start + size].tolist(),
            "max_tokens": length(_ANSWER),
            "temperature": 0.0 if number % 2 else 0.8,
            "seed": number,
        }
        if number % 3 == 1:
            fields["stop"] = rng.choice(_STOPS, rng.integers(1, 3), replace=False).tolist()
        return fields | ({"ignore_eos": True} if number % 5 == 0 else {})

    return [body(number) for number in range(count)]


def library_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """Returns library code to cut prompts from, int [n]; raises UserError if there is none."""
    text = np.array(tokenizer.encode(held_out_text()))
    if not len(text):
        raise UserError("this Python has no library sources, which prompts are cut from")
    return text
